"""A division of executors among bins (nodes, or the workers of one node): the traffic between bins,
the limits, and what it costs. PURE.

An executor is an item, and `item` is its index; `bin_` is the index of a bin. A flow between two
components divides among tasks as a product of two shares, so the traffic of an executor with a bin
is a sum over its flows and not over its partners: a step costs the same for ten executors in a bin
and for thousands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NOWHERE = -1
UNBOUNDED = 1e18  # finite, so that shares of it are numbers
SLACK = 1e-9
# Loads of bins are one number by this norm: near the largest of them, and yet each step that
# unloads one of several equal bins is an improvement. At 4 the mean counts more than the busiest
# bin, at 64 equal bins are a plateau.
_NORM = 64
_MOST_RATIO = 1e4
_TIE = 1e-9  # of the price of balance
_MANY = 1000


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
    staying: Sequence[int] = ()  # workers that stay, by bin
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


class Pulls:
    """Traffic of items with bins, in bytes a second; that with a bin's rack has a weight."""

    def __init__(
        self, items: Sequence[Item], limits: Limits, num_rows: int, rack_weight: float
    ) -> None:
        size = len(limits.slots)
        self._rack_weight = rack_weight
        self._racks: Counts = np.array(limits.racks or [0] * size, dtype=np.int64)
        self._has_racks = rack_weight > 0.0 and len(set(limits.racks)) > 1
        self._rows = np.zeros((num_rows, size))  # shares of flows that each bin has
        self._rack_rows = np.zeros((num_rows, int(self._racks.max(initial=0)) + 1))
        pulls = [_pairs(item.pulls) for item in items]
        self._pulls = [(rows, amounts[:, None]) for rows, amounts in pulls]
        self._shares = [_pairs(item.shares) for item in items]

    def change(self, item: int, bin_: int, sign: int) -> None:
        """Add an item to a bin, or remove it: `sign` is 1 or -1."""
        rows, amounts = self._shares[item]
        self._rows[rows, bin_] += sign * amounts
        if self._has_racks:
            self._rack_rows[rows, self._racks[bin_]] += sign * amounts

    def with_bin(self, item: int, bin_: int) -> float:
        """Return the traffic of an item with a bin."""
        rows, amounts = self._pulls[item]
        pull = float((amounts[:, 0] * self._rows[rows, bin_]).sum())
        if self._has_racks:
            in_rack = (amounts[:, 0] * self._rack_rows[rows, self._racks[bin_]]).sum()
            pull += self._rack_weight * float(in_rack)
        return pull

    def with_bins(self, item: int) -> Numbers:
        """Return the traffic of an item with each bin."""
        rows, amounts = self._pulls[item]
        pulls: Numbers = (amounts * self._rows[rows]).sum(axis=0)
        if self._has_racks:
            in_racks = (amounts * self._rack_rows[rows]).sum(axis=0)
            pulls = pulls + self._rack_weight * in_racks[self._racks]
        return pulls


class Room:
    """Resources that bins have and items take."""

    def __init__(self, items: Sequence[Item], limits: Limits) -> None:
        size = len(limits.slots)
        kinds = len(limits.capacity[0]) if size else 0  # of resources
        self._needs = np.array([item.needs for item in items], dtype=float)
        self._needs = self._needs.reshape(len(items), kinds, 1)
        capacity = np.array(limits.capacity, dtype=float).reshape(size, kinds) + SLACK
        self._capacity = np.ascontiguousarray(capacity.T)
        self._used = np.zeros((kinds, size))

    def change(self, item: int, bin_: int, sign: int) -> None:
        """Add an item to a bin, or remove it: `sign` is 1 or -1."""
        self._used[:, bin_] += sign * self._needs[item, :, 0]

    def may_take(self, item: int) -> Mask:
        """Return the bins that have enough left for an item."""
        mask: Mask = (self._used + self._needs[item] <= self._capacity).all(axis=0)
        return mask

    def fits_swap(self, here: int, one: int, there: int, other: int) -> bool:
        """Return whether `one`, which is here, may change bins with `other`, which is there."""
        more = self._needs[other, :, 0] - self._needs[one, :, 0]
        fits_here = (self._used[:, here] + more <= self._capacity[:, here]).all()
        return bool(fits_here and (self._used[:, there] - more <= self._capacity[:, there]).all())

    def fits(self) -> bool:
        """Return whether no bin has more than it holds: an answer that was loaded may be over."""
        return bool((self._used <= self._capacity * (1.0 + SLACK)).all())

    def suffices(self) -> bool:
        """Return whether all bins together have what the items need, by which most problems without
        an answer are known at once.
        """
        columns = self._needs[:, :, 0].T.tolist()
        pairs = zip(columns, self._capacity, strict=True)
        return all(sum(column) <= float(most.sum()) for column, most in pairs)

    def left(self) -> Numbers:
        """Return the share of each bin that is free, of the resource of which least is."""
        left: Numbers = ((self._capacity - self._used) / self._capacity).min(axis=0, initial=1.0)
        return left

    def sizes(self) -> list[float]:
        """Return the need of each item as a share of the largest bin, of the resource of which it
        takes most.
        """
        sizes = self._needs / self._capacity.max(axis=1, initial=SLACK, keepdims=True)
        return list(sizes.max(axis=(1, 2), initial=0.0))


