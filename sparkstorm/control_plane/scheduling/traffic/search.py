"""Search for a division of executors among bins (nodes, or the workers of one node) with little
traffic between them. PURE; equal input gives equal output.

Greedy as in T-Storm (Xu et al., ICDCS 2014): executors by descending traffic, each into the bin
that costs least. Then moves and swaps while they pay, and restarts from disturbed answers, up to a
budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sparkstorm.control_plane.scheduling.traffic.division import NOWHERE, SLACK, Division

_FEW = 40  # executors up to which all pairs are tried as swaps: a pass of 780
_TRIES = 4  # swaps of an executor with those of a bin that is full, above that number
_FUTILE = 200  # failed swaps, above that number, after which no more are tried in a pass
_LEAST_OF_PASS = 0.002  # share of the cost that a pass must save, above that number, for another
_RESTARTS = 24
_MOST_DISTURBED = 20  # executors at once
_FEASIBLE_STATES = 5_000  # of the search for any answer that fits


class Chance:
    """Numbers that look drawn and are the same for every run (a linear congruential generator)."""

    def __init__(self) -> None:
        self._state = 0x2545F491

    def below(self, limit: int) -> int:
        """Return a number from 0 to `limit` - 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % limit


class Search:
    """First answers, and moves and swaps that make the answer of a division better."""

    def __init__(self, division: Division, budget: int) -> None:
        self.division = division
        self.budget = budget  # looks at an executor that are left
        traffic = [item.traffic for item in division.items]
        self._order = sorted(range(len(traffic)), key=lambda item: (-traffic[item], item))
        self._blocked: dict[int, int] = {}  # bins that items would go to if they were not full

    @property
    def movable(self) -> list[int]:
        """Return the items that are not locked, by descending traffic."""
        return [item for item in self._order if not self.division.is_locked[item]]

    # -- first answers -----------------------------------------------------------------------------

    def start(self) -> bool:
        """Find a first answer: greedy, else by need, else by search; False where none was found."""
        if not self.division.room.suffices():
            return False
        if self.greedy():
            return True
        self.division.clear()
        return self.pack() or self.find_any()

    def greedy(self) -> bool:
        """Put all items by descending traffic into bins; whether each has one."""
        return self._in_turn(self._order, by_cost=True)

    def pack(self) -> bool:
        """Put all items by descending need where most is left; whether each has a bin."""
        return self._in_turn(self._by_size(), by_cost=False)

    def _by_size(self) -> list[int]:
        sizes = self.division.room.sizes()
        return sorted(self._order, key=lambda item: -sizes[item])

    def _in_turn(self, order: Iterable[int], by_cost: bool) -> bool:
        division = self.division
        todo = [item for item in order if division.bins[item] == NOWHERE]
        for turn, item in enumerate(todo):
            allowed = division.allowed(item, len(todo) - turn - 1)
            if not allowed.any():
                return False
            costs = division.costs(item) if by_cost else -division.room.left()
            division.put(item, int(np.where(allowed, costs, np.inf).argmin()))
            self.budget -= 1
        return division.is_whole()

    def find_any(self) -> bool:
        """Look for any answer that fits, with steps back; False where there is none, or so many
        steps found none.
        """
        division = self.division
        division.clear()
        todo = [item for item in self._by_size() if division.bins[item] == NOWHERE]
        states = min(_FEASIBLE_STATES, self.budget)

        def visit(turn: int) -> bool:
            nonlocal states
            if turn == len(todo):
                return division.is_whole()
            item = todo[turn]
            allowed = np.flatnonzero(division.allowed(item, len(todo) - turn - 1))
            for bin_ in allowed[np.argsort(-division.room.left()[allowed], kind="stable")]:
                states -= 1
                if states < 0:
                    return False
                division.put(item, int(bin_))
                if visit(turn + 1):
                    return True
                division.take(item)
            return False

        # the depth is that of the calls, too: for large problems greedy and pack have to do
        return len(todo) <= 200 and visit(0)

    # -- better answers ----------------------------------------------------------------------------

    def improve(self) -> None:
        """Move and swap while it pays and the budget lasts."""
        movable = self.movable
        while self.budget > 0:
            before = self.division.cost()
            self._blocked.clear()
            for item in movable:
                self.move(item)
            self._swap_all(movable)
            # A pass over many executors must bring more than one over few.
            least = SLACK if len(movable) <= _FEW else _LEAST_OF_PASS
            if self.division.cost() > before - least * (1.0 + abs(before)):
                return

    def move(self, item: int) -> None:
        """Move an item to the bin that costs least."""
        self.budget -= 1
        division = self.division
        here = division.take(item)
        wished = division.costs(item)
        costs = np.where(division.allowed(item), wished, np.inf)
        best = int(costs.argmin())
        is_better = costs[best] < wished[here] - SLACK * (1.0 + abs(float(wished[here])))
        division.put(item, best if is_better else here)
        wanted = int(wished.argmin())
        if wanted != division.bins[item]:
            self._blocked[item] = wanted

    def _swap_all(self, movable: Sequence[int]) -> None:
        division = self.division
        if len(movable) <= _FEW:
            pulls = self._pulls_of(movable)
            for turn, one in enumerate(movable):
                for other in movable[:turn]:
                    if division.may_pay(one, other, pulls) and self._swap(one, other):
                        pulls = self._pulls_of(movable)
            return
        by_bin: dict[int, list[int]] = {}
        for item in movable:
            by_bin.setdefault(division.bins[item], []).append(item)
        futile = 0
        for item, wanted in self._blocked.items():
            # the last ones have least traffic: they give way at the least cost
            for other in by_bin.get(wanted, ())[-_TRIES:]:
                if self.budget <= 0 or futile > _FUTILE:
                    return
                if division.bins[other] == wanted and division.bins[item] != wanted:
                    may_pay = division.may_pay(item, other, self._pulls_of((item, other)))
                    futile = 0 if may_pay and self._swap(item, other) else futile + 1

    def _pulls_of(self, items: Iterable[int]) -> dict[int, list[float]]:
        return {item: self.division.pulls.with_bins(item).tolist() for item in items}

    def _swap(self, one: int, other: int) -> bool:
        """Swap the bins of two items where it pays; whether it did."""
        division = self.division
        self.budget -= 1
        before = division.cost()
        here, there = division.take(one), division.take(other)
        if division.allowed(one, 1)[there]:
            division.put(one, there)
            if division.allowed(other)[here]:
                division.put(other, here)
                if division.cost() < before - SLACK * (1.0 + abs(before)):
                    return True
                division.take(other)
            division.take(one)
        division.put(one, here)
        division.put(other, there)
        return False

    def restart(self, chance: Chance, restarts: int = _RESTARTS) -> None:
        """Improve disturbed answers while the budget lasts, and go to the best."""
        movable = self.movable
        if len(movable) < 2:
            return
        division = self.division
        best, bins = division.cost(), [*division.bins]
        for _ in range(restarts):
            if self.budget <= 0:
                break
            if self._disturb(movable, chance):
                self.improve()
                if division.cost() < best - SLACK * (1.0 + abs(best)):
                    best, bins = division.cost(), [*division.bins]
                    continue
            division.load_answer(bins)

    def _disturb(self, movable: Sequence[int], chance: Chance) -> bool:
        """Take some items out, all at once, and put them into any bins; whether each has one."""
        division = self.division
        number = 2 + chance.below(min(len(movable), _MOST_DISTURBED) - 1)
        out = {movable[chance.below(len(movable))]: None for _ in range(number)}
        for item in out:
            division.take(item)
        for turn, item in enumerate(out):
            allowed = np.flatnonzero(division.allowed(item, len(out) - turn - 1))
            self.budget -= 1
            if not len(allowed):
                return False
            division.put(item, int(allowed[chance.below(len(allowed))]))
        return division.is_whole()
