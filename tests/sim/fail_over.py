"""Fail-overs of a real Redis under load, again and again: `python -m tests.sim.fail_over --times
100`.

A primary is killed, killed while its replica is behind, frozen, or told to hand over; three
Sentinels promote the replica. Workers of a simulated cluster commit over real connections
meanwhile, and what they count must be exact in the end. With `--target` a sink writes to SQLite,
PostgreSQL or Kafka next to it: every number must be there, and one is there twice only where the
sink has said that the store had lost a tail. With `--minutes` as many topologies as `--stores`, each
in its own process over its own store, run at once, and every `--every` seconds one of
their primaries is killed. With `--upgrade` both servers are replaced, under
load, by each newer version of Redis or Valkey that is found here.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import redis

from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.keys import Keys
from tests.sim.over_redis import KEYS, Numbers, OverRedis
from tests.sim.targets import TARGETS, Target
from tests.sim.watched_redis import MASTER, PLAIN, Guard, Server, WatchedRedis, until
from tests.transport.bare_redis import binaries


class Watched(Protocol):
    """Servers of one store, of which one is the primary at a time."""

    @property
    def address(self) -> RedisAddress: ...
    def primary(self) -> Server: ...
    def other(self, server: Server) -> Server: ...
    def until_promoted(self, server: Server | None = None) -> None: ...
    def make_whole(self) -> None: ...
    def close(self) -> None: ...


Strike = Callable[[Any, Server, random.Random], None]
"""Fault of a primary that workers commit to; the call returns when the replica is or will be
promoted.
"""
_LONGEST_LAG_S = 0.6  # a replica that was cut off comes back within a second
_ENDLESS = 1 << 62
# A Sentinel gives a promotion up in silence when the machine has no time for it. Half would be
# within the time of one, and ask for the way back.
_ASKED_AGAIN_S = 8.0
SAID = "the target has epochs up to"


def kill(watched: Watched, primary: Server, dice: random.Random) -> None:
    """The primary dies; its replica has all, or nearly."""
    primary.kill()


def kill_behind(watched: Watched, primary: Server, dice: random.Random) -> None:
    """The primary dies after its replica was cut off for a while: what was written since then is
    lost.
    """
    with primary.client() as client:
        client.client_kill_filter(_type="replica")
    time.sleep(dice.uniform(0.05, _LONGEST_LAG_S))
    primary.kill()


def freeze(watched: Watched, primary: Server, dice: random.Random) -> None:
    """The primary stands still until the replica is promoted, then goes on as if nothing had
    been.
    """
    primary.freeze()
    try:
        watched.until_promoted(watched.other(primary))
        time.sleep(dice.uniform(0, 0.5))
    finally:
        primary.thaw()


def hand_over(watched: WatchedRedis, primary: Server, dice: random.Random) -> None:
    """A Sentinel is told to promote the replica, as for a new version of the server, until it does;
    the former primary is restarted.
    """
    asked_s = -_ASKED_AGAIN_S

    def is_promoted() -> bool:
        nonlocal asked_s
        if watched.named() not in (None, primary.port):
            return True
        if time.monotonic() - asked_s >= _ASKED_AGAIN_S:
            asked_s = time.monotonic()
            for port in watched.sentinels:
                # refused: another one is at it, or sees no replica yet
                with contextlib.suppress(redis.RedisError), watched.sentinel(port) as client:
                    client.sentinel_failover(MASTER)
                    break
        return False

    until(is_promoted, f"{primary.port} does not hand over")
    watched.until_promoted()
    primary.kill()


def upgrade_to(binary: str) -> Strike:
    """Both servers are replaced by those of another binary: the replica is, then it takes over, and
    the former primary comes back as its replica.
    """

    def strike(watched: WatchedRedis, primary: Server, dice: random.Random) -> None:
        replica = watched.other(primary)
        replica.kill()
        replica.binary = binary
        watched.make_whole()
        hand_over(watched, primary, dice)
        primary.binary = binary

    return strike


def versions_here() -> dict[str, str]:
    """Return the binaries found here by their versions, Redis before Valkey, older ones first."""

    def age(version: str) -> tuple[bool, list[int]]:
        name, _, number = version.partition("-")
        return name != "redis", [int(part) for part in number.split(".")]

    binary_by_version = binaries()
    return {version: binary_by_version[version] for version in sorted(binary_by_version, key=age)}


KINDS: dict[str, Strike] = {
    "kill": kill,
    "kill behind": kill_behind,
    "freeze": freeze,
    "hand over": hand_over,
}


@dataclass(frozen=True, slots=True)
class Sums:
    """Numbers of a trial that was exact, how often its data were rolled back, and how many rows its
    target has twice, as its sink has said.
    """

    numbers: int
    rolled_back: int
    written_again: int

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.numbers + other.numbers,
            self.rolled_back + other.rolled_back,
            self.written_again + other.written_again,
        )


class Trial:
    """A count under fail-overs, and a sink's target next to it where one is given."""

    def __init__(
        self,
        folder: Path,
        target: Target | None = None,
        guard: Guard = PLAIN,
        watched: Any = None,
    ) -> None:
        """`watched`: the servers (`Watched`); None for a primary and a replica with Sentinels."""
        Numbers.most, Numbers.keys = _ENDLESS, KEYS
        self.target = target
        self.watched = WatchedRedis(folder, guard=guard) if watched is None else watched
        sink = target.sink if target is not None else None
        self.running = OverRedis(self.watched.address, sink=sink)
        self.seconds: list[float] = []

    def fail_over(self, kind: Strike, dice: random.Random) -> None:
        """One fail-over while workers commit, and the return of the former primary as a replica."""
        self.running.rounds(10)
        primary = self.watched.primary()
        began = time.monotonic()

        def strike() -> None:
            time.sleep(dice.uniform(0, 0.2))
            kind(self.watched, primary, dice)

        self._meanwhile(strike)  # in a thread, so that it meets commits in any state
        self.watched.until_promoted()
        self.running.rounds(5)
        self.seconds.append(time.monotonic() - began)
        self._meanwhile(self.watched.make_whole)

    def _meanwhile(self, act: Callable[[], object]) -> None:
        faults: list[BaseException] = []

        def run() -> None:
            try:
                act()
            except BaseException as fault:
                faults.append(fault)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            self.running.rounds(2)
        if faults:
            raise faults[0]

    def finish(self) -> Sums:
        """End the numbers and return their sums; AssertionError if not exact."""
        # The target may have numbers of a lost tail, which the source emits again.
        written = self.target.read() if self.target is not None else ()
        Numbers.most = max([self.running.emitted, *(number + 1 for number in written)])
        until(
            self._is_counted,
            lambda: f"{sum(self.running.counted.values())} of {Numbers.most} numbers are counted",
        )
        self.running.rounds(20)
        total = self.running.emitted
        expected = Counter(number % KEYS for number in range(total))
        counted = Counter(self.running.counted)
        lost, doubled = expected - counted, counted - expected
        assert not lost and not doubled, (
            f"lost {lost.total()}, doubled {doubled.total()} of {total}: "
            f"{sorted(lost)[:20]}, {sorted(doubled)[:20]}, deaths {self.running.deaths}"
        )
        with self.watched.primary().client() as client:
            generation = int(client.get(Keys(self.running.topology_id)("generation")) or 0)
        return Sums(total, generation, self._written_again(total))

    def _is_counted(self) -> bool:
        """Let the workers run; return whether they have counted every number."""
        self.running.rounds(20)
        emitted = max(Numbers.most, self.running.emitted)
        counted = sum(self.running.counted.values())
        return counted >= emitted and not any(self.running.reader.backlog().values())

    def _written_again(self, total: int) -> int:
        """Return how many rows the target has more than once; AssertionError when it lacks one, or
        has one twice without a word of the sink.
        """
        if self.target is None:
            return 0
        wanted = set(range(total))
        written = Counter[int]()

        def is_written(target: Target) -> bool:
            self.running.rounds(20)
            written.clear()
            written.update(target.read())
            return written.keys() == wanted

        def fault() -> str:
            lost, foreign = wanted - written.keys(), written.keys() - wanted
            return f"the target lacks {len(lost)} of {total}: {sorted(lost)[:9]}; foreign {len(foreign)}"

        until(partial(is_written, self.target), fault)
        again = written.total() - total
        said = [error for error in self.running.cluster.errors if SAID in error.text]
        assert said or not again, f"the target has {again} rows twice, and the sink said nothing"
        return again

    def close(self) -> None:
        """End everything."""
        self.running.close()
        self.watched.close()
        Numbers.most = Numbers.keys = 6_000