class Workers:
    """Workers that bins must and can have for their items; a worker takes one of a bin's slots."""

    def __init__(self, items: Sequence[Item], limits: Limits) -> None:
        size = len(limits.slots)
        self._items = items
        self._limits = limits
        self._slots: Counts = np.array(limits.slots, dtype=np.int64)
        self._staying: Counts = np.array(limits.staying or [0] * size, dtype=np.int64)
        self.num_items: Counts = np.zeros(size, dtype=np.int64)
        self._free: Counts = np.zeros(size, dtype=np.int64)  # items that are not locked
        self._load = np.zeros(size)  # of the items
        self._of_component = np.zeros((_components(items, limits), size), dtype=np.int64)
        self._least_by_bin: Counts = self._staying.copy()
        self._least = int(self._staying.sum())
        self._most = int(np.minimum(self._slots, self._staying).sum())
        self._num_used = 0  # bins
        self._num_colours: dict[tuple[int, ...], int] = {}  # workers for components, once counted

    def change(self, item: int, bin_: int, sign: int, is_locked: bool) -> None:
        """Add an item to a bin, or remove it: `sign` is 1 or -1."""
        self._load[bin_] += sign * self._items[item].load
        self._of_component[self._items[item].component, bin_] += sign
        staying, slots = int(self._staying[bin_]), int(self._slots[bin_])
        before, free = int(self.num_items[bin_]), int(self._free[bin_])
        after, still = before + sign, free if is_locked else free + sign
        self.num_items[bin_], self._free[bin_] = after, still
        self._most += min(slots, staying + still) - min(slots, staying + free)
        by_load = ceil(float(self._load[bin_]) / self._limits.worker_load - SLACK)
        least = max(staying, int(after > 0), by_load, self._for_components(bin_))
        self._least += least - int(self._least_by_bin[bin_])
        self._least_by_bin[bin_] = least
        self._num_used += (after > 0) - (before > 0)

    def _for_components(self, bin_: int, more: int = NOWHERE) -> int:
        """Return how many workers suffice for the components of a bin of which some may not share
        one, also with one more component.
        """
        apart = self._limits.apart
        if not apart:
            return 0
        parts = {part for part in apart if self._of_component[part, bin_]}
        key = tuple(sorted(parts | {more} if more != NOWHERE else parts))
        if key not in self._num_colours:
            self._num_colours[key] = 1 + max(coloured(key, apart).values(), default=-1)
        return self._num_colours[key]

    def may_take(self, item: int, left: int) -> Mask:
        """Return the bins that may take an item, while `left` more have no bin."""
        limits = self._limits
        component = self._items[item].component
        least = self._least_with(item)
        mask: Mask = least <= self._slots
        mask &= self._least - self._least_by_bin + least <= limits.workers
        if self._most + left < limits.workers:
            # one worker more must be made where it comes to
            if self._most + left + 1 < limits.workers:
                mask[:] = False
            mask &= self._staying + self._free < self._slots
        if self._num_used >= limits.most_bins:
            mask &= self.num_items > 0
        elif self._num_used + 1 == min(limits.most_bins, limits.workers):
            # the last bin that may be opened must bring the slots that are still wanted
            is_used = self.num_items > 0
            mask &= is_used | (self._slots[is_used].sum() + self._slots >= limits.workers)
        if component in limits.most_of_component:
            mask &= self._of_component[component] < limits.most_of_component[component]
        return mask

    def _least_with(self, item: int) -> Counts:
        """Return how many workers each bin must have once it has an item more."""
        limits = self._limits
        component = self._items[item].component
        least: Counts = np.maximum(self._least_by_bin, 1)
        if limits.worker_load < UNBOUNDED:
            loads = self._load + self._items[item].load
            least = np.maximum(least, np.ceil(loads / limits.worker_load - SLACK).astype(np.int64))
        if others := limits.apart.get(component):
            hostile = (self._of_component[sorted(others)] > 0).any(axis=0)
            for bin_ in np.flatnonzero(hostile & (self._of_component[component] == 0)):
                least[bin_] = max(least[bin_], self._for_components(int(bin_), component))
        return least

    def can_be_made(self) -> bool:
        """Return whether the bins make the wanted number of workers, and are not too many."""
        makes_workers = self._least <= self._limits.workers <= self._most
        return makes_workers and self._num_used <= self._limits.most_bins


