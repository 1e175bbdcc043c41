"""Fail-overs of a real Redis under load, again and again: `python -m tests.sim.fail_over --times
100`.

A primary is killed, killed while its replica is behind, frozen, or told to hand over; three
Sentinels promote the replica. Workers of a simulated cluster commit over real connections
meanwhile, and what they count must be exact in the end.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import redis

from tests.sim.over_redis import KEYS, Numbers, OverRedis
from tests.sim.watched_redis import MASTER, Server, WatchedRedis

_LONGEST_LAG_S = 0.6  # a replica that was cut off comes back within a second
_ENDLESS = 1 << 62


def kill(watched: WatchedRedis, primary: Server, dice: random.Random) -> None:
    """The primary dies; its replica has all, or nearly."""
    primary.kill()


def kill_behind(watched: WatchedRedis, primary: Server, dice: random.Random) -> None:
    """The primary dies after its replica was cut off for a while: what was written since then is
    lost.
    """
    with primary.client() as client:
        client.client_kill_filter(_type="replica")
    time.sleep(dice.uniform(0.05, _LONGEST_LAG_S))
    primary.kill()


def freeze(watched: WatchedRedis, primary: Server, dice: random.Random) -> None:
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
    """A Sentinel is told to promote the replica, as for a new version of the server; the former
    primary is restarted.
    """
    for port in watched.sentinels:
        with redis.Redis(port=port, socket_timeout=5) as client:
            try:
                client.sentinel_failover(MASTER)
                break
            except redis.ResponseError:  # another one is at it
                continue
    watched.until_promoted(watched.other(primary))
    primary.kill()


KINDS: dict[str, Callable[[WatchedRedis, Server, random.Random], None]] = {
    "kill": kill,
    "kill behind": kill_behind,
    "freeze": freeze,
    "hand over": hand_over,
}


class Trial:
    """A count under fail-overs."""

    def __init__(self, folder: Path) -> None:
        Numbers.most, Numbers.keys = _ENDLESS, KEYS
        self.watched = WatchedRedis(folder)
        self.running = OverRedis(self.watched.address)
        self.seconds: list[float] = []

    def fail_over(self, kind: str, dice: random.Random) -> None:
        """One fail-over while workers commit, and the return of the former primary as a replica."""
        self.running.rounds(10)
        primary = self.watched.primary()
        began = time.monotonic()

        def strike() -> None:
            time.sleep(dice.uniform(0, 0.2))
            KINDS[kind](self.watched, primary, dice)

        self._meanwhile(strike)  # in a thread, so that it meets commits in any state
        self.watched.until_promoted(self.watched.other(primary))
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

    def finish(self) -> tuple[int, int]:
        """End the numbers, and return how many there were and how often data had been rolled back;
        AssertionError if not exact.
        """
        Numbers.most = self.running.emitted
        deadline = time.monotonic() + 300
        while True:
            self.running.rounds(20)
            emitted, counted = self.running.emitted, self.running.counted
            if sum(counted.values()) >= emitted and not any(self.running.reader.backlog().values()):
                break
            assert time.monotonic() < deadline, (
                f"{sum(counted.values())} of {emitted} numbers are counted"
            )
        self.running.rounds(20)
        total = self.running.emitted
        expected = Counter(number % KEYS for number in range(total))
        found = Counter(self.running.counted)
        assert found == expected, (
            f"lost {(expected - found).total()}, doubled {(found - expected).total()} of {total}"
        )
        with self.watched.primary().client() as client:
            generation = int(client.get(f"{{{self.running.topology_id}}}:generation") or 0)
        return total, generation

    def close(self) -> None:
        """End everything."""
        self.running.close()
        self.watched.close()
        Numbers.most = Numbers.keys = 6_000


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.fail_over", description=__doc__)
    parser.add_argument("--times", type=int, default=100, help="fail-overs (100)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    dice = random.Random(chosen.seed)
    done: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="fail-over-") as folder:
        trial = Trial(Path(folder))
        try:
            for number in range(chosen.times):
                kind = list(KINDS)[number % len(KINDS)]
                trial.fail_over(kind, dice)
                done[kind] += 1
                print(
                    f"{number + 1}: {kind}, {trial.seconds[-1]:.1f} s until commits went on",
                    flush=True,
                )
            total, generation = trial.finish()
        finally:
            trial.close()
    kinds = ", ".join(f"{count} {kind}" for kind, count in done.items())
    print(
        f"{chosen.times} fail-overs ({kinds}): {total} numbers, lost 0, doubled 0; data rolled back {generation} times"
    )


if __name__ == "__main__":
    main()
