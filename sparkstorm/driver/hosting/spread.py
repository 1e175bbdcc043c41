"""Spread of slots over Spark's executors: equal numbers on every host, and on every executor of a
host. PURE.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter

from sparkstorm.common.spark_versions import Executor


@dataclass(frozen=True, slots=True)
class Spread:
    """Slots (by number) that stay or are to be released, and an executor for each slot that is to
    be started.
    """

    keep: tuple[int, ...]
    release: tuple[int, ...]
    start: tuple[Executor, ...]


def spread(executors: Iterable[Executor], wanted: int, held: Mapping[int, str]) -> Spread:
    """Return how to come from `held` (executor id by slot) to `wanted` slots, spread evenly.

    Hosts differ by one slot at most, unless one has no room for more; so do the executors of a
    host. As many slots stay as that allows. A slot of an executor that is not among `executors` is
    in none of the answer's parts. Hosts with the fewest slots come first in `start`.
    """
    by_id = {executor.id: executor for executor in executors}
    living = {
        slot: by_id[executor_id]
        for slot, executor_id in sorted(held.items())
        if executor_id in by_id
    }
    at_host = Counter(executor.host for executor in living.values())
    at_executor = Counter(executor.id for executor in living.values())
    rooms: Counter[str] = Counter()
    for executor in by_id.values():
        rooms[executor.host] += executor.room
    rooms_at: dict[str, dict[str, int]] = {host: {} for host in rooms}
    for executor in by_id.values():
        rooms_at[executor.host][executor.id] = executor.room

    @cache  # per host and number: the shares of hosts ask for it with every slot
    def stay(host: str, number: int) -> int:
        shares = _shares(rooms_at[host], at_executor, number)
        return sum(min(at_executor[id], count) for id, count in shares.items())

    share: dict[str, int] = {}
    for host, number in _shares(rooms, at_host, wanted, stay).items():
        share |= _shares(rooms_at[host], at_executor, number)
    keep: list[int] = []
    release: list[int] = []
    num_kept: Counter[str] = Counter()
    for slot, executor in living.items():
        is_kept = num_kept[executor.id] < share[executor.id]
        (keep if is_kept else release).append(slot)
        num_kept[executor.id] += is_kept
    return Spread(tuple(keep), tuple(release), tuple(_in_turn(by_id.values(), share, num_kept)))


def _in_turn(
    executors: Iterable[Executor], share: Mapping[str, int], num_kept: Mapping[str, int]
) -> list[Executor]:
    """Return an executor per slot that its share lacks: the emptiest host first, its emptiest
    executor first.
    """
    hosts: Counter[str] = Counter()
    numbered = []
    for executor in executors:
        hosts[executor.host] += num_kept[executor.id]
        numbered += [
            (number, executor) for number in range(num_kept[executor.id], share[executor.id])
        ]
    by_executor = [executor for _, executor in sorted(numbered)]
    by_host = []
    for executor in by_executor:
        by_host.append((hosts[executor.host], executor))
        hosts[executor.host] += 1
    # The sort is stable: executors of hosts that hold as many slots keep their order.
    return [executor for _, executor in sorted(by_host, key=itemgetter(0))]


def _shares(
    rooms: Mapping[str, int],
    held: Mapping[str, int],
    wanted: int,
    stay: Callable[[str, int], int] | None = None,
) -> dict[str, int]:
    """Return a share for each place, `wanted` in all while there is room; what is left over goes
    where more slots stay by it, then to places that hold more.

    `stay` gives how many slots of a place stay with a share. A place that holds no more than
    another may have them on one executor, and lose one with a smaller share: by the number alone,
    slots that were started one after another were released again.
    """
    share = dict.fromkeys(sorted(rooms), 0)

    def order(place: str) -> tuple[int, int, int]:
        number = share[place]
        gain = stay(place, number + 1) - stay(place, number) if stay else 0
        return number, -gain, -held.get(place, 0)

    for _ in range(min(wanted, sum(rooms.values()))):
        share[min((place for place in share if share[place] < rooms[place]), key=order)] += 1
    return share


def is_complete(
    executors: Sequence[Executor],
    slots: int,
    hosts: int,
    expected: int,
    quiet_ms: int,
    settle_ms: int,
) -> bool:
    """Return whether slots may be spread over these executors, or others should be waited for.

    `hosts` and `expected` are the numbers of hosts and executors that are known to be wanted, or 0.
    With neither, executors are complete when no new one has come for `settle_ms`: Spark does not
    report how many a master will start.
    """
    if sum(executor.room for executor in executors) < slots:
        return False
    if hosts:
        return len({executor.host for executor in executors}) >= hosts
    return (0 < expected <= len(executors)) or quiet_ms >= settle_ms
