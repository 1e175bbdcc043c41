"""Random histories of a topology over several stores: tuples hop between cells while owners die, stores
are away, restart, or lose their tails. Every tuple must be counted once, or the loss be said; each
rule of extensions/cells/cells.py, left out, must lose or double some in silence.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pytest

from sparkstorm.common.errors import (
    FencedError,
    StoreLostError,
    StoreRolledBackError,
)
from sparkstorm.data_plane.transport.base import Commit, Cursor, Entry, Expected, ForeignProgress
from sparkstorm.data_plane.transport.local import LocalReplica, LocalStore, LocalTransport
from sparkstorm.extensions.cells.cells import STAY_MS, TELL_EVERY_MS, CellsTransport
from sparkstorm.extensions.cells.local_foreign import LocalForeign

CELLS = 3
OWNERS = 2  # in each cell, of a task each
TUPLES = 6  # of each owner
STEPS = 250
TAIL = 6  # commits that a store loses at most


@dataclass(frozen=True, slots=True)
class Rules:
    """The classes of a history: those of the transport, or ones without one of its rules."""

    store: type[LocalStore] = LocalStore
    foreign: type[LocalForeign] = LocalForeign
    transport: type[CellsTransport] = CellsTransport
    loses_tails: bool = False
    # each store has a replica, which may be behind when it is promoted
    fails_over: bool = False
    reads_replicas: bool = False
    frees_by_replicas: bool = False


class Stores(Protocol):
    """The stores of a history, and what its owners share."""

    chance: random.Random
    alarms: int

    def open(self, cell: int) -> CellsTransport:
        """Return the way of a new owner in a cell to all stores."""


class Owner:
    """A worker with one task: it counts tuples that end here, and sends the others on."""

    def __init__(self, history: Stores, cell: int, number: int, tuples: int = TUPLES) -> None:
        self.history = history
        self.cell = cell
        self.tuples = tuples
        self.task = 1 + cell * OWNERS + number
        self.token = 0
        self.start()

    def start(self) -> None:
        """Begin as a new process, which knows nothing."""
        self.transport = self.history.open(self.cell)
        self.token += 1
        self.claim()

    def claim(self) -> None:
        """Claim, and say it when something is gone."""
        tokens = {self.task: self.token}
        name = f"o{self.task}"
        try:
            self.claimed = self.transport.claim(name, tokens, Expected())
        except StoreLostError:
            self.history.alarms += 1
            self.claimed = self.transport.claim(name, tokens, Expected(None, True))
        self.seq = self.claimed.seq
        record = self.claimed.record_by_task[self.task]
        self.read_to = record.cursor.entry
        self.inbox: list[Entry] = []
        self.position = sum(entry.startswith(b"p") for entry in record.journal)

    def step(self) -> None:
        """Read some, consume some, and commit what comes of it."""
        chance = self.history.chance
        try:
            for entry in self.transport.poll({self.task: self.read_to}, chance.randint(1, 3)):
                self.inbox.append(entry)
                if entry.cell is None:
                    self.read_to = entry.id
            done = [self.inbox.pop(0) for _ in range(min(len(self.inbox), chance.randint(0, 4)))]
            self.transport.commit(self.commit_of(done))
            self.seq += 1
        except StoreRolledBackError:
            self.claim()
        except FencedError:
            self.start()

    def commit_of(self, done: Sequence[Entry]) -> Commit:
        """Return the commit of an epoch that has consumed these entries."""
        chance = self.history.chance
        generation = self.claimed.generation
        commit = Commit(f"o{self.task}", {self.task: self.token}, generation, self.seq + 1)
        going = list[bytes]()
        for entry in done:
            root, _, hops = entry.data.partition(b":")
            if int(hops):
                going.append(b"%s:%d" % (root, int(hops) - 1))
            else:
                commit.journal.append((self.task, b"c" + root))
            if entry.cell is None:
                commit.cursors[self.task] = Cursor(entry.id, 0)
                drained = commit.drained_bytes.get(self.task, 0)
                commit.drained_bytes[self.task] = drained + len(entry.data)
            else:
                at = entry.cell, self.task
                size = commit.foreign[at].drained_bytes if at in commit.foreign else 0
                commit.foreign[at] = ForeignProgress(Cursor(entry.id, 0), size + len(entry.data))
        for _ in range(chance.randint(0, 2)):
            if self.position < self.tuples:
                commit.journal.append((self.task, b"p"))
                going.append(b"%d.%d:%d" % (self.task, self.position, chance.randint(0, 4)))
                self.position += 1
        commit.frames = [(chance.randint(1, CELLS * OWNERS), frame, len(frame)) for frame in going]
        return commit


class History:
    """One random history of all cells."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.chance = random.Random(seed)
        self.rules = rules
        self.now_ms = 0.0
        self.alarms = 0
        self.away: set[int] = set()
        self.stores = [rules.store(topology_id="model") for _ in range(CELLS)]
        self.copies: list[list[dict[str, Any]]] = [[each.checkpoint()] for each in self.stores]
        self.owners = [
            Owner(self, cell, number) for cell in range(CELLS) for number in range(OWNERS)
        ]

    def open(self, cell: int) -> CellsTransport:
        """Return the way of a new owner in a cell to all stores."""
        rules = self.rules
        foreign = {
            each: rules.foreign(
                store,
                each,
                lambda each=each: each in self.away,  # type: ignore[misc]
                "replica" if rules.reads_replicas else "process",
            )
            for each, store in enumerate(self.stores)
            if each != cell
        }
        own = LocalTransport(self.stores[cell])
        stored = LocalReplica(self.stores[cell]) if rules.frees_by_replicas else None
        return rules.transport("model", own, foreign, lambda: self.now_ms, stored)

    def run(self) -> None:
        """Run under faults, then until everything has arrived."""
        for _ in range(STEPS):
            self.now_ms += self.chance.choice((1, 5, 40))
            at = self.chance.random()
            owner = self.chance.choice(self.owners)
            if at < 0.8:
                owner.step()
                self.copies[owner.cell].append(self.stores[owner.cell].checkpoint())
                del self.copies[owner.cell][:-TAIL]
            elif at < 0.88:
                owner.transport.wait(0)
            elif at < 0.92:
                owner.start()
            elif at < 0.96:
                self.away ^= {self.chance.randrange(CELLS)}
            elif not self.rules.fails_over:
                self.restart(self.chance.randrange(CELLS))
            if self.rules.fails_over and self.chance.random() < 0.2:
                store = self.chance.choice(self.stores)
                self.chance.choice((store.fall_behind, store.catch_up, store.fail_over))()
        self.away.clear()
        for store in self.stores:
            store.catch_up()
        for _ in range(60):
            self.now_ms += STAY_MS + TELL_EVERY_MS
            for owner in self.owners:
                owner.step()
                owner.transport.wait(0)

    def restart(self, cell: int) -> None:
        """Restart a store: whole, or without its last commits."""
        store = self.stores[cell]
        copies = self.copies[cell]
        kept = self.chance.randrange(len(copies)) if self.rules.loses_tails else None
        store.restore(store.checkpoint() if kept is None else copies[kept])
        self.copies[cell] = [store.checkpoint()]

    @property
    def counted(self) -> Counter[str]:
        """Return how often each tuple was counted."""
        found = Counter[str]()
        for owner in self.owners:
            journal = self.stores[owner.cell].task(owner.task).journal
            found.update(each[1:].decode() for each in journal if each.startswith(b"c"))
        return found

    @property
    def wanted(self) -> set[str]:
        """Return the tuples of all owners."""
        return {f"{owner.task}.{n}" for owner in self.owners for n in range(TUPLES)}


