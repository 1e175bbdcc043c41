"""Checks that the local transport and Redis answer any history of claims, commits and reads
alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkstorm.common.errors import FencedError, StoreRolledBackError
from sparkstorm.data_plane.transport.base import START, Commit, Cursor
from sparkstorm.extensions.embedded import RedisServer
from tests.contracts.benches import Bench, LocalBench, RedisBench, read
from tests.tiers import examples

pytestmark = pytest.mark.system
TASKS = (1, 2)
OWNERS = ("a", "b")
small = st.binary(min_size=1, max_size=3)
task = st.sampled_from(TASKS)
changes = st.fixed_dictionaries(
    {},
    optional={
        "frames": st.lists(st.tuples(task, small, st.integers(0, 3)), max_size=3),
        "journal": st.lists(st.tuples(task, small), max_size=2),
        "dropped": st.dictionaries(task, st.integers(0, 3), max_size=1),
        "state": st.lists(st.tuples(task, small, small | st.none()), max_size=3),
        "held": st.lists(st.tuples(task, st.sampled_from("kl"), small), max_size=2),
        "released": st.lists(st.tuples(task, st.sampled_from("kl")), max_size=2),
        "parked": st.lists(small, max_size=1),
        "quarantined": st.lists(small, max_size=1),
        "progress": small,
        "earlier": st.tuples(st.integers(0, 1), small),
        "low_ms": st.integers(0, 9),
        "drained_bytes": st.dictionaries(task, st.integers(0, 3)),
    },
)
owner = st.sampled_from(OWNERS)
step = st.one_of(
    st.tuples(st.just("commit"), owner, changes, st.sampled_from([0, 0, 0, 0, 0, -1, 1])),
    st.tuples(
        st.just("claim"), owner, st.sampled_from([(1,), (2,), TASKS]), st.sampled_from([1, 1, 1, 0])
    ),
    st.tuples(st.just("consume"), owner, st.integers(1, 3)),
)


class History:
    """One bench and its owners; everything a step shows is put down, with entries as their place in
    the stream.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.transports = {name: bench.open() for name in OWNERS}
        self.standing = {name: Commit(name, {}, 0, 0) for name in OWNERS}
        self.after: dict[str, dict[int, str]] = {name: {} for name in OWNERS}
        self.token = 0

    def run(self, kind: str, *arguments: Any) -> Any:
        try:
            return getattr(self, kind)(*arguments)
        except (FencedError, StoreRolledBackError) as error:
            return type(error).__name__

    def claim(self, name: str, tasks: tuple[int, ...], newer: int) -> Any:
        self.token += newer
        tokens = dict.fromkeys(tasks, self.token + 1)
        claim = self.transports[name].claim(name, tokens)
        self.standing[name] = Commit(name, tokens, claim.generation, claim.seq)
        self.after[name] = {t: record.cursor.entry for t, record in claim.record_by_task.items()}
        records = [
            (t, r.journal, r.held, r.cursor.row, r.cursor == START)
            for t, r in sorted(claim.record_by_task.items())
        ]
        return claim.generation, claim.seq, claim.progress, records

    def commit(self, name: str, wanted: dict[str, Any], offset: int) -> Any:
        last = self.standing[name]
        draft = Commit(
            name,
            last.token_by_task,
            last.generation,
            last.seq + 1 + offset,
            watched=TASKS,
            **wanted,
        )
        backlog = dict(self.transports[name].commit(draft).backlog_by_task)
        self.standing[name] = replace(last, seq=draft.seq)
        return backlog

    def consume(self, name: str, rows: int) -> Any:
        """Read what there is for this owner and put its cursor inside, then behind, the first
        entry.
        """
        mine = self.after[name]
        waiting = sum(len(self.bench.frames(t)) for t in mine)
        if not waiting:
            return []
        first = read(self.transports[name], mine, 1)[0]
        shown = self.commit(name, {"cursors": {first.task: Cursor(mine[first.task], rows)}}, 0)
        self.commit(name, {"cursors": {first.task: Cursor(first.id, 0)}}, 0)
        mine[first.task] = first.id
        return [first.task, first.data, shown]

    def stored(self) -> Any:
        """Return what outsiders see at the end."""
        reader = self.bench.reader()
        records = [(r.journal, r.held, r.cursor.row) for r in map(reader.record, TASKS)]
        backlog = {t: size for t, size in reader.backlog().items() if size}
        return (
            records,
            backlog,
            reader.progress(),
            {owner: sorted(records) for owner, records in reader.earlier().items()},
            [data for _, data in reader.parked(99)],
            self.bench.quarantine(),
            [self.bench.frames(t) for t in TASKS],
            self.transports["a"].oldest_waiting_ms(TASKS),
        )


@settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(step, min_size=3, max_size=14))
def test_both_tell_and_keep_the_same(
    redis_server: RedisServer, steps: list[tuple[Any, ...]]
) -> None:
    redis_bench = RedisBench(redis_server)
    try:
        local, remote = History(LocalBench()), History(redis_bench)
        begin: list[tuple[Any, ...]] = [("claim", "a", (1,), 1), ("claim", "b", (2,), 1)]
        for each in begin + steps:
            assert local.run(*each) == remote.run(*each), each
        assert local.stored() == remote.stored()
    finally:
        redis_bench.close()
