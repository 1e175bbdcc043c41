"""Latency of the chain of benchmarks/latency.py without the engine: two processes that pass rows
over three hops by commits of the transport alone.

Run: python -m benchmarks.bare_chain [--rate N] [--seconds S] [--runs N] [--compute US]. Each process
reads entries, forwards their rows in one commit as a worker of that chain does (frames, cursors, a
journal entry, a progress record of the usual size) and waits for more. Bolts, acker, counters,
time-outs and the codec are missing, so no engine on this transport has a lower latency. `--compute`:
microseconds for which a process computes before each commit, in place of an engine.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import statistics
import struct
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.latency import quantile
from sparkstorm.embedded import start_redis
from sparkstorm.model.worker_spec import RedisAddress
from sparkstorm.transport.base import Commit, Cursor
from sparkstorm.transport.redis import RedisTransport

# Tasks of each worker: the acker (0), spout (1), second relay (3); first relay (2), sink (4).
_TASKS = ((0, 1, 3), (2, 4))
_NEXT = {2: 3, 3: 4, 4: 0}  # the acker is the end of the chain
# Sizes of the engine's commits in that chain: a frame of one row has 85 bytes, a progress record
# 450, a journal entry of a spout and of an acker some 40 each.
_HEAD = b"SF\x04\x01" + bytes(64)
_PROGRESS = bytes(450)
_JOURNAL = bytes(40)
_ASK_EVERY_S = 0.000_25  # as a worker asks a spout that has rows: worker/spout_turns.py
_STEP_S = 0.000_05
_WARM_S = 1.0


def main() -> None:
    """Print p50 and p99 of each run, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--compute", type=int, default=0)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        server = start_redis(Path(folder), password="bench")
        try:
            address = RedisAddress("127.0.0.1", server.port, "bench")
            for run in range(options.runs):
                steps = chain(
                    address, f"bare-{run}", options.rate, options.seconds, options.compute / 1e6
                )
                found.append((quantile(steps, 0.5), quantile(steps, 0.99)))
                print(f"run {run + 1}: p50 {found[-1][0]:.2f} ms  p99 {found[-1][1]:.2f} ms")
        finally:
            server.stop()
    p50, p99 = (statistics.median(column) for column in zip(*found, strict=True))
    print(f"median of {len(found)}: p50 {p50:.2f} ms  p99 {p99:.2f} ms")


def chain(
    address: RedisAddress, topology_id: str, rate: int, seconds: float, compute_s: float
) -> Counter[int]:
    """Run the chain in two processes; return how many rows took how many steps of 50 us."""
    context = mp.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in _TASKS]
    begins_s = time.time() + 2.0  # by then both have claimed their tasks
    processes = [
        context.Process(
            target=work,
            args=(
                number,
                address,
                topology_id,
                begins_s,
                rate,
                seconds,
                compute_s,
                pipes[number][1],
            ),
        )
        for number in range(len(_TASKS))
    ]
    for process in processes:
        process.start()
    steps: Counter[int] = Counter()
    for receive, _ in pipes:
        steps += receive.recv()
    for process in processes:
        process.join()
    return steps


def work(
    number: int,
    address: RedisAddress,
    topology_id: str,
    begins_s: float,
    rate: int,
    seconds: float,
    compute_s: float,
    results: Connection,
) -> None:
    """Be one of the two workers until the end of the run, and send the steps of its sink."""
    transport = RedisTransport(address, topology_id)
    owner = f"node:{number}"
    tokens = dict.fromkeys(_TASKS[number], 1)
    claim = transport.claim(owner, tokens)
    seq = claim.seq
    after = dict.fromkeys(tokens, "0-0")
    sent = 0
    steps: Counter[int] = Counter()
    watched = sorted(set(range(5)) - set(tokens)) if number else [0, *_TASKS[1]]
    while (now := time.time()) < begins_s + seconds + 1:
        rows: dict[int, list[float]] = {}
        cursors = {}
        drained: dict[int, int] = {}
        for entry in transport.poll(after, 512):
            after[entry.task] = entry.id
            cursors[entry.task] = Cursor(entry.id, 0)
            drained[entry.task] = drained.get(entry.task, 0) + len(entry.data)
            body = entry.data[len(_HEAD) :]
            dues = [*struct.unpack(f"{len(body) // 8}d", body)]
            if entry.task == 4:
                for due in dues:
                    if due >= begins_s + _WARM_S:
                        steps[int((time.time() - due) / _STEP_S)] += 1
            if entry.task in _NEXT:
                rows.setdefault(_NEXT[entry.task], []).extend(dues)
        journal = [(0, _JOURNAL)] if 0 in cursors else []
        if 1 in tokens and begins_s <= now < begins_s + seconds:
            due_count = int((now - begins_s) * rate) + 1
            if due_count > sent:
                rows[2] = [begins_s + n / rate for n in range(sent, due_count)]
                sent = due_count
                journal.append((1, _JOURNAL))
        transport.ask(after, 512)
        if rows or cursors:
            if compute_s:
                until = time.perf_counter() + compute_s
                while time.perf_counter() < until:
                    pass
            seq += 1
            frames = []
            for task, dues in rows.items():
                data = _HEAD + struct.pack(f"{len(dues)}d", *dues)
                frames.append((task, data, len(data)))
            transport.commit(
                Commit(
                    owner,
                    tokens,
                    claim.generation,
                    seq,
                    frames,
                    cursors,
                    drained,
                    journal=journal,
                    progress=_PROGRESS,
                    watched=watched,
                )
            )
        if not transport.has_read:
            transport.wait(1000 * _ASK_EVERY_S if 1 in tokens else 100)
    results.send(steps)
    transport.close()


if __name__ == "__main__":
    main()