@dataclass(slots=True)
class Sums:
    """Histories that lost a tuple, doubled one, did either in silence, and said a loss."""

    lost: int = 0
    doubled: int = 0
    silent: int = 0
    said: int = 0
    histories: list[History] = field(default_factory=list)


def histories(rules: Rules, seeds: Sequence[int]) -> Sums:
    sums = Sums()
    for seed in seeds:
        history = History(seed, rules)
        history.run()
        counted = history.counted
        is_lost = bool(history.wanted - counted.keys())
        is_doubled = any(count > 1 for count in counted.values())
        sums.lost += is_lost
        sums.doubled += is_doubled
        sums.silent += (is_lost or is_doubled) and not history.alarms
        sums.said += bool(history.alarms)
        sums.histories.append(history)
    return sums


def test_every_tuple_is_counted_once_over_deaths_outages_and_restarts_of_stores() -> None:
    sums = histories(Rules(), range(12))
    assert (sums.lost, sums.doubled, sums.said) == (0, 0, 0)
    for history in sums.histories:
        for cell, store in enumerate(history.stores):
            mine = {owner.task for owner in history.owners if owner.cell == cell}
            for task, keys in store.task_keys.items():
                assert keys.backlog == 0
                assert len(keys.stream) <= (0 if task in mine else 1), "one that is done with stays"


