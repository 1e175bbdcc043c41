"""Logs of workers, seen from any host: the last lines that their slots have published in Redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sparkstorm.common.model.names import shown


class LogStore(Protocol):
    """A TopologyHandle, as far as its logs are read."""

    def log_slots(self) -> list[str]: ...
    def log(self, slot: str, after: str = "0") -> list[tuple[str, bytes]]: ...


class LogReader:
    """Reader of some workers' logs, line by line; `read` gives what is new since the last call."""

    def __init__(self, store: LogStore, slot: str | None = None) -> None:
        self._store = store
        self._slot = slot
        self._last: dict[str, str] = {}
        self._rest: dict[str, str] = {}

    def read(self) -> Mapping[str, list[str]]:
        """Return new lines by slot ("node:port"), oldest first; control characters are shown as
        escapes.
        """
        slots = self._store.log_slots() if self._slot is None else [self._slot]
        return {slot: lines for slot in slots if (lines := self._new_lines(slot))}

    def _new_lines(self, slot: str) -> list[str]:
        parts = self._store.log(slot, self._last.get(slot, "0"))
        if not parts:
            return []
        self._last[slot] = parts[-1][0]
        data = b"".join(part for _, part in parts).decode("utf-8", "backslashreplace")
        # a long line may come in several parts
        *lines, self._rest[slot] = (self._rest.get(slot, "") + data).split("\n")
        return [shown(line) for line in lines]


def last_lines(store: LogStore, slot: str, count: int) -> list[str]:
    """Return the end of one worker's log; empty when nothing is kept of it."""
    return list(LogReader(store, slot).read().get(slot, []))[-count:]
