"""Search for a division of executors among bins (nodes, or the workers of one node) with little
traffic between them. PURE; equal input gives equal output.

Greedy as in T-Storm (Xu et al., ICDCS 2014): executors by descending traffic, each into the bin
that costs least. Then moves and swaps while they pay, and restarts from disturbed answers, up to a
budget. A flow between two components divides among tasks as a product of two shares, so the traffic
of an executor with a bin is a sum over its flows and not over its partners: a step costs the same
for ten executors in a bin and for thousands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
NOWHERE = -1
UNBOUNDED = 1e18  # finite, so that shares of it are numbers
_SLACK = 1e-9
# Loads of bins are one number by this norm: near the largest of them, and yet each step that
# unloads one of several equal bins is an improvement. At 4 the mean counts more than the busiest
# bin, at 64 equal bins are a plateau.
_NORM = 64
_MOST_RATIO = 1e4
_TIE = 1e-9  # of the price of balance
_MANY = 1000
_FEW = 40  # executors up to which all pairs are tried as swaps: a pass of 780
_TRIES = 4  # swaps of an executor with those of a bin that is full, above that number
_FUTILE = 200  # failed swaps, above that number, after which no more are tried in a pass
_LEAST_OF_PASS = 0.002  # share of the cost that a pass must save, above that number, for another
_RESTARTS = 24
_MOST_DISTURBED = 20  # executors at once
_FEASIBLE_STATES = 5_000  # of the search for any answer that fits


@dataclass(frozen=True, slots=True)
class Item:
    """An executor; a flow has two rows, of what is taken in and of what is sent in each bin."""

    needs: Sequence[float]  # of each limited resource
    load: float
    component: int
    pulls: Sequence[tuple[int, float]]  # row, and bytes a second with all that is in it
    shares: Sequence[tuple[int, float]]  # row, and its own part of it
    move_cost: float = 0.0  # bytes a second, anywhere but at home

    @property
    def traffic(self) -> float:
        """Return the bytes a second that it sends and takes in."""
        return sum(pull for _, pull in self.pulls)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bins with their limits, and how many workers all of them shall have together."""

    capacity: Sequence[Sequence[float]]  # by bin and resource
    strength: Sequence[float]  # by which a load is divided
    slots: Sequence[int]
    workers: int
    most_bins: int
    base_load: Sequence[float] = ()  # of others
    kept: Sequence[int] = ()  # workers that stay, by bin
    racks: Sequence[int] = ()
    most_of_component: dict[int, int] = field(default_factory=dict)  # in one bin
    worker_load: float = UNBOUNDED  # of one worker, by which a bin needs so many
    # components that no worker may have both of
    apart: dict[int, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Weights:
    """Prices of the objective, in bytes a second."""

    rack: float = 0.0  # a byte between racks, above one between nodes
    balance: float = 0.0  # the busiest bin's load, as a multiple of the least that there may be


class Chance:
    """Numbers that look drawn and are the same for every run (a linear congruential generator)."""

    def __init__(self) -> None:
        self._state = 0x2545F491

    def below(self, limit: int) -> int:
        """Return a number from 0 to `limit` - 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % limit


class Search:
    """State of a search; `place` has the bin of each item."""

    def __init__(
        self, items: Sequence[Item], limits: Limits, num_rows: int, weights: Weights, budget: int
    ) -> None:
        size = len(limits.slots)
        self.items = items
        self.limits = limits
        self.weights = weights
        self.budget = budget  # looks at an executor that are left
        self._blocked: dict[int, int] = {}  # bins that items would go to if they were not full
        self._num_colours: dict[tuple[int, ...], int] = {}  # workers for components, once counted
        self.place = [NOWHERE] * len(items)
        self.home = [NOWHERE] * len(items)
        self.is_locked = [False] * len(items)
        self.value = 0.0  # bytes a second inside bins (and, weighted, inside racks)
        kinds = len(limits.capacity[0]) if size else 0  # of resources
        self._capacity = [
            np.array([each[kind] for each in limits.capacity], dtype=float) + _SLACK
            for kind in range(kinds)
        ]
        self._used = [np.zeros(size) for _ in range(kinds)]
        self._strength = np.array(limits.strength, dtype=float)
        self._load = np.array(limits.base_load or [0.0] * size, dtype=float)
        self._slots: Counts = np.array(limits.slots, dtype=np.int64)
        self._kept: Counts = np.array(limits.kept or [0] * size, dtype=np.int64)
        self._free: Counts = np.zeros(size, dtype=np.int64)  # items that are not locked
        self._all: Counts = np.zeros(size, dtype=np.int64)
        self._own = np.zeros(size)  # load of the items
        self._silent: Counts = np.zeros(size, dtype=np.int64)  # items without traffic
        self._num_used = 0
        self._lows: Counts = self._kept.copy()  # workers that each bin must have
        self._least_workers = int(self._kept.sum())
        self._most = int(np.minimum(self._slots, self._kept).sum())
        self._moved = 0.0
        self._racks: Counts = np.array(limits.racks or [0] * size, dtype=np.int64)
        self._has_racks = weights.rack > 0.0 and len(set(limits.racks)) > 1
        self._rows = np.zeros((num_rows, size))
        self._rack_rows = np.zeros((num_rows, int(self._racks.max(initial=0)) + 1))
        self._of_component = np.zeros((_components(items, limits), size), dtype=np.int64)
        self._least = self._least_load()
        pulls = [_pairs(each.pulls) for each in items]
        self._pulls = [(rows, amounts[:, None]) for rows, amounts in pulls]
        self._shares = [_pairs(each.shares) for each in items]
        self.order = sorted(range(len(items)), key=lambda at: (-items[at].traffic, at))

    def _least_load(self) -> float:
        """Return what the busiest bin's load cannot fall below."""
        loads = [each.load for each in self.items]
        strongest = np.sort(self._strength)[::-1][: self.limits.most_bins]
        mean = (sum(loads) + float(self._load.sum())) / max(float(strongest.sum()), _SLACK)
        largest = max(loads, default=0.0) / max(float(strongest.max(initial=0.0)), _SLACK)
        return max(mean, largest) or 1.0

    # -- the state ---------------------------------------------------------------------------------

    def put(self, at: int, where: int) -> None:
        """Put an item that is nowhere into a bin."""
        self.value += self._pull(at, where)
        self._change(at, where, 1)
        self.place[at] = where
        if self.home[at] not in (NOWHERE, where):
            self._moved += self.items[at].move_cost

    def take(self, at: int) -> int:
        """Take an item out of its bin, which is returned."""
        where = self.place[at]
        self._change(at, where, -1)
        self.value -= self._pull(at, where)
        self.place[at] = NOWHERE
        if self.home[at] not in (NOWHERE, where):
            self._moved -= self.items[at].move_cost
        return where

    def _change(self, at: int, where: int, sign: int) -> None:
        item = self.items[at]
        rows, amounts = self._shares[at]
        self._rows[rows, where] += sign * amounts
        if self._has_racks:
            self._rack_rows[rows, self._racks[where]] += sign * amounts
        for used, need in zip(self._used, item.needs, strict=True):
            used[where] += sign * need
        self._load[where] += sign * item.load
        self._own[where] += sign * item.load
        self._silent[where] += 0 if item.pulls else sign
        self._of_component[item.component, where] += sign
        self._count(where, sign, self.is_locked[at])

    def _count(self, where: int, sign: int, is_locked: bool) -> None:
        """Count executors, used bins, and how many workers can and must be made."""
        kept, slots = int(self._kept[where]), int(self._slots[where])
        before, free = int(self._all[where]), int(self._free[where])
        after, still = before + sign, free if is_locked else free + sign
        self._all[where], self._free[where] = after, still
        self._most += min(slots, kept + still) - min(slots, kept + free)
        by_load = int(self._workers_for(self._own[where : where + 1])[0])
        low = max(kept, int(after > 0), by_load, self._workers_apart(where))
        self._least_workers += low - int(self._lows[where])
        self._lows[where] = low
        self._num_used += (after > 0) - (before > 0)

    def _workers_for(self, loads: Numbers) -> Counts:
        """Return how many workers carry these loads."""
        return np.ceil(loads / self.limits.worker_load - _SLACK).astype(np.int64)

    def _workers_apart(self, where: int, more: int = NOWHERE) -> int:
        """Return how many workers suffice for the components of a bin of which some may not share
        one, also with one more component.
        """
        if not self.limits.apart:
            return 0
        parts = {each for each in self.limits.apart if self._of_component[each, where]}
        key = tuple(sorted(parts | {more} if more != NOWHERE else parts))
        if key not in self._num_colours:
            self._num_colours[key] = 1 + max(coloured(key, self.limits.apart).values(), default=-1)
        return self._num_colours[key]

    def lock(self, at: int, where: int) -> None:
        """Put an item into a bin for good, whether it fits or not."""
        self.is_locked[at] = True
        self.put(at, where)

    def _pull(self, at: int, where: int) -> float:
        rows, amounts = self._pulls[at]
        pull = float((amounts[:, 0] * self._rows[rows, where]).sum())
        if self._has_racks:
            in_rack = (amounts[:, 0] * self._rack_rows[rows, self._racks[where]]).sum()
            pull += self.weights.rack * float(in_rack)
        return pull

    def _all_pulls(self, at: int) -> Numbers:
        rows, amounts = self._pulls[at]
        pulls: Numbers = (amounts * self._rows[rows]).sum(axis=0)
        if self._has_racks:
            in_racks = (amounts * self._rack_rows[rows]).sum(axis=0)
            pulls = pulls + self.weights.rack * in_racks[self._racks]
        return pulls

    # -- the objective -----------------------------------------------------------------------------

    def cost(self) -> float:
        """Return the objective; traffic inside bins lowers it."""
        if not self.weights.balance:
            return self._moved - self.value
        return self._moved + self.weights.balance * self._norm(self._load) - self.value

    def busiest(self) -> float:
        """Return the load of the busiest bin."""
        return float((self._load / self._strength).max(initial=0.0))

    def _norm(self, loads: Numbers) -> float:
        return float(_power(loads / self._strength / self._least).sum() ** (1.0 / _NORM))

    def costs(self, at: int) -> Numbers:
        """Return the cost of each bin for an item that is nowhere."""
        item = self.items[at]
        costs = -self._all_pulls(at)
        if self.weights.balance:
            powers = _power(self._load / self._strength / self._least)
            more = _power((self._load + item.load) / self._strength / self._least)
            sums = powers.sum() - powers + more
            costs += self.weights.balance * sums ** (1.0 / _NORM)
        if not item.pulls:
            costs += _TIE * (self.weights.balance or 1.0) * self._turns()
        if item.move_cost and self.home[at] != NOWHERE:
            costs += item.move_cost
            costs[self.home[at]] -= item.move_cost
        return costs

    def _turns(self) -> Counts:
        """Return the order of bins for an item without traffic, such as an acker, to which they all
        cost the same: in turn those with others, whose workers it may join.
        """
        turns: Counts = self._silent + _MANY * (self._all == self._silent)
        return turns

    # -- the limits --------------------------------------------------------------------------------

    def allowed(self, at: int, left: int = 0) -> npt.NDArray[np.bool_]:
        """Return the bins that may take an item that is nowhere, while `left` more are nowhere."""
        limits = self.limits
        fits: npt.NDArray[np.bool_] = self._slots > 0
        for used, need, most in zip(self._used, self.items[at].needs, self._capacity, strict=True):
            fits &= used + need <= most
        if self._most + left < limits.workers:
            # one worker more must be made where it comes to
            if self._most + left + 1 < limits.workers:
                fits[:] = False
            fits &= self._kept + self._free < self._slots
        lows = np.maximum(self._lows, 1)
        if limits.worker_load < UNBOUNDED:
            lows = np.maximum(lows, self._workers_for(self._own + self.items[at].load))
        component = self.items[at].component
        if others := limits.apart.get(component):
            hostile = (self._of_component[sorted(others)] > 0).any(axis=0)
            for where in np.flatnonzero(hostile & (self._of_component[component] == 0)):
                lows[where] = max(lows[where], self._workers_apart(int(where), component))
        fits &= lows <= self._slots
        fits &= self._least_workers - self._lows + lows <= limits.workers
        if self._num_used >= limits.most_bins:
            fits &= self._all > 0
        elif self._num_used + 1 == min(limits.most_bins, limits.workers):
            # the last bin that may be opened must bring the slots that are still wanted
            is_used = self._all > 0
            fits &= is_used | (self._slots[is_used].sum() + self._slots >= limits.workers)
        if component in limits.most_of_component:
            fits &= self._of_component[component] < limits.most_of_component[component]
        return fits

    def is_whole(self) -> bool:
        """Return whether every item has a bin and the workers can be made."""
        limits = self.limits
        makes_workers = self._least_workers <= limits.workers <= self._most
        is_counted = makes_workers and self._num_used <= limits.most_bins
        return is_counted and NOWHERE not in self.place

    def fits(self) -> bool:
        """Return whether no bin has more than it holds: an answer that was loaded may be over."""
        pairs = zip(self._used, self._capacity, strict=True)
        return all(bool((used <= most * (1.0 + _SLACK)).all()) for used, most in pairs)

    # -- answers -----------------------------------------------------------------------------------

    def clear(self) -> None:
        """Take all items out that are not locked."""
        for at, where in enumerate(self.place):
            if where != NOWHERE and not self.is_locked[at]:
                self.take(at)

    def load_answer(self, places: Sequence[int]) -> None:
        """Go to an answer."""
        moves = [
            at
            for at, where in enumerate(places)
            if where != self.place[at] and not self.is_locked[at]
        ]
        for at in moves:
            if self.place[at] != NOWHERE:
                self.take(at)
        for at in moves:
            if places[at] != NOWHERE:
                self.put(at, places[at])

    def greedy(self) -> bool:
        """Place all items by descending traffic; whether each found a bin."""
        return self._in_turn(self.order, by_cost=True)

    def pack(self) -> bool:
        """Place all items by descending need, where most is left; whether each found a bin."""
        return self._in_turn(self._by_size(), by_cost=False)

    def _by_size(self) -> list[int]:
        roomiest = [max(float(each.max(initial=_SLACK)), _SLACK) for each in self._capacity]

        def size(at: int) -> float:
            needs = zip(self.items[at].needs, roomiest, strict=True)
            return max((need / most for need, most in needs), default=0.0)

        return sorted(self.order, key=lambda at: -size(at))

    def _in_turn(self, order: Iterable[int], by_cost: bool) -> bool:
        todo = [at for at in order if self.place[at] == NOWHERE]
        for turn, at in enumerate(todo):
            fits = self.allowed(at, len(todo) - turn - 1)
            if not fits.any():
                return False
            costs = self.costs(at) if by_cost else -self._room()
            self.put(at, int(np.where(fits, costs, np.inf).argmin()))
            self.budget -= 1
        return self.is_whole()

    def _room(self) -> Numbers:
        """Return the share of each bin that is free, of the resource of which least is."""
        room = np.ones(len(self.limits.slots))
        for used, most in zip(self._used, self._capacity, strict=True):
            room = np.minimum(room, (most - used) / most)
        return room

    def find_any(self) -> bool:
        """Look for any answer that fits, with steps back; False where there is none, or none was
        found in so many steps.
        """
        self.clear()
        todo = [at for at in self._by_size() if self.place[at] == NOWHERE]
        states = _FEASIBLE_STATES

        def visit(turn: int) -> bool:
            nonlocal states
            if turn == len(todo):
                return self.is_whole()
            at = todo[turn]
            fits = np.flatnonzero(self.allowed(at, len(todo) - turn - 1))
            for where in fits[np.argsort(-self._room()[fits], kind="stable")]:
                states -= 1
                if states < 0:
                    return False
                self.put(at, int(where))
                if visit(turn + 1):
                    return True
                self.take(at)
            return False

        # the depth is that of the calls, too: for large problems greedy and pack have to do
        return len(todo) <= 200 and visit(0)

    def start(self) -> bool:
        """Find a first answer: greedy, else by need, else by search; False where none was found."""
        if not self._has_room():
            return False
        if self.greedy():
            return True
        self.clear()
        return self.pack() or self.find_any()

    def _has_room(self) -> bool:
        """Return whether all bins together have what the items need, by which most problems without
        an answer are known at once.
        """
        return all(
            sum(each.needs[kind] for each in self.items) <= float(most.sum())
            for kind, most in enumerate(self._capacity)
        )

    def improve(self) -> None:
        """Move and swap while it pays and the budget lasts."""
        movable = [at for at in self.order if not self.is_locked[at]]
        while self.budget > 0:
            before = self.cost()
            self._blocked.clear()
            for at in movable:
                self.move(at)
            self._swap_all(movable)
            # A pass over many executors must bring more than one over few.
            least = _SLACK if len(movable) <= _FEW else _LEAST_OF_PASS
            if self.cost() > before - least * (1.0 + abs(before)):
                return

    def move(self, at: int) -> None:
        """Move an item to the bin that costs least."""
        self.budget -= 1
        where = self.take(at)
        wished = self.costs(at)
        costs = np.where(self.allowed(at), wished, np.inf)
        best = int(costs.argmin())
        is_better = costs[best] < wished[where] - _SLACK * (1.0 + abs(float(wished[where])))
        self.put(at, best if is_better else where)
        wanted = int(wished.argmin())
        if wanted != self.place[at]:
            self._blocked[at] = wanted

    def _swap_all(self, movable: Sequence[int]) -> None:
        if len(movable) <= _FEW:
            pulls = self._pulls_of(movable)
            for turn, one in enumerate(movable):
                for other in movable[:turn]:
                    if self._may_pay(one, other, pulls) and self._swap(one, other):
                        pulls = self._pulls_of(movable)
            return
        by_bin: dict[int, list[int]] = {}
        for at in movable:
            by_bin.setdefault(self.place[at], []).append(at)
        futile = 0
        for at, wanted in self._blocked.items():
            # the last ones have least traffic: they give way at the least cost
            for other in by_bin.get(wanted, ())[-_TRIES:]:
                if self.budget <= 0 or futile > _FUTILE:
                    return
                if self.place[other] == wanted and self.place[at] != wanted:
                    may_pay = self._may_pay(at, other, self._pulls_of((at, other)))
                    futile = 0 if may_pay and self._swap(at, other) else futile + 1

    def _pulls_of(self, items: Iterable[int]) -> dict[int, list[float]]:
        return {at: self._all_pulls(at).tolist() for at in items}

    def _may_pay(self, one: int, other: int, pulls: Mapping[int, Sequence[float]]) -> bool:
        """Return whether a swap could pay, by a bound that costs little: the traffic of the two
        with each other is left out, which would be lost.
        """
        here, there = self.place[one], self.place[other]
        if here == there:
            return False
        mine, its = self.items[one], self.items[other]
        for kind, (used, most) in enumerate(zip(self._used, self._capacity, strict=True)):
            more = its.needs[kind] - mine.needs[kind]
            if used[here] + more > most[here] or used[there] - more > most[there]:
                return False
        gain = pulls[one][there] - pulls[one][here] + pulls[other][here] - pulls[other][there]
        for at, item, old, new in ((one, mine, here, there), (other, its, there, here)):
            home = self.home[at]
            if item.move_cost and home != NOWHERE:
                gain += item.move_cost * ((new == home) - (old == home))
        if self.weights.balance:
            more = its.load - mine.load
            loads = self._load.copy()
            loads[here] += more
            loads[there] -= more
            gain -= self.weights.balance * (self._norm(loads) - self._norm(self._load))
        return gain > _SLACK

    def _swap(self, one: int, other: int) -> bool:
        here, there = self.place[one], self.place[other]
        self.budget -= 1
        before = self.cost()
        self.take(one)
        self.take(other)
        if self.allowed(one, 1)[there]:
            self.put(one, there)
            if self.allowed(other)[here]:
                self.put(other, here)
                if self.cost() < before - _SLACK * (1.0 + abs(before)):
                    return True
                self.take(other)
            self.take(one)
        self.put(one, here)
        self.put(other, there)
        return False

    def restart(self, chance: Chance, restarts: int = _RESTARTS) -> None:
        """Improve disturbed answers while the budget lasts, and keep the best."""
        movable = [at for at in self.order if not self.is_locked[at]]
        if len(movable) < 2:
            return
        best, kept = self.cost(), list(self.place)
        for _ in range(restarts):
            if self.budget <= 0:
                break
            if self._disturb(movable, chance):
                self.improve()
                if self.cost() < best - _SLACK * (1.0 + abs(best)):
                    best, kept = self.cost(), list(self.place)
                    continue
            self.load_answer(kept)

    def _disturb(self, movable: Sequence[int], chance: Chance) -> bool:
        """Take some items out, all at once, and put them back anywhere; whether all found a bin."""
        number = 2 + chance.below(min(len(movable), _MOST_DISTURBED) - 1)
        out = {movable[chance.below(len(movable))]: None for _ in range(number)}
        for at in out:
            self.take(at)
        for turn, at in enumerate(out):
            fits = np.flatnonzero(self.allowed(at, len(out) - turn - 1))
            self.budget -= 1
            if not len(fits):
                return False
            self.put(at, int(fits[chance.below(len(fits))]))
        return self.is_whole()


def coloured(parts: Iterable[int], apart: Mapping[int, frozenset[int]]) -> dict[int, int]:
    """Return a worker's number for each component, such that those that may not share one do not.

    The next component is that whose others have most workers (Brelaz: New methods to color the
    vertices of a graph, CACM 22(4), 1979), which takes two workers wherever two suffice.
    """
    left = dict.fromkeys(sorted(parts))
    found: dict[int, int] = {}

    def near(part: int) -> set[int]:
        return {found[each] for each in apart.get(part, ()) if each in found}

    while left:
        part = max(left, key=lambda each: len(near(each)))
        del left[part]
        taken = near(part)
        found[part] = next(each for each in range(len(taken) + 1) if each not in taken)
    return found


def _power(ratios: Numbers) -> Numbers:
    # A bin that is ten thousand times too full is as bad as one that is fuller: more would overflow.
    ratios = np.minimum(ratios, _MOST_RATIO)
    for _ in range(6):  # to the 64th
        ratios = ratios * ratios
    return ratios


def _pairs(pairs: Sequence[tuple[int, float]]) -> tuple[Counts, Numbers]:
    rows = np.array([row for row, _ in pairs], dtype=np.int64)
    return rows, np.array([amount for _, amount in pairs], dtype=float)


def _components(items: Sequence[Item], limits: Limits) -> int:
    named = [each.component for each in items]
    named += [other for others in limits.apart.values() for other in others]
    return max(named, default=0) + 1