def test_what_a_lost_tail_loses_or_doubles_is_said() -> None:
    sums = histories(Rules(loses_tails=True), range(12))
    assert sums.said and sums.doubled, "a store that goes back alone is not exact"
    assert sums.silent == 0


REPLICAS = Rules(fails_over=True, reads_replicas=True, frees_by_replicas=True)


def test_every_tuple_is_counted_once_over_fail_overs_to_replicas_that_are_behind() -> None:
    sums = histories(REPLICAS, range(24))
    assert (sums.lost, sums.doubled, sums.said) == (0, 0, 0)


class SlowToFree(CellsTransport):
    """Entries stay: no cursor is lost after what it has passed was freed."""

    def _tell(self, has_committed: bool = False) -> None:
        pass


def test_a_lost_tail_doubles_and_loses_nothing_while_nothing_was_freed() -> None:
    sums = histories(Rules(transport=SlowToFree, loses_tails=True), range(12))
    assert (sums.lost, sums.silent) == (0, 0)


# -- each rule left out


class FreesWhatIsRead(CellsTransport):
    """Frees by what was read, not by what was stored."""

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        found = super().poll(after, count)
        for entry in found:
            if entry.cell is not None:
                self._free[entry.cell][entry.task] = entry.id
        return found

    def _tell_cell(self, cell: int, has_committed: bool) -> None:
        read = {(cell, task): Cursor(entry, 0) for task, entry in self._free[cell].items()}
        self._stored = Stored(read)
        super()._tell_cell(cell, has_committed)


@dataclass(frozen=True, slots=True)
class Stored:
    """A store of cursors that nobody has committed."""

    cursors: Any

    def foreign_cursors(self, tasks: Any) -> Any:
        return self.cursors

    def close(self) -> None:
        pass


class CursorLater(CellsTransport):
    """Moves a cursor with the commit after the one that has consumed."""

    late: Mapping[tuple[int, int], ForeignProgress] = {}

    def commit(self, commit: Commit) -> Any:
        foreign = commit.foreign
        commit.foreign = dict(self.late)
        found = super().commit(commit)
        self.late = foreign
        return found

    def claim(self, *arguments: Any) -> Any:
        self.late = {}
        return super().claim(*arguments)


class IdsComeBack(LocalStore):
    """Numbers its entries from what is left of them, as ids by a counter would be."""

    def restore(self, checkpoint: dict[str, object]) -> None:
        restores = self.restores
        super().restore(checkpoint)
        for task, keys in self.checkpoint_of(checkpoint).items():
            self.task(task).last_number = keys
        self.restores = restores + 1

    @staticmethod
    def checkpoint_of(checkpoint: dict[str, Any]) -> dict[int, int]:
        return {task: keys.last_number for task, keys in checkpoint["task_keys"].items()}


class NoWitness(LocalForeign):
    """Does not look whether the entries of cursors are there."""

    def _is_lost(self, store: LocalStore, task: int, cursor: Cursor) -> bool:
        return False


class NoProof(LocalForeign):
    """Trusts a store that was restarted with what was read before."""

    def _prove(self) -> None:
        self._restores = self._store.restores


LEFT_OUT: list[tuple[str, Rules, Callable[[Sums], int]]] = [
    ("freed when read", Rules(transport=FreesWhatIsRead), lambda sums: sums.lost),
    ("cursor in another commit", Rules(transport=CursorLater), lambda sums: sums.doubled),
    ("ids come back", Rules(store=IdsComeBack, loses_tails=True), lambda sums: sums.silent),
    ("no witness", Rules(foreign=NoWitness, loses_tails=True), lambda sums: sums.silent),
    ("no proof", Rules(foreign=NoProof, loses_tails=True), lambda sums: sums.silent),
    ("reads primaries", replace(REPLICAS, reads_replicas=False), lambda sums: sums.doubled),
    ("frees by primaries", replace(REPLICAS, frees_by_replicas=False), lambda sums: sums.lost),
]


@pytest.mark.parametrize(
    ("rules", "harmed"), [each[1:] for each in LEFT_OUT], ids=[each[0] for each in LEFT_OUT]
)
def test_each_rule_left_out_loses_or_doubles_a_tuple(
    rules: Rules, harmed: Callable[[Sums], int]
) -> None:
    assert any(harmed(histories(rules, [seed])) for seed in range(60))
