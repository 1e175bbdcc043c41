"""CPU of the store per commit, for several servers in turn: python -m benchmarks.embedded_stores
[--rounds N] SERVER ...

Each server is a path of a redis-server or valkey-server; the first is what the others are compared
with. Every round drives the same commits through each: small ones (a frame of 200 bytes, a journal
entry of 50), large ones (16 frames of 32 kB, a journal entry of 100 kB) and states (500 keys of a
base). The server's own CPU (user and system, from /proc) is divided by the number of commits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.base import Commit, Cursor
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.extensions.embedded import RedisServer, start_redis
from sparkstorm.extensions.embedded.redis import CHOSEN_SERVER

_TICKS = os.sysconf("SC_CLK_TCK")


class Owner:
    """One owner whose task sends to itself, so that its stream stays short."""

    def __init__(self, server: RedisServer) -> None:
        self.pid = server.pid
        self._transport = RedisTransport(
            RedisAddress(server.host, server.port, server.password), "bench", patience_s=20
        )
        self._claim = self._transport.claim("owner", {1: 1})
        self._seq = self._claim.seq
        self._sent = False
        self._cursor = self._claim.record_by_task[1].cursor.entry

    def commit(self, frames: int, frame: bytes, journal: bytes, keys: int) -> None:
        """Send, and consume what the commit before has sent."""
        entries = self._transport.poll({1: self._cursor}, 100) if self._sent else []
        while self._sent and not entries:
            self._transport.wait(1000)
            entries = self._transport.poll({1: self._cursor}, 100)
        self._sent = True
        last = entries[-1].id if entries else self._cursor
        self._seq += 1
        self._transport.commit(
            Commit(
                "owner",
                {1: 1},
                self._claim.generation,
                self._seq,
                frames=[(1, frame, len(frame))] * frames,
                cursors={1: Cursor(last, 0)},
                drained_bytes={1: sum(len(entry.data) for entry in entries)},
                journal=[(1, journal)] if journal else [],
                dropped={1: 1} if self._seq % 100 else {},
                state=[(1, b"key %d" % (self._seq * 7 + n), journal[:50]) for n in range(keys)],
            )
        )
        self._cursor = last

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


SHAPES: dict[str, tuple[int, Callable[[Owner], None]]] = {
    "small": (4000, lambda owner: owner.commit(1, b"x" * 200, b"j" * 50, 0)),
    "large": (400, lambda owner: owner.commit(16, b"x" * 32_768, b"j" * 100_000, 0)),
    "states": (400, lambda owner: owner.commit(1, b"x" * 200, b"j" * 50, 500)),
}


def version_of(binary: str) -> str:
    """Return a server's name and version."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    name, _, version = said.partition("v=")
    return f"{name.split()[0].lower()}-{version.split()[0]}"


def cpu_us(pid: int) -> float:
    """Return the user and system time of a process, in microseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1e6 / _TICKS


def measure(binary: str, shape: str) -> float:
    """Microseconds of a fresh server's CPU per commit."""
    os.environ[CHOSEN_SERVER] = os.path.abspath(binary)
    commits, commit = SHAPES[shape]
    with tempfile.TemporaryDirectory() as folder:
        server = start_redis(Path(folder), password="bench")
        owner = Owner(server)
        try:
            before = cpu_us(server.pid)
            for _ in range(commits):
                commit(owner)
            return (cpu_us(server.pid) - before) / commits
        finally:
            owner.close()
            server.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", nargs="+", metavar="SERVER")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    print("| commits | " + " | ".join(map(version_of, options.servers)) + " |")
    for shape in SHAPES:
        rounds = [
            [measure(binary, shape) for binary in options.servers] for _ in range(options.rounds)
        ]
        cells = []
        for column in range(len(options.servers)):
            ratios = sorted(row[column] / row[0] for row in rounds)
            spent = median(row[column] for row in rounds)
            cells.append(
                f"{spent:.0f} us, {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )
        print(f"| {shape} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