def run_portion(
    kinds: list[str], dice: random.Random, folder: Path, target: str, begin: int
) -> Sums:
    """Run so many fail-overs on servers of their own, compare the sums, and print each."""
    with contextlib.ExitStack() as opened:
        opened_target = opened.enter_context(TARGETS[target](folder)) if target else None
        trial = Trial(folder, opened_target)
        opened.callback(trial.close)
        for number, kind in enumerate(kinds, begin + 1):
            trial.fail_over(KINDS[kind], dice)
            print(f"{number}: {kind}, {trial.seconds[-1]:.1f} s until commits went on", flush=True)
        return trial.finish()


@dataclass(frozen=True, slots=True)
class Schedule:
    """Deaths of primaries by the clock: stores, for how many minutes, seconds between two deaths,
    the sinks' target, and a seed.
    """

    stores: int
    minutes: float
    every_s: float
    target: str
    seed: int


def run_schedule(folder: Path, schedule: Schedule) -> None:
    """Kill primaries of several stores in turn, under a topology each, and compare the sums."""
    with ProcessPoolExecutor(schedule.stores, get_context("spawn")) as pool:
        done = list(pool.map(partial(run_store, folder, schedule), range(schedule.stores)))
    sums = sum((portion for portion, _ in done), Sums(0, 0, 0))
    kinds = sum((kills for _, kills in done), Counter[str]())
    print(
        f"{schedule.stores} stores and topologies, {schedule.minutes:g} min, a death every "
        f"{schedule.every_s:g} s: {_text_of(sums, kinds, schedule.target)}"
    )


