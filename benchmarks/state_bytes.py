"""Bytes of a key of state in a worker and in Redis, and the time of a restart, for three kinds of
keys: python -m benchmarks.state_bytes [--keys N]

One task puts every key once and then changes keys at random, 200 to a commit, as a worker does:
through its journal into a real Redis. *Redis* is what the server's memory has grown by: the least
and the most while keys change. A process of its own then claims the task: its resident memory and
its CPU time are those of a restart. All CPU is that of a busy machine: compare it with the bare
loop that is printed in the same run.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.task_kit.journal import Journal
from sparkstorm.data_plane.transport.base import Commit
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.extensions.embedded import RedisServer, start_redis

_TASK = 1
_CHANGES = 200
KINDS: dict[str, Callable[[int, int], tuple[Any, Any]]] = {
    "text key, whole number": lambda n, v: (f"user-{n:08d}", v),
    "key of text and number, whole number": lambda n, v: ((f"user-{n:08d}", 1_790_000_000_000), v),
    "text key, list of ten numbers": lambda n, v: (
        f"user-{n:08d}",
        [1_790_000_000_000 + v + i for i in range(10)],
    ),
}


class Owner:
    """One task with a state in memory and its journal in the store."""

    def __init__(self, address: RedisAddress, name: str, token: int) -> None:
        codec = Codec()
        self.state = MemoryState(codec)
        self._name = name
        self._token = token
        self._transport = RedisTransport(address, "sizes", patience_s=60)
        self._claim = self._transport.claim(name, {_TASK: token})
        self._seq = self._claim.seq
        self._journal = Journal(_TASK, codec)
        for fields in self._journal.read(self._claim.record_by_task[_TASK]):
            self.state.load(fields.get("s", ()), fields.get("d", ()))

    def commit(self) -> None:
        """Write what has changed."""
        self._seq += 1
        commit = Commit(self._name, {_TASK: self._token}, self._claim.generation, self._seq)
        pairs, _ = self.state.take_changes()
        self._journal.write(commit, {"s": pairs}, lambda: ({}, {"s": self.state}))
        self._transport.commit(commit)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


def restart(address: RedisAddress, answers: Any) -> None:
    """Claim the task as a worker's successor; send the growth of its memory and its CPU seconds."""
    gc.disable()
    before = _resident()
    began = time.process_time()
    began_wall = time.perf_counter()
    owner = Owner(address, "next", 2)
    answers.put(
        (
            len(owner.state),
            _resident() - before,
            time.process_time() - began,
            time.perf_counter() - began_wall,
        )
    )


def measure(server: RedisServer, kind: str, keys: int) -> str:
    """Return a line of the table."""
    make = KINDS[kind]
    chance = random.Random(0)
    with server.client() as client:
        client.flushall()
        empty = client.info("memory")["used_memory"]
        owner = Owner(server.address, "first", 1)
        for first in range(0, keys, _CHANGES):
            for n in range(first, first + _CHANGES):
                owner.state.put(*make(n, n))
            owner.commit()
        used = []
        for commit in range(8 * keys // _CHANGES):
            for _ in range(_CHANGES):
                owner.state.put(*make(chance.randrange(keys), chance.randrange(keys)))
            owner.commit()
            if commit % 20 == 0:
                used.append(client.info("memory")["used_memory"] - empty)
        journal = sum(map(len, client.lrange(owner._transport._keys("journal", _TASK), 0, -1)))
    owner.close()
    payload = len(Codec().pack([make(n, n) for n in range(1000)])) / 1000
    answers = multiprocessing.get_context("spawn").SimpleQueue()
    successor = multiprocessing.get_context("spawn").Process(
        target=restart, args=(server.address, answers)
    )
    successor.start()
    held, resident, cpu, wall = answers.get()
    successor.join()
    assert held == keys, (held, keys)
    millions = keys / 1e6
    return (
        f"| {kind} | {resident / keys:.0f} | {payload:.0f} | {min(used) / keys:.0f} | {max(used) / keys:.0f} | "
        f"{sum(used) / len(used) / keys:.0f} | {cpu / millions:.2f} | {wall / millions:.2f} | {journal / keys:.0f} |"
    )


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _bare_loop() -> float:
    began = time.process_time()
    total = 0
    for i in range(20_000_000):
        total += i
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=200_000)
    options = parser.parse_args(arguments)
    print(f"a bare loop of 20,000,000 additions: {_bare_loop():.2f} s of CPU")
    print(
        "| key, value | bytes in the worker | packed | Redis least | most | mean | "
        "restart, s of CPU a million | s | journal read |"
    )
    with tempfile.TemporaryDirectory() as folder:
        server = start_redis(Path(folder), password="bench", maxmemory_mb=4096)
        try:
            for kind in KINDS:
                print(measure(server, kind, options.keys), flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
