"""Output of a worker: stamped lines, output that is progress, and a log that cannot be written."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
from pathlib import Path

import pytest

from sparkstorm.common.model.worker_messages import Alive, WorkerCommand, WorkerReport
from sparkstorm.data_plane.worker import loop
from sparkstorm.data_plane.worker.main import Stamped

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} "


def test_every_line_begins_with_the_time() -> None:
    stream = io.StringIO()
    stamped = Stamped(stream)
    for text in ("one", "\n", "two\nthree\n", "", "fo", "ur\n\n"):
        assert stamped.write(text) == len(text)
    assert re.fullmatch(
        "".join(f"{STAMP}{line}\n" for line in ("one", "two", "three", "four", "")),
        stream.getvalue(),
    )


def test_a_full_disk_raises_nothing_where_user_code_prints() -> None:
    # its close writes once more
    with contextlib.suppress(OSError), Path("/dev/full").open("w", buffering=1) as full:
        stamped = Stamped(full)
        print("lost", file=stamped, flush=True)
        print("lost as well", file=stamped)
        with pytest.raises(OSError, match="No space left"):
            full.flush()


class Control:
    """A line to a slot that ends the thread behind it after one report."""

    def __init__(self, ended: threading.Event, write: Stamped) -> None:
        self.sent: list[WorkerReport] = []
        self._ended, self._write = ended, write

    def poll(self) -> list[WorkerCommand]:
        return []

    def fileno(self) -> int:
        return -1

    def send(self, report: WorkerReport) -> None:
        self.sent.append(report)
        if len(self.sent) == 1:
            self._write.write("x" * loop.MUCH_OUTPUT)
        if len(self.sent) == 3:
            self._ended.set()


def test_a_second_with_much_output_is_one_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    stamped, ended = Stamped(io.StringIO()), threading.Event()
    control = Control(ended, stamped)
    monkeypatch.setattr(sys, "stdout", stamped)
    monkeypatch.setattr(loop, "ALIVE_EVERY_S", 0.001)
    loop._say_alive(control, ended)
    assert control.sent == [Alive(), Alive(is_printing=True), Alive()]