def run_store(folder: Path, schedule: Schedule, number: int) -> tuple[Sums, Counter[str]]:
    """Run the topology of one store, whose primary is killed when its turn comes; return its sums
    and the deaths.
    """
    store_folder = folder / str(number)
    store_folder.mkdir()
    dice = random.Random(f"{schedule.seed} {number}")
    kills = Counter[str]()
    with contextlib.ExitStack() as opened:
        opened_target = (
            opened.enter_context(TARGETS[schedule.target](store_folder))
            if schedule.target
            else None
        )
        trial = Trial(store_folder, opened_target)
        opened.callback(trial.close)
        began = time.monotonic()
        due_s = schedule.every_s * (number + 1)
        while due_s < 60 * schedule.minutes:
            while time.monotonic() - began < due_s:
                trial.running.rounds(10)
            kind = ("kill", "kill behind")[kills.total() % 2]
            late_s = time.monotonic() - began - due_s
            trial.fail_over(KINDS[kind], dice)
            kills[kind] += 1
            print(
                f"store {number}, at {due_s:g} s ({late_s:.0f} s late): {kind}, "
                f"{trial.seconds[-1]:.1f} s until commits went on",
                flush=True,
            )
            due_s += schedule.every_s * schedule.stores
        return trial.finish(), kills


def run_upgrades(folder: Path, dice: random.Random) -> None:
    """Replace both servers by each newer version, under load, and compare the sums."""
    oldest, *newer = versions_here().items()
    trial = Trial(folder, guard=Guard(binary=oldest[1]))
    try:
        for version, binary in newer:
            trial.fail_over(upgrade_to(binary), dice)
            print(f"to {version}: {trial.seconds[-1]:.1f} s until commits went on", flush=True)
        sums = trial.finish()
    finally:
        trial.close()
    names = ", ".join([oldest[0], *(version for version, _ in newer)])
    print(
        f"{names}: {sums.numbers:,} numbers, lost 0, doubled 0; data rolled back {sums.rolled_back} times"
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.fail_over", description=__doc__)
    parser.add_argument("--times", type=int, default=100, help="fail-overs (100)")
    parser.add_argument(
        "--portion", type=int, default=20, help="so many on the same servers, then sums (20)"
    )
    parser.add_argument("--target", choices=[*TARGETS], default="", help="a sink's, beside it")
    parser.add_argument("--minutes", type=float, default=0, help="deaths by the clock instead")
    parser.add_argument("--stores", type=int, default=3, help="with --minutes (3)")
    parser.add_argument("--every", type=float, default=20, help="seconds, with --minutes (20)")
    parser.add_argument("--upgrade", action="store_true", help="through the versions found here")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    dice = random.Random(chosen.seed)
    kinds = [list(KINDS)[number % len(KINDS)] for number in range(chosen.times)]
    with tempfile.TemporaryDirectory(prefix="fail-over-") as folder:
        if chosen.upgrade:
            run_upgrades(Path(folder), dice)
            return
        if chosen.minutes:
            own = (chosen.stores, chosen.minutes, chosen.every, chosen.target, chosen.seed)
            run_schedule(Path(folder), Schedule(*own))
            return
        sums = Sums(0, 0, 0)
        for begin in range(0, chosen.times, chosen.portion):
            portion_folder = Path(folder, str(begin))
            portion_folder.mkdir()
            some = kinds[begin : begin + chosen.portion]
            sums += run_portion(some, dice, portion_folder, chosen.target, begin)
            done = Counter(kinds[: begin + len(some)])
            print(_text_of(sums, done, chosen.target), flush=True)


def _text_of(sums: Sums, done: Counter[str], target: str) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in done.items())
    told = f"{target} has all, {sums.written_again} twice as its sink said; " if target else ""
    return (
        f"{done.total()} fail-overs ({kinds}): {sums.numbers:,} numbers, lost 0, doubled 0; "
        f"{told}data rolled back {sums.rolled_back} times"
    )


if __name__ == "__main__":
    main()
