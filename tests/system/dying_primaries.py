"""Deaths of Redis primaries by the clock, under two topologies of a real cluster:
`python -m tests.system.dying_primaries --minutes 10 --every 20`.

Three stores; a topology that is cut into three cells over all of them, and one that lies in one of
them. Each counts numbers, and writes each into a table of PostgreSQL. Workers, slots, Nimbus and
servers are processes. Every `--every` seconds the primary of one store is killed by SIGKILL, in
turn, and comes back with its data. With `--replica` each store has a replica and three Sentinels,
which promote it; every other time it is behind. The cut topology has the durability `replica` then.
In the end no number may lack in a count or table, and none be there twice, unless its sink has said
that its store had lost a tail; exit status 1 otherwise, and when a loss of more than a tail is said.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sparkstorm.client.handle import TopologyHandle
from sparkstorm.common.config import merge
from sparkstorm.connectors import SqlSink
from sparkstorm.driver.cluster import Cluster
from sparkstorm.extensions.embedded.process import free_port
from sparkstorm.testing.servers import PostgresServer
from tests.sim.fail_over import SAID, kill, kill_behind
from tests.sim.watched_redis import Server, WatchedRedis, until
from tests.system.numbered import KEYS, numbered

_SECRET = "of-the-trial"
_TARGET_SECRET = "OF_THE_TARGET"
STORES = ("one", "two", "three")
TOPOLOGIES = {"cut": 3, "whole": 2}
"""Tasks of each component, by topology: the first lies in three stores, the second in one."""
_PER_S = 100.0
# A server is away for so long. Shorter deaths end within one time-out of a worker's connection.
_AWAY_S = (0.3, 4.0)


class Store(Protocol):
    """A store whose server can be killed."""

    @property
    def url(self) -> str:
        """Its URL, without the password."""

    def strike(self, dice: random.Random) -> None:
        """Kill its primary; return when one answers again."""

    def mend(self) -> None:
        """Bring back what the next death needs."""

    def close(self) -> None:
        """End its processes."""


class WholeStore:
    """One server, which comes back with its data, as a service manager would start it."""

    def __init__(self, folder: Path) -> None:
        # as operations.md has it; the last line of a setting counts
        self.server = Server(folder, free_port(), _SECRET, "appendfsync everysec")
        self.server.start()

    @property
    def url(self) -> str:
        """Its URL, without the password."""
        return f"redis://127.0.0.1:{self.server.port}"

    def strike(self, dice: random.Random) -> None:
        """Kill the server, and start it again after a while."""
        self.server.kill()
        time.sleep(dice.uniform(*_AWAY_S))
        self.server.start()

    def mend(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """End the server."""
        self.server.kill()


class PromotingStore:
    """A primary, a replica and three Sentinels; every other time the replica is behind."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.watched = WatchedRedis(folder)
        self._kinds = itertools.cycle((kill, kill_behind))

    @property
    def url(self) -> str:
        """Its URL, without the password."""
        return self.watched.url

    def strike(self, dice: random.Random) -> None:
        """Kill the primary; return when its replica is promoted."""
        primary = self.watched.primary()
        next(self._kinds)(self.watched, primary, dice)
        self.watched.until_promoted(self.watched.other(primary))

    def mend(self) -> None:
        """Bring the former primary back as a replica with a whole copy."""
        self.watched.make_whole()

    def close(self) -> None:
        """End all servers and Sentinels."""
        self.watched.close()


