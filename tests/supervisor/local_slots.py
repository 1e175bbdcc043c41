"""Slots as plain processes of this machine, for tests without a JVM; as a program, one slot of the
spec on its standard input.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time

from sparkstorm.common.errors import SlotsUnavailableError
from sparkstorm.common.slot_spec import RestartPause, SlotSpec
from sparkstorm.control_plane.supervisor.fork_server import ForkServer
from sparkstorm.control_plane.supervisor.slot_main import STOPPED, main

_LOG = logging.getLogger(__name__)
STOP_WAIT_S = 10.0


class LocalSlots:
    """Slot processes of one specification, each watched by a thread."""

    def __init__(self, spec: SlotSpec, count: int) -> None:
        self._spec, self._count = spec, count
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Launch them; SlotsUnavailableError when the spec has fewer ports than slots are
        wanted.
        """
        room = max(1, len(self._spec.nodes)) * len(self._spec.ports())
        if room < self._count:
            raise SlotsUnavailableError(
                f"{self._count} slots are wanted, but the nodes have only {room} ports"
            )
        for index in range(self._count):
            thread = threading.Thread(
                target=self._keep, args=(index,), name=f"local-slot-{index}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Ask every slot to end (SIGTERM), kill those that do not."""
        self._stopping.set()
        with self._lock:
            processes = list(self._processes.values())
            for process in processes:
                process.terminate()
        for process in processes:
            try:
                process.wait(STOP_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        for thread in self._threads:
            thread.join(STOP_WAIT_S)

    def running(self) -> int:
        """Number of living slot processes."""
        return len(self.pids())

    def pids(self) -> list[int]:
        """Process ids of the living slots, by index."""
        with self._lock:
            return [
                process.pid
                for _, process in sorted(self._processes.items())
                if process.poll() is None
            ]

    def _keep(self, index: int) -> None:
        pause = RestartPause()
        while not self._stopping.is_set():
            process = self._launch(index)
            if process is None:
                return
            began = time.monotonic()
            code = process.wait()
            if self._stopping.wait(pause.after_ms(round((time.monotonic() - began) * 1000)) / 1000):
                return
            _LOG.warning(
                "slot process %d ended (exit status %d); it is started again", process.pid, code
            )

    def _launch(self, index: int) -> "subprocess.Popen[bytes] | None":
        command = [sys.executable, "-m", __name__]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        with self._lock:
            if self._stopping.is_set():
                return None
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, env=environment, start_new_session=True
            )
            self._processes[index] = process
        assert process.stdin is not None
        try:
            with process.stdin:
                process.stdin.write(self._spec.to_json())
        except BrokenPipeError:
            _LOG.warning("slot process %d ended before it had its spec", process.pid)
        return process


def _program() -> int:
    server = ForkServer.start()
    spec = SlotSpec.from_json(sys.stdin.buffer.read())
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    reason = main(spec, stopping, server)
    return 0 if reason == STOPPED else 1


if __name__ == "__main__":
    sys.exit(_program())
