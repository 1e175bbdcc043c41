"""Trial of a ring in shared memory between the workers of one host, beside entries that are read
from the store.

Run: python -m benchmarks.ring [--rounds N] [--runs N]. A commit appends four entries of 256 kB, as
large tuples make them, by a script; then the receiver has them. `XREAD`: it reads them from the
store. `ring`: the sender copies them into shared memory before its commit, and the receiver from
there. `nothing`: it does not read, which no way of carrying them can beat. One process is sender
and receiver, without the engine: what is compared is the way of the bytes alone.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from sparkstorm.embedded import start_redis

WAYS = ("XREAD", "ring", "nothing")
_ENTRY = 256 << 10  # worker/packed_rows.py: the largest entry of many rows
_ENTRIES = 4
_RING = 8 << 20
_APPEND = "for i = 1, #ARGV do redis.call('XADD', KEYS[1], '*', 'f', ARGV[i]) end return 1"


def main() -> None:
    """Print rate and CPU of each way, medians of runs in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=400, help="commits of a run, 1 MB each")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = start_redis(Path(folder), password="of-the-trial", maxmemory_mb=1024)
        try:
            with server.client() as client:
                trial = Trial(client)
                for way in WAYS:
                    trial.run(way, max(1, options.rounds // 4))  # warms
                found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
                for run in range(options.runs):
                    for way in WAYS[:: -1 if run % 2 else 1]:
                        found[way].append(trial.run(way, options.rounds))
        finally:
            server.stop()
    for way, runs in found.items():
        rates, store, client_ms = zip(*runs, strict=True)
        print(
            f"{way:8} {statistics.median(rates):4.0f} MB/s ({min(rates):.0f}-{max(rates):.0f}), ms of CPU a MB: "
            f"store {statistics.median(store):.2f}, sender and receiver {statistics.median(client_ms):.2f}"
        )


class Trial:
    """Sender and receiver on one connection."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._store = psutil.Process(client.info()["process_id"])
        self._append = client.register_script(_APPEND)
        self._bodies = [os.urandom(_ENTRY) for _ in range(_ENTRIES)]
        self._ring = mmap.mmap(-1, _RING)
        self._at = 0

    def run(self, way: str, rounds: int) -> tuple[float, float, float]:
        """Return MB/s, and milliseconds of CPU a MB of the store and of this process."""
        store, own, began = self._store_s(), time.process_time(), time.perf_counter()
        received = sum(self._round(way) for _ in range(rounds))
        took, own = time.perf_counter() - began, time.process_time() - own
        size = rounds * _ENTRIES * _ENTRY
        assert received == (0 if way == "nothing" else size)
        megabytes = size / 1e6
        return megabytes / took, 1e3 * (self._store_s() - store) / megabytes, 1e3 * own / megabytes

    def _round(self, way: str) -> int:
        places = [self._write(body) for body in self._bodies] if way == "ring" else []
        self._append(keys=["stream"], args=self._bodies)
        received = sum(len(self._ring[place : place + _ENTRY]) for place in places)
        if way == "XREAD":
            for _, entries in self._client.xread({"stream": "0-0"}):
                received += sum(len(fields[b"f"]) for _, fields in entries)
        self._client.xtrim("stream", maxlen=0, approximate=False)
        return received

    def _write(self, body: bytes) -> int:
        place = self._at
        self._ring[place : place + _ENTRY] = body
        self._at = (place + _ENTRY) % _RING
        return place

    def _store_s(self) -> float:
        times = self._store.cpu_times()
        return float(times.user + times.system)


if __name__ == "__main__":
    main()