@dataclass
class Trial:
    """A cluster over stores, the topologies in it, their gates, and the tables of their sinks."""

    folder: Path
    stores: Sequence[Store]
    database: PostgresServer
    cluster: Cluster
    durability: str
    handles: dict[str, TopologyHandle] = field(default_factory=dict)

    def submit(self) -> None:
        """Start both topologies, and wait for their first rows."""
        own: dict[str, dict[str, Any]] = {
            "cut": {
                "topology.cells": len(STORES),
                "topology.cells.durability": self.durability,
                "topology.redis.store": ",".join(STORES),
            },
            "whole": {"topology.redis.store": STORES[1]},
        }
        for name, tasks in TOPOLOGIES.items():
            self.database.run(f"CREATE TABLE {name} (number BIGINT NOT NULL, ms BIGINT NOT NULL)")
            sink = SqlSink(self.database.url, name, ["number", "ms"], password_env=_TARGET_SECRET)
            conf: dict[str, Any] = {
                "topology.workers": tasks,
                "topology.acker.executors": tasks,
                "topology.max.spout.pending": 500,
                # a machine that stands still makes a tail of 10 s of one that is short
                "topology.store.tail.secs": 3600,
                **own[name],
            }
            topology = numbered(self.gate(name), _PER_S, tasks, sink)
            self.handles[name] = self.cluster.submit(name, topology, conf)
        for name, tasks in TOPOLOGIES.items():
            for task in range(tasks):
                self.until_written(name, task, 0)

    def gate(self, name: str) -> Path:
        """Return the file in which a topology's last number is to be."""
        return self.folder / f"gate-{name}"

    def until_written(self, name: str, task: int, since_ms: int) -> None:
        """Wait until a table has a number that a task of the source has emitted since then."""
        tasks = TOPOLOGIES[name]
        found = f"SELECT 1 FROM {name} WHERE ms > {since_ms} AND number % {tasks} = {task} LIMIT 1"
        words = lambda: f"{name} does not go on: {self.handles[name].problems()}"  # noqa: E731
        until(lambda: bool(self.database.run(found)), words)

    def strike(self, at: int, dice: random.Random) -> float:
        """Kill the primary of a store; return the seconds until both topologies write what was
        emitted over it since.
        """
        began_s = time.monotonic()
        self.stores[at].strike(dice)
        back_ms = time.time_ns() // 1_000_000
        self.until_written("cut", at, back_ms)  # the source's task of that cell
        if at == 1:
            for task in range(TOPOLOGIES["whole"]):
                self.until_written("whole", task, back_ms)
        seconds = time.monotonic() - began_s
        self.stores[at].mend()
        return seconds

    def losses(self) -> list[str]:
        """Return what the stores have lost, in the topologies' words."""
        return [words for handle in self.handles.values() for words in handle.losses()]

    def finish(self, name: str) -> tuple[int, int]:
        """End a topology's numbers and compare; return how many there were, and how many its table
        has twice, as the sink has said. AssertionError with what was lost and doubled.
        """
        handle, tasks = self.handles[name], TOPOLOGIES[name]
        [(newest,)] = self.database.run(f"SELECT max(number) FROM {name}")
        total = int(newest) + tasks * int(2 * _PER_S)
        self.gate(name).write_text(str(total))
        until(lambda: handle.progress().is_drained, lambda: f"{name}: {handle.problems()}")
        rows = self.database.run(f"SELECT number, count(*) FROM {name} GROUP BY number")
        written = Counter(dict(rows))
        counted = Counter(dict(handle.key_values("count")))
        # A store that lost its tail has its sink write that again, which it says.
        is_said = any(SAID in error.text for error in handle.errors("sink"))
        again = written.total() - len(written) if is_said else 0
        faults = [
            *differences(
                "table", Counter(range(total)), Counter({*written}) if is_said else written
            ),
            *differences("count", Counter(number % KEYS for number in range(total)), counted),
        ]
        assert not faults, f"{name}: {'; '.join(faults)}; {self.losses()}"
        return total, again


def differences(where: str, expected: Counter[int], found: Counter[int]) -> list[str]:
    """Return what was lost and what is there too often, a phrase each."""
    kinds = (("lost", expected - found), ("doubled", found - expected))
    return [
        f"{each.total()} {kind} in the {where}: {sorted(each)[:9]}" for kind, each in kinds if each
    ]


@contextlib.contextmanager
def opened(folder: Path, durability: str) -> Iterator[Trial]:
    """Open the stores, the database and a cluster over them, and start the topologies."""
    with contextlib.ExitStack() as stack:
        stores: list[Store] = []
        for name in STORES:
            kind = PromotingStore if durability == "replica" else WholeStore
            stores.append(kind(folder / name))
            stack.callback(stores[-1].close)
        database = stack.enter_context(PostgresServer(_SECRET))
        secret = folder / "password"
        secret.write_text(_SECRET)
        secret.chmod(0o600)
        os.environ[_TARGET_SECRET] = _SECRET
        os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
        urls = [f"{store.url}#{name}" for store, name in zip(stores, STORES, strict=True)]
        conf = {
            "storm.local.dir": str(folder / "storm"),
            "sparkstorm.supervisors": 1,
            "sparkstorm.slots.per.supervisor": sum(TOPOLOGIES.values()),
            "sparkstorm.redis.urls": urls,
            "sparkstorm.redis.password.file": str(secret),
        }
        cluster = stack.enter_context(Cluster.open(merge(conf)))
        trial = Trial(folder, stores, database, cluster, durability)
        trial.submit()
        yield trial


def run(trial: Trial, minutes: float, every_s: float, dice: random.Random) -> None:
    """Kill by the clock, then compare and print."""
    began_s = time.monotonic()
    took: list[float] = []
    due_s = every_s
    while due_s < 60 * minutes:
        time.sleep(max(0.0, began_s + due_s - time.monotonic()))
        late_s = time.monotonic() - began_s - due_s
        at = len(took) % len(STORES)
        took.append(trial.strike(at, dice))
        late = f" ({late_s:.0f} s late)" if late_s >= 1 else ""
        print(
            f"store {STORES[at]}, at {due_s:g} s{late}: {took[-1]:.1f} s until rows over it went on",
            flush=True,
        )
        due_s += every_s
    totals = {name: trial.finish(name) for name in TOPOLOGIES}
    losses = trial.losses()
    numbers = ", ".join(
        f"{total:,} of {name} (written again, as said: {again:,})"
        for name, (total, again) in totals.items()
    )
    print(
        f"{len(took)} deaths in {minutes:g} min, up to {max(took, default=0.0):.1f} s each: "
        f"numbers {numbers}; lost 0, doubled 0 in counts and tables; losses said: {len(losses)}"
    )
    for words in losses:
        print(words)
    if losses:
        sys.exit(1)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.dying_primaries",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=20, help="seconds between two deaths (20)")
    parser.add_argument("--replica", action="store_true", help="a replica takes over")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="dying-primaries-") as folder,
        opened(Path(folder), "replica" if chosen.replica else "process") as trial,
    ):
        try:
            run(trial, chosen.minutes, chosen.every, random.Random(chosen.seed))
        except AssertionError as fault:
            print(json.dumps(trial.losses(), indent=1))
            sys.exit(str(fault))


if __name__ == "__main__":
    main()
