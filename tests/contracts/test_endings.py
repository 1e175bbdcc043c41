"""Checks on both transports that a topology's end is final: for its own workers, and for leaders
that repeat its clean-up late.
"""

from __future__ import annotations

from itertools import count

import pytest

from sparkstorm.common.errors import FencedError, NotAliveError
from sparkstorm.data_plane.transport.base import Commit, Reader, Transport
from sparkstorm.data_plane.transport.progress import Progress
from tests.contracts.benches import Bench

_numbers = count(1)
TASK = 3


def running(bench: Bench, name: str) -> tuple[str, Transport, Reader]:
    """Return a topology's id and its data: one commit of a worker that claimed one task."""
    topology_id = f"{name}-{next(_numbers)}"
    transport, reader = bench.of(topology_id)
    transport.claim("worker", {TASK: 5})
    transport.commit(work(1))
    return topology_id, transport, reader


def work(seq: int) -> Commit:
    return Commit(
        "worker", {TASK: 5}, 0, seq, frames=[(TASK, b"frame", 5)], journal=[(TASK, b"state")],
        held=[(TASK, "1-0", b"held")], parked=[b"letter"], progress=Progress().encode(), low_ms=7,
    )  # fmt: skip


def assert_nothing_can_be_done(transport: Transport, reader: Reader) -> None:
    """A worker that was cut off, and the next one that its slot starts, are turned away and leave
    nothing.
    """
    with pytest.raises(FencedError):
        transport.commit(work(2))
    with pytest.raises(FencedError, match="has ended"):
        transport.claim("worker", {TASK: 999})
    with pytest.raises(NotAliveError):
        reader.put_back([("1-0", TASK, b"frame")])
    assert reader.progress() == {} and reader.backlog().get(TASK, 0) == 0
    record = reader.record(TASK)
    assert (record.journal, record.held, record.last_entry) == ([], {}, "0-0")


def test_a_topology_that_ended_turns_its_workers_away_and_keeps_its_dead_letters(
    bench: Bench,
) -> None:
    topology_id, transport, reader = running(bench, "ended")
    bench.retirement().retire(topology_id)
    assert_nothing_can_be_done(transport, reader)
    assert [data for _, data in reader.parked(10)] == [b"letter"]
    bench.retirement().retire(topology_id)
    assert_nothing_can_be_done(transport, bench.of(topology_id)[1])


def test_data_is_handed_on_once_and_a_deposed_leader_that_repeats_it_changes_nothing(
    bench: Bench,
) -> None:
    old, transport, reader = running(bench, "old")
    retirement = bench.retirement()
    for heir in ("new", "again", "back"):
        bench.of(f"{old}-{heir}")
    retirement.hand_over(old, f"{old}-new")
    assert_nothing_can_be_done(transport, reader)
    # the deploy was refused: the data goes on, never back
    retirement.hand_over(f"{old}-new", f"{old}-back")
    successor, its_reader = bench.of(f"{old}-back")
    for _ in range(2):
        retirement.hand_over(old, f"{old}-new")
        retirement.hand_over(old, f"{old}-again")
        retirement.retire(old)
    claim = successor.claim("worker", {TASK: 1})
    assert claim.origin == old and claim.incarnation
    assert claim.record_by_task[TASK].journal == [b"state"]
    assert claim.record_by_task[TASK].held == {"1-0": b"held"}
    assert (
        claim.record_by_task[TASK].last_entry != "0-0" and claim.seq == 0 and claim.progress == b""
    )
    assert [data for _, data in its_reader.parked(10)] == [b"letter"]
    for stale in ("new", "again"):
        assert bench.of(f"{old}-{stale}")[1].record(TASK).journal == []


def test_data_that_were_handed_on_are_counted_before_their_first_claim(bench: Bench) -> None:
    first, *_ = running(bench, "moved-1")
    second, third = (first.replace("moved-1", f"moved-{each}") for each in (2, 3))
    for heir in (second, third):
        bench.of(heir)
    retirement = bench.retirement()
    retirement.hand_over(first, second)
    assert retirement.unended()[second] >= 1 and first not in retirement.unended()
    retirement.hand_over(second, third)
    assert retirement.unended()[third] >= 1 and second not in retirement.unended()


def test_nothing_is_handed_on_by_a_topology_whose_data_was_deleted(bench: Bench) -> None:
    old, transport, reader = running(bench, "dropped")
    bench.retirement().retire(old)
    bench.retirement().hand_over(old, f"{old}-new")
    assert_nothing_can_be_done(transport, reader)
    assert bench.of(f"{old}-new")[1].record(TASK).journal == []


def test_data_without_an_end_are_counted_by_topology(bench: Bench) -> None:
    ended, *_ = running(bench, "ended-1")
    lost, *_ = running(bench, "lost-1")
    bench.of("never-claimed-1-1")
    bench.retirement().retire(ended)
    found = bench.retirement().unended()
    assert found[lost] >= 1 and ended not in found and "never-claimed-1-1" not in found
    assert list(bench.retirement().ended([ended, lost, "never-1-1"])) == [ended]
    bench.retirement().retire(lost)
    assert lost not in bench.retirement().unended()
    assert sorted(bench.retirement().ended([ended, lost])) == sorted([ended, lost])
    assert not bench.retirement().ended([])
