"""Choice of receiving tasks for one subscription: a picker maps values to the outgoing row lists of
the chosen tasks.

Pickers return the row list, not a task id, because emitting appends to it; a task's list stays the
same object as long as the worker lives. PURE: first tasks and ties come from the seed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.grouping.hashing import stable_hash
from sparkstorm.common.grouping.load_ring import LoadRing
from sparkstorm.common.model.compiled import core
from sparkstorm.common.model.topology import Grouping

Rows = list[Any]
PickOne = Callable[[tuple[Any, ...]], Rows]
PickMany = Callable[[tuple[Any, ...]], Sequence[Rows]]

# Keys remembered per subscription where the core does not hash each row's: of ranges, and without the
# core. They are the first ones, which the frequent ones are among. Few, since a large cache misses
# the processor's caches and is then slower than the hash. It is emptied after so many misses per
# key, for keys that change with time.
_CACHED_KEYS = 1 << 11
_MISSES_PER_KEY = 64
# Rows of a local shuffle that lie together for one task. A turn of a bolt costs some 10 us next to
# its rows: with 16 rows for each of 32 tasks that was a sixth of a word's CPU. Runs of 32 make twice
# as many turns (1.09 of the CPU); with 128 few tasks get the rows of a spout's turn of 512 (1.05).
LOCAL_RUN = 64
# kinds of the compiled core's pickers
_ONE, _IN_TURN, _BY_KEY, _IN_RUNS, _BY_HASH, _BY_TWO = range(6)


@dataclass(slots=True)
class Target:
    """A receiving task and its list of outgoing rows; `run`: how many a local shuffle gives it one
    after the other.
    """

    task: int
    rows: Rows
    is_local: bool
    run: int = 1


MakeTarget = Callable[[str, int], Target]
"""Returns the target of a channel (a stream's name in frames) and a task."""


def own_targets(local_tasks: frozenset[int]) -> MakeTarget:
    """Return a maker of targets with lists of their own."""
    return lambda channel, task: Target(task, [], task in local_tasks)


def is_single(grouping: Grouping) -> bool:
    """Return whether a grouping always picks exactly one task."""
    return grouping.kind not in ("all", "custom", "direct")


def ring_of(grouping: Grouping, targets: Sequence[Target], seed: int) -> LoadRing | None:
    """Return the turns of a load-aware shuffle; None for another grouping."""
    is_one = grouping.kind == "load_aware_shuffle"
    return (
        LoadRing({target.task: target.rows for target in targets}, seed)
        if is_one and targets
        else None
    )


def place_of(grouping: Grouping, count: int, where: str = "") -> Callable[[Any], int]:
    """Return the function from a key to the place of its task among so many; `grouping` is by
    fields or by key ranges, `where` the sender's component and stream, for errors.
    """
    if grouping.kind != "key_range":
        return lambda key: stable_hash(key) % count
    prefix = f"{where}, field '{grouping.fields[0]}': " if where else ""

    def place(key: Any) -> int:
        try:
            return int(grouping.custom.place(key, count))
        except InvalidTopologyError as error:
            raise InvalidTopologyError(f"{prefix}{error}") from error

    return place


def pick_one(
    grouping: Grouping,
    positions: Sequence[int],
    targets: Sequence[Target],
    seed: int,
    ring: LoadRing | None = None,
    where: str = "",
) -> PickOne:
    """Return the picker of a grouping that chooses one task; targets are sorted by task id, `ring`
    is that of `ring_of`, `where` the sender's component and stream, for errors.
    """
    rows = [t.rows for t in targets]
    if ring is not None:
        return _by_turns(ring.turns)
    match grouping.kind:
        case "global":
            return always(rows[0])
        case "fields" if len(rows) == 1:
            return always(rows[0])
        case "fields":
            by_key = _by_key(positions, rows, place_of(grouping, len(rows)))
            return (
                by_key
                if core is None
                else core.Pick(_BY_HASH, 0, tuple(rows), by_key, tuple(positions))
            )
        case "key_range":
            return _by_key(positions, rows, place_of(grouping, len(rows), where))
        case "partial_key":
            return _by_least_used(positions, rows)
        case "local_or_shuffle":
            local = [t for t in targets if t.is_local]
            if local and (run := min(t.run for t in local)) > 1:
                return _in_runs([t.rows for t in local], seed, run)
            return _in_turn([t.rows for t in local] or rows, seed)
        case _:
            return _in_turn(rows, seed)


def pick_many(grouping: Grouping, task: int, targets: Sequence[Target]) -> PickMany:
    """Return the picker of a grouping that chooses any number of tasks; `task` is the sender's."""
    rows = [t.rows for t in targets]
    if grouping.kind == "all":
        return lambda values: rows
    rows_by_task = {t.task: t.rows for t in targets}
    prepare = getattr(grouping.custom, "prepare", None)
    if callable(prepare):
        prepare(sorted(rows_by_task))
    return lambda values: _all_chosen(rows_by_task, grouping.custom.choose_tasks(task, values))


def always(rows: Rows) -> PickOne:
    """Return the picker of one list for all values."""
    if core is not None:
        return core.Pick(_ONE, 0, rows, None)  # type: ignore[no-any-return]
    return lambda values: rows


def _in_turn(rows: Sequence[Rows], seed: int) -> PickOne:
    start = seed % len(rows)
    return _by_turns(cycle([*rows[start:], *rows[:start]]))


def _in_runs(rows: Sequence[Rows], seed: int, most: int) -> PickOne:
    """Return a picker of lists in turn that stays with one while rows lie in it, up to `most`.

    A list that its task has emptied is left: rows that come one by one go in turn. Each list gets
    `most` rows before one gets more, so that a task that never empties its list has no more rows
    than the others.
    """
    if len(rows) == 1:
        return always(rows[0])
    count = len(rows)
    index = (seed - 1) % count
    if core is not None:
        return core.Pick(_IN_RUNS, index, tuple(rows), most)  # type: ignore[no-any-return]
    room = [most] * count

    def pick(values: tuple[Any, ...]) -> Rows:
        nonlocal index
        if not rows[index] or not room[index]:
            if not any(room):
                room[:] = [most] * count
            index = next(n % count for n in range(index + 1, index + 1 + count) if room[n % count])
        room[index] -= 1
        return rows[index]

    return pick


def _by_turns(turns: Iterator[Rows]) -> PickOne:
    if core is not None:
        return core.Pick(_IN_TURN, 0, turns, None)  # type: ignore[no-any-return]
    return lambda values: next(turns)


def _by_key(positions: Sequence[int], rows: Sequence[Rows], place: Callable[[Any], int]) -> PickOne:
    cached = dict[Any, Rows]()
    misses = 0
    find = cached.get

    def choose(key: Any) -> Rows:
        nonlocal misses
        chosen = rows[place(key)]
        if len(cached) >= _CACHED_KEYS:
            misses += 1
            if misses < _CACHED_KEYS * _MISSES_PER_KEY:
                return chosen
            misses = 0
            cached.clear()
        with contextlib.suppress(TypeError):  # a list or mapping cannot be a key of the cache
            cached[key] = chosen
        return chosen

    def pick(key: Any) -> Rows:
        try:
            chosen = find(key)
        except TypeError:
            chosen = None
        return choose(key) if chosen is None else chosen

    def pick_by_one(values: tuple[Any, ...]) -> Rows:
        key = values[position]
        try:
            chosen = find(key)
        except TypeError:
            chosen = None
        return choose(key) if chosen is None else chosen

    position = positions[0]
    if len(positions) == 1:
        return pick_by_one if core is None else core.Pick(_BY_KEY, position, cached, choose)
    return lambda values: pick(tuple([values[p] for p in positions]))


def _by_least_used(positions: Sequence[int], rows: Sequence[Rows]) -> PickOne:
    used = [0] * len(rows)

    def candidates(values: tuple[Any, ...]) -> tuple[int, int]:
        key = [values[p] for p in positions]
        first = stable_hash(key) % len(rows)
        second = stable_hash([key, "second"]) % len(rows)
        return first, second if second != first else (first + 1) % len(rows)

    def pick(values: tuple[Any, ...]) -> Rows:
        first, second = candidates(values)
        chosen = first if used[first] <= used[second] else second
        used[chosen] += 1
        return rows[chosen]

    return (
        pick if core is None else core.Pick(_BY_TWO, 0, tuple(rows), candidates, tuple(positions))
    )


def _all_chosen(rows_by_task: dict[int, Rows], tasks: Any) -> list[Rows]:
    if isinstance(tasks, str) or not isinstance(tasks, Iterable):
        raise InvalidTopologyError(
            f"a custom grouping must return a list of task ids, not {tasks!r:.80}"
        )
    return [_chosen(rows_by_task, task) for task in tasks]


def _chosen(rows_by_task: dict[int, Rows], task: int) -> Rows:
    try:
        return rows_by_task[task]
    except (KeyError, TypeError):
        raise InvalidTopologyError(
            f"a custom grouping chose task {task!r}; the subscriber's tasks are {sorted(rows_by_task)}"
        ) from None
