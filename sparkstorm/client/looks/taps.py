"""Look at a stream of a live topology: samples of its committed rows, while a client looks."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sparkstorm.common.errors import CodecError
from sparkstorm.common.model.values.tagged import from_json
from sparkstorm.data_plane.transport.base import TAP_MS

_LOOK_EVERY_S = 0.2
_OPEN_EVERY_S = TAP_MS / 1000 / 3


class TapStore(Protocol):
    """The part of a `transport.base.Reader` that deals with taps."""

    def open_tap(self, name: str) -> str: ...
    def samples(self, name: str, after: str) -> list[tuple[str, bytes]]: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of a stream: its values by field, its task, and when it was emitted; `problem` where
    a row cannot be shown.
    """

    task: int
    time_ms: int
    values: Mapping[str, Any]
    problem: str = ""


def samples(store: TapStore, name: str, seconds: float | None = None) -> Generator[Sample | None]:
    """Yield samples of "component:stream" as they are committed, and None after each look.

    The last look is made when the time is over, so that a client which got no processor meanwhile
    still sees what was published. The tap closes by itself some seconds later.
    """
    began = opened = time.monotonic()
    last = store.open_tap(name)
    while True:
        is_last = seconds is not None and time.monotonic() - began >= seconds
        if time.monotonic() - opened > _OPEN_EVERY_S:
            opened = time.monotonic()
            store.open_tap(name)
        entries = store.samples(name, last)
        for id, data in entries:
            last = id
            if (sample := _read(data)) is not None:
                yield sample
        yield None
        if is_last:
            return
        if not entries:
            time.sleep(_LOOK_EVERY_S)


def _read(data: bytes) -> Sample | None:
    """Return a sample; None for bytes that no worker wrote."""
    try:
        record = from_json(data.decode())
        task = record["task"]
        time_ms = record["time_ms"]
        problem = record.get("problem", "")
        values = record.get("values", {})
    except (UnicodeDecodeError, CodecError, KeyError, TypeError, AttributeError):
        return None
    fits = (
        type(task) is int
        and type(time_ms) is int
        and type(problem) is str
        and isinstance(values, dict)
    )
    return Sample(task, time_ms, values, problem) if fits else None
