"""Interface by which an optional feature plugs into a worker process.

Law: an extension is called in the worker's loop, between two epochs, and changes nothing of its
tasks: no row, no state, no count. It follows tasks as an observer (`executor/task_observer.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkstorm.common.extension_points import extensions_at
from sparkstorm.common.model.worker_messages import WorkerCommand
from sparkstorm.common.model.worker_spec import WorkerSpec
from sparkstorm.data_plane.worker.parts import WorkerParts


def read_file(path: Path) -> bytes | None:
    """Return a blob of this host's disk; None when it is gone."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class ExtensionHost:
    """View of a worker for an extension, before it has tasks.

    `is_threaded`: whether it may start threads; a simulation has none.
    """

    spec: WorkerSpec
    now_ms: Callable[[], int]
    read_code: Callable[[Path], bytes | None] = read_file
    is_threaded: bool = True


class WorkerExtension:
    """An optional feature in one worker process; every method may be left out."""

    def __init__(self, host: ExtensionHost) -> None:
        self.host = host

    def attach(self, parts: WorkerParts) -> None:
        """Observe tasks: they are restored and prepared, and have executed nothing yet."""

    def follow(self, command: WorkerCommand, parts: WorkerParts) -> None:
        """Obey a command of the slot that the worker itself does not know."""

    def figures(self) -> Mapping[str, Any]:
        """Return what the next heartbeat is to hold besides the worker's own figures."""
        return {}

    def after_beat(self, now_ms: int) -> None:
        """Do what is due about once a second."""

    def end(self) -> None:
        """End what runs outside the worker's loop: the worker stops or has died."""

    def close(self) -> None:
        """Release the rest, after the last commit and the components' own cleanup."""

    def abandon(self) -> None:
        """End as a killed process does; for simulations."""


def worker_extensions(host: ExtensionHost) -> tuple[WorkerExtension, ...]:
    """Return the extensions of one worker."""
    return tuple(made(host) for made in extensions_at("worker"))