class Division:
    """Bins of items, their cost, and the bins that may take an item."""

    def __init__(
        self, items: Sequence[Item], limits: Limits, num_rows: int, weights: Weights
    ) -> None:
        size = len(limits.slots)
        self.items = items
        self.weights = weights
        self.bins = [NOWHERE] * len(items)
        self.homes = [NOWHERE] * len(items)  # bins that it costs nothing to be in
        self.is_locked = [False] * len(items)
        self.value = 0.0  # bytes a second inside bins (and, weighted, inside racks)
        self.pulls = Pulls(items, limits, num_rows, weights.rack)
        self.room = Room(items, limits)
        self._workers = Workers(items, limits)
        self._moved = 0.0
        self._strength = np.array(limits.strength, dtype=float)
        self._load = np.array(limits.base_load or [0.0] * size, dtype=float)
        self._silent: Counts = np.zeros(size, dtype=np.int64)  # items without traffic
        self._least_load = self._bound_of_load(limits.most_bins)

    def _bound_of_load(self, most_bins: int) -> float:
        """Return what the busiest bin's load cannot fall below."""
        loads = [item.load for item in self.items]
        strongest = np.sort(self._strength)[::-1][:most_bins]
        mean = (sum(loads) + float(self._load.sum())) / max(float(strongest.sum()), SLACK)
        largest = max(loads, default=0.0) / max(float(strongest.max(initial=0.0)), SLACK)
        return max(mean, largest) or 1.0

    # -- changes -----------------------------------------------------------------------------------

    def put(self, item: int, bin_: int) -> None:
        """Put an item that is nowhere into a bin."""
        self.value += self.pulls.with_bin(item, bin_)
        self._change(item, bin_, 1)
        self.bins[item] = bin_

    def take(self, item: int) -> int:
        """Take an item out of its bin, which is returned."""
        bin_ = self.bins[item]
        self._change(item, bin_, -1)
        self.value -= self.pulls.with_bin(item, bin_)
        self.bins[item] = NOWHERE
        return bin_

    def _change(self, item: int, bin_: int, sign: int) -> None:
        record = self.items[item]
        self.pulls.change(item, bin_, sign)
        self.room.change(item, bin_, sign)
        self._workers.change(item, bin_, sign, self.is_locked[item])
        self._load[bin_] += sign * record.load
        self._silent[bin_] += 0 if record.pulls else sign
        if self.homes[item] not in (NOWHERE, bin_):
            self._moved += sign * record.move_cost

    def lock(self, item: int, bin_: int) -> None:
        """Put an item into a bin for good, whether it fits or not."""
        self.is_locked[item] = True
        self.put(item, bin_)

    def clear(self) -> None:
        """Take all items out that are not locked."""
        self.load_answer([NOWHERE] * len(self.bins))

    def load_answer(self, bins: Sequence[int]) -> None:
        """Move the items that are not locked to the bins of an answer."""
        moves = [
            item
            for item, bin_ in enumerate(bins)
            if bin_ != self.bins[item] and not self.is_locked[item]
        ]
        for item in moves:
            if self.bins[item] != NOWHERE:
                self.take(item)
        for item in moves:
            if bins[item] != NOWHERE:
                self.put(item, bins[item])

    # -- the objective -----------------------------------------------------------------------------

    def cost(self) -> float:
        """Return the objective; traffic inside bins lowers it."""
        if not self.weights.balance:
            return self._moved - self.value
        return self._moved + self.weights.balance * self._norm(self._load) - self.value

    def _norm(self, loads: Numbers) -> float:
        return float(self._powers(loads).sum() ** (1.0 / _NORM))

    def _powers(self, loads: Numbers) -> Numbers:
        # A bin that is ten thousand times too full is as bad as one that is fuller: more would
        # overflow.
        powers: Numbers = np.minimum(loads / self._strength / self._least_load, _MOST_RATIO)
        for _ in range(6):  # to the 64th
            powers = powers * powers
        return powers

    def costs(self, item: int) -> Numbers:
        """Return the cost of each bin for an item that is nowhere."""
        record, home = self.items[item], self.homes[item]
        costs = -self.pulls.with_bins(item)
        if self.weights.balance:
            powers = self._powers(self._load)
            sums = powers.sum() - powers + self._powers(self._load + record.load)
            costs += self.weights.balance * sums ** (1.0 / _NORM)
        if not record.pulls:
            costs += _TIE * (self.weights.balance or 1.0) * self._turns()
        if record.move_cost and home != NOWHERE:
            costs += record.move_cost
            costs[home] -= record.move_cost
        return costs

    def _turns(self) -> Counts:
        """Return the order of bins for an item without traffic, such as an acker, to which they all
        cost the same: in turn those with others, whose workers it may join.
        """
        turns: Counts = self._silent + _MANY * (self._workers.num_items == self._silent)
        return turns

    def may_pay(self, one: int, other: int, pulls: Mapping[int, Sequence[float]]) -> bool:
        """Return whether a swap could pay, by a bound that costs little: the traffic of the two
        with each other is left out, which would be lost.
        """
        here, there = self.bins[one], self.bins[other]
        if here == there or not self.room.fits_swap(here, one, there, other):
            return False
        gain = pulls[one][there] - pulls[one][here] + pulls[other][here] - pulls[other][there]
        for item, old, new in ((one, here, there), (other, there, here)):
            home, move_cost = self.homes[item], self.items[item].move_cost
            if move_cost and home != NOWHERE:
                gain += move_cost * ((new == home) - (old == home))
        if self.weights.balance:
            more = self.items[other].load - self.items[one].load
            loads = self._load.copy()
            loads[here] += more
            loads[there] -= more
            gain -= self.weights.balance * (self._norm(loads) - self._norm(self._load))
        return gain > SLACK

    # -- the limits --------------------------------------------------------------------------------

    def allowed(self, item: int, left: int = 0) -> Mask:
        """Return the bins that may take an item that is nowhere, while `left` more are nowhere."""
        return self._workers.may_take(item, left) & self.room.may_take(item)

    def is_whole(self) -> bool:
        """Return whether every item has a bin and the workers can be made."""
        return self._workers.can_be_made() and NOWHERE not in self.bins


def coloured(parts: Iterable[int], apart: Mapping[int, frozenset[int]]) -> dict[int, int]:
    """Return a worker's number for each component, such that those that may not share one do not.

    The next component is that whose others have most workers (Brelaz: New methods to color the
    vertices of a graph, CACM 22(4), 1979), which takes two workers wherever two suffice.
    """
    left = dict.fromkeys(sorted(parts))
    worker_by_part: dict[int, int] = {}

    def taken(part: int) -> set[int]:
        others = apart.get(part, ())
        return {worker_by_part[other] for other in others if other in worker_by_part}

    while left:
        part = max(left, key=lambda part: len(taken(part)))
        del left[part]
        workers = taken(part)
        worker_by_part[part] = next(n for n in range(len(workers) + 1) if n not in workers)
    return worker_by_part


def _pairs(pairs: Sequence[tuple[int, float]]) -> tuple[Counts, Numbers]:
    rows = np.array([row for row, _ in pairs], dtype=np.int64)
    return rows, np.array([amount for _, amount in pairs], dtype=float)


def _components(items: Sequence[Item], limits: Limits) -> int:
    named = [item.component for item in items]
    named += [other for others in limits.apart.values() for other in others]
    return max(named, default=0) + 1
