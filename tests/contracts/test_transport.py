"""Checks the laws of the data plane on its twin and on a real Redis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.errors import (
    FencedError,
    NotAliveError,
    StoreLostError,
    StoreRolledBackError,
)
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.worker_spec import StoreMark
from sparkstorm.data_plane.transport import local as local_transport
from sparkstorm.data_plane.transport import redis as redis_transport
from sparkstorm.data_plane.transport.base import (
    MOST_SAMPLES,
    START,
    Claim,
    Commit,
    Cursor,
    Expected,
    Transport,
)
from sparkstorm.data_plane.transport.frames import SettledRoots, encode_settled
from tests.contracts.benches import Bench, LocalBench, RedisBench, consumed, read
from tests.waiting import assert_once_within, wait_until


@pytest.fixture(
    params=[
        ("local", 1),
        ("local", 2),
        ("local", 3),
        pytest.param(("redis", 1), marks=pytest.mark.system),
        pytest.param(("redis", 2), marks=pytest.mark.system),
        pytest.param(("redis", 3), marks=pytest.mark.system),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Owners of one cell; the stores of the others are there, and read (test_cells.py fills
    them).
    """
    kind, cells = request.param
    made: Bench = (
        LocalBench(cells)
        if kind == "local"
        else RedisBench(request.getfixturevalue("redis_server"), cells=cells)
    )
    yield made
    made.close()


class Owner:
    """A worker as the transport sees it: claims, numbers its commits, remembers nothing else."""

    def __init__(self, bench: Bench, name: str, tasks: tuple[int, ...], token: int = 1) -> None:
        self.transport: Transport = bench.open_in_cell()
        self.name = name
        self.token_by_task = dict.fromkeys(tasks, token)
        self.claim()

    def claim(self) -> None:
        self.claimed = self.transport.claim(self.name, self.token_by_task)
        self.seq = self.claimed.seq

    def draft(self, **changes: Any) -> Commit:
        return Commit(
            self.name, self.token_by_task, self.claimed.generation, self.seq + 1, **changes
        )

    def commit(self, **changes: Any) -> Any:
        pressure = self.transport.commit(self.draft(**changes))
        self.seq += 1
        return pressure


def frames_for(task: int, *frames: bytes) -> list[tuple[int, bytes, int]]:
    return [(task, frame, len(frame)) for frame in frames]


def everything(task: int, entry: str) -> dict[str, Any]:
    """A commit that touches every kind of key."""
    return {
        "frames": frames_for(9, b"frame"),
        "cursors": {task: Cursor(entry, 0)},
        "drained_bytes": {task: 3},
        "journal": [(task, b"delta")],
        "dropped": {task: 1},
        "state": [(task, b"key", b"value"), (task, b"gone", None)],
        "held": [(task, "h1", b"held")],
        "released": [(task, "h0")],
        "parked": [b"parked"],
        "quarantined": [b"strange"],
        "progress": b"progress",
        "earlier": (3, b"before"),
        "low_ms": 77,
    }


# -- order, and what the cursor keeps


def test_frames_of_one_sender_are_read_in_the_order_of_commits(bench: Bench) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2, 3))
    for n in range(20):
        sender.commit(frames=frames_for(2, b"%d" % n, b"%d'" % n) + frames_for(3, b"other %d" % n))
    found = read(receiver.transport, {2: START.entry, 3: START.entry}, 60, batch=7)
    result = [e.data for e in found if e.task == 2]
    assert result == [part for n in range(20) for part in (b"%d" % n, b"%d'" % n)]
    assert [e.data for e in found if e.task == 3] == [b"other %d" % n for n in range(20)]


def test_poll_gives_at_most_so_many_entries_of_each_task(bench: Bench) -> None:
    owner = Owner(bench, "o", (1, 2))
    owner.commit(frames=frames_for(1, b"a", b"b", b"c") + frames_for(2, b"d", b"e"))
    seen: list[Any] = []

    def has_seen() -> bool:
        seen.extend(owner.transport.poll({1: START.entry, 2: START.entry}, 2))
        return bool(seen)

    wait_until(has_seen)
    assert [(e.task, e.data) for e in seen] == [(1, b"a"), (1, b"b"), (2, b"d"), (2, b"e")]


def test_an_entry_was_sent_at_the_stores_time_or_has_no_time_where_the_store_keeps_none(
    bench: Bench,
) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2,))
    before_ms = store_ms(bench)
    sender.commit(frames=frames_for(2, b"a"))
    (entry,) = read(receiver.transport, {2: START.entry}, 1)
    if before_ms is None:
        assert entry.sent_ms is None
    else:
        assert entry.sent_ms is not None and before_ms <= entry.sent_ms <= (store_ms(bench) or 0)


def store_ms(bench: Bench) -> int | None:
    """Return the time of Redis in ms; None for the twin, which has no clock."""
    if isinstance(bench, LocalBench):
        return None
    seconds, micros = bench.client.time()
    return int(seconds) * 1_000 + int(micros) // 1_000


def test_poll_answers_at_once_when_there_is_nothing_and_wait_hears_of_something_new(
    bench: Bench,
) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2,))

    def polled() -> float:
        started = time.monotonic()
        assert all(receiver.transport.poll({2: START.entry}, 10) == [] for _ in range(50))
        return time.monotonic() - started

    assert_once_within(1.0, polled)
    assert receiver.transport.poll({}, 10) == []
    sender.commit(frames=frames_for(2, b"new"))
    assert [e.data for e in read(receiver.transport, {2: START.entry}, 1)] == [b"new"]


def test_what_an_owner_asks_for_is_read_once_with_its_next_commit(bench: Bench) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2, 3))
    sender.commit(frames=frames_for(2, b"a", b"b") + frames_for(3, b"c"))
    receiver.transport.ask({2: START.entry, 3: START.entry}, 10)
    receiver.commit(journal=[(2, b"delta")])
    receiver.transport.wait(0)
    found = receiver.transport.poll({2: START.entry, 3: START.entry}, 10)
    assert [(e.task, e.data) for e in found] == [(2, b"a"), (2, b"b"), (3, b"c")]
    read_to = {2: found[1].id, 3: found[2].id}
    receiver.transport.ask(read_to, 10)
    sender.commit(frames=frames_for(2, b"d"))
    receiver.commit(
        cursors={task: Cursor(entry, 0) for task, entry in read_to.items()},
        drained_bytes={2: 2, 3: 1},
    )
    assert [e.data for e in receiver.transport.poll(read_to, 10)] == [b"d"]


def test_what_came_with_a_commit_is_forgotten_by_a_claim(bench: Bench) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2,))
    sender.commit(frames=frames_for(2, b"a"))
    receiver.transport.ask({2: START.entry}, 10)
    receiver.commit(journal=[(2, b"delta")])
    receiver.claim()
    assert [e.data for e in read(receiver.transport, {2: START.entry}, 1)] == [b"a"]


def test_a_task_left_out_of_one_poll_is_read_again_without_delay(bench: Bench) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2, 3))
    assert receiver.transport.poll({3: START.entry}, 10) == []
    at = [START.entry]

    def read_again() -> float:
        sender.commit(frames=frames_for(2, b"two"))
        started = time.monotonic()
        found = read(receiver.transport, {2: at[0], 3: START.entry}, 1)
        assert [e.data for e in found] == [b"two"]
        at[0] = found[0].id
        assert receiver.transport.poll({3: START.entry}, 10) == []
        return time.monotonic() - started

    assert_once_within(2.0, read_again)


def test_nothing_stays_at_or_before_the_cursor_and_everything_behind_it_does(bench: Bench) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2,))
    sender.commit(frames=frames_for(2, *(b"%03d" % n for n in range(200))))
    found = read(receiver.transport, {2: START.entry}, 200)
    receiver.commit(cursors={2: Cursor(found[98].id, 0)}, drained_bytes={2: 99 * 3})
    assert bench.frames(2) == [b"%03d" % n for n in range(99, 200)]
    assert bench.reader().backlog()[2] == 101 * 3
    receiver.commit(cursors={2: Cursor(found[198].id, 0)}, drained_bytes={2: 100 * 3})
    assert bench.frames(2) == [b"199"]
    receiver.commit(cursors=consumed(found), drained_bytes={2: 3})
    assert bench.frames(2) == []
    assert bench.reader().backlog()[2] == 0


def test_an_entry_consumed_in_part_stays_and_a_restart_reads_it_again_from_its_row(
    bench: Bench,
) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2,))
    sender.commit(frames=frames_for(2, b"a", b"b", b"c"))
    found = read(receiver.transport, {2: START.entry}, 3)
    receiver.commit(cursors={2: Cursor(found[0].id, 5)})
    assert bench.frames(2) == [b"b", b"c"]
    successor = Owner(bench, "r2", (2,), token=2)
    cursor = successor.claimed.record_by_task[2].cursor
    assert cursor == Cursor(found[0].id, 5)
    assert [e.data for e in read(successor.transport, {2: cursor.entry}, 2)] == [b"b", b"c"]


def test_rows_of_the_very_first_entry_are_counted_from_the_start(bench: Bench) -> None:
    owner = Owner(bench, "o", (1,))
    owner.commit(frames=frames_for(1, b"a"))
    owner.commit(cursors={1: Cursor(START.entry, 3)})
    assert bench.frames(1) == [b"a"]
    result = Owner(bench, "p", (1,), token=2).claimed.record_by_task[1].cursor
    assert result == Cursor(START.entry, 3)


def test_entry_ids_go_on_when_a_stream_has_been_emptied(bench: Bench) -> None:
    owner = Owner(bench, "o", (1,))
    owner.commit(frames=frames_for(1, b"a"))
    first = read(owner.transport, {1: START.entry}, 1)
    owner.commit(cursors=consumed(first))
    if isinstance(bench, RedisBench):  # made anew it would number from the clock, which may go back
        assert bench.client.exists(bench.key("task", 1))
    owner.commit(frames=frames_for(1, b"b"))
    assert [e.data for e in read(owner.transport, {1: first[0].id}, 1)] == [b"b"]


# -- once


def test_the_same_commit_sent_again_changes_nothing(bench: Bench) -> None:
    owner = Owner(bench, "o", (1,))
    owner.commit(frames=frames_for(1, b"a"), held=[(1, "h0", b"old")])
    entry = read(owner.transport, {1: START.entry}, 1)[0].id
    draft = owner.draft(**everything(1, entry), watched=(1, 9))
    first = owner.transport.commit(draft)
    stands = bench.dump()
    again = owner.transport.commit(draft)
    assert bench.dump() == stands
    assert first.backlog_by_task == again.backlog_by_task == {1: 0, 9: 5}


@pytest.mark.parametrize(
    "other",
    [
        {"frames": frames_for(1, b"a", b"c")},
        {"frames": frames_for(2, b"a", b"b")},
        {"journal": [(1, b"delta")]},
        {"state": [(1, b"key", b"value")]},
        {"progress": b"other"},
        {"earlier": (1, b"record")},
        {},
    ],
    ids=lambda other: "-".join(other) or "nothing",
)
def test_an_equal_number_with_other_content_is_refused_and_an_equal_commit_is_answered(
    bench: Bench, other: dict[str, Any]
) -> None:
    owner = Owner(bench, "o", (1,))
    owner.transport.commit(owner.draft(frames=frames_for(1, b"a", b"b")))
    stands = bench.dump()
    with pytest.raises(StoreRolledBackError, match="commit 1 of o was written with other content"):
        owner.transport.commit(owner.draft(**other))
    owner.transport.commit(owner.draft(frames=frames_for(1, b"a", b"b")))
    assert bench.dump() == stands


def test_a_claim_returns_what_was_committed(bench: Bench) -> None:
    owner = Owner(bench, "o", (1, 2))
    assert owner.claimed.record_by_task[1].cursor == START
    owner.commit(journal=[(1, b"d0")], held=[(1, "h0", b"zero")])
    owner.commit(frames=frames_for(1, b"a", b"b"))
    entry = read(owner.transport, {1: START.entry}, 2)[0].id
    owner.commit(**everything(1, entry))
    owner.commit(
        journal=[(1, b"later"), (2, b"x"), (1, b"last")],
        held=[(1, "h2", b"two"), (1, "h1", b"one")],
    )
    claimed = Owner(bench, "o", (1, 2), token=2).claimed
    record = claimed.record_by_task[1]
    assert (claimed.seq, claimed.progress, claimed.generation) == (4, b"progress", 0)
    assert record.cursor == Cursor(entry, 0)
    assert record.journal == [b"delta", b"later", b"last"]
    assert record.held == {"h1": b"one", "h2": b"two"}
    assert record.last_entry > entry
    assert claimed.record_by_task[2].journal == [b"x"]
    reader = bench.reader()
    assert reader.record(1) == record
    assert [data for _, data in reader.parked(10)] == [b"parked"]
    assert reader.progress() == {"o": b"progress"} and reader.earlier() == {"o": [b"before"]}
    assert bench.quarantine() == [b"strange"]


def test_the_oldest_entries_of_a_journal_are_dropped_by_their_number(bench: Bench) -> None:
    owner = Owner(bench, "o", (1, 2))
    owner.commit(journal=[(1, b"a"), (1, b"b"), (2, b"other")])
    owner.commit(journal=[(1, b"c")], dropped={1: 2})
    records = Owner(bench, "p", (1, 2), token=2).claimed.record_by_task
    assert (records[1].journal, records[2].journal) == ([b"c"], [b"other"])


def test_progress_is_kept_by_owner_and_an_empty_one_overwrites_nothing(bench: Bench) -> None:
    one, two = Owner(bench, "one", (1,)), Owner(bench, "two", (2,))
    one.commit(progress=b"1")
    two.commit(progress=b"2")
    one.commit(progress=b"")
    assert bench.reader().progress() == {"one": b"1", "two": b"2"}


def test_earlier_progress_is_kept_by_owner_and_place(bench: Bench) -> None:
    one, two = Owner(bench, "n:1", (1,)), Owner(bench, "n:2", (2,))
    for place, record in ((0, b"a"), (1, b"b"), (0, b"c")):
        one.commit(earlier=(place, record))
    two.commit(earlier=(11, b"d"))
    found = {owner: sorted(records) for owner, records in bench.reader().earlier().items()}
    assert found == {"n:1": [b"b", b"c"], "n:2": [b"d"]}


# -- fence


def test_a_claim_with_an_older_token_is_refused_and_leaves_no_trace(bench: Bench) -> None:
    Owner(bench, "new", (1, 2), token=5)
    before = bench.dump()
    with pytest.raises(FencedError, match="task 2 belongs to token 5"):
        bench.open_in_cell().claim("old", {2: 4, 3: 9})
    with pytest.raises(FencedError, match="task 2"):
        bench.open_in_cell().claim("old", {3: 9, 2: 4})
    assert bench.dump() == before


def test_a_fenced_owner_writes_nothing_at_all(bench: Bench) -> None:
    old = Owner(bench, "old", (1, 2))
    old.commit(frames=frames_for(1, b"a"))
    entry = read(old.transport, {1: START.entry, 2: START.entry}, 1)[0].id
    Owner(bench, "new", (2,), token=2)
    before = bench.dump()
    with pytest.raises(FencedError, match="task 2 belongs to token 2"):
        old.commit(**everything(1, entry))
    assert bench.dump() == before


def test_a_commit_that_was_applied_is_refused_again_once_its_owner_is_fenced(bench: Bench) -> None:
    old = Owner(bench, "old", (1,))
    draft = old.draft(frames=frames_for(9, b"x"))
    old.transport.commit(draft)
    Owner(bench, "new", (1,), token=2)
    with pytest.raises(FencedError):
        old.transport.commit(draft)
    assert bench.frames(9) == [b"x"]


def test_the_same_owner_under_a_newer_token_fences_its_former_process(bench: Bench) -> None:
    former = Owner(bench, "host:6700", (1,), token=1)
    former.commit(frames=frames_for(9, b"x"))
    present = Owner(bench, "host:6700", (1,), token=2)
    assert present.claimed.seq == 1
    with pytest.raises(FencedError):
        former.commit(frames=frames_for(9, b"zombie"))
    present.commit(frames=frames_for(9, b"y"))
    assert bench.frames(9) == [b"x", b"y"]


def test_tokens_are_compared_as_numbers(bench: Bench) -> None:
    Owner(bench, "o", (1,), token=(3 << 32) | 9)
    Owner(bench, "p", (1,), token=(3 << 32) | 10)
    with pytest.raises(FencedError):
        Owner(bench, "q", (1,), token=(3 << 32) | 9)


def test_a_task_nobody_claimed_or_whose_topology_was_deleted_takes_no_commit(bench: Bench) -> None:
    owner = Owner(bench, "o", (1,))
    owner.commit(
        frames=frames_for(1, b"a"), held=[(1, "h", b"h")], low_ms=5, progress=b"p", parked=[b"q"]
    )
    bench.reader().delete()
    empty = bench.dump()
    assert bench.frames(1) == []
    with pytest.raises(FencedError, match="none"):
        owner.commit(frames=frames_for(1, b"b"))
    assert bench.frames(1) == []
    assert bench.dump() == empty


def test_no_key_of_a_deleted_topology_stays_but_its_tombstone_and_dead_letters(
    bench: Bench,
) -> None:
    if not isinstance(bench, RedisBench):
        pytest.skip("the in-memory fake has no keys")
    owner = Owner(bench, "o", (1, 2))
    owner.commit(
        frames=frames_for(1, b"a"), held=[(1, "h", b"h")], low_ms=5, progress=b"p", parked=[b"q"]
    )
    bench.reader().delete()
    assert set(bench.dump()) == {bench.key("dead"), bench.key("ended")}


def test_dead_letters_outlive_their_topology_until_they_are_dropped(bench: Bench) -> None:
    owner = Owner(bench, "o", (1,))
    owner.commit(parked=[b"one", b"two"], progress=b"p")
    owner.commit(parked=[b"three"])
    reader = bench.reader()
    reader.delete()
    assert reader.progress() == {}
    letters = reader.parked(10)
    assert [data for _, data in letters] == [b"one", b"two", b"three"]
    assert [data for _, data in reader.parked(1, letters[0][0])] == [b"two"]
    assert reader.parked(10, letters[-1][0]) == []
    result = reader.letters([letters[1][0], "9-9", "+", letters[0][0]])
    assert result == {letters[1][0]: b"two", letters[0][0]: b"one"}
    assert reader.letters([]) == {}
    assert reader.drop_dead_letter(letters[1][0]) and not reader.drop_dead_letter(letters[1][0])
    assert [data for _, data in reader.parked(10)] == [b"one", b"three"]
    assert (reader.drop_dead_letters(), reader.drop_dead_letters()) == (2, 0)
    assert reader.parked(10) == []


def test_a_dead_letter_is_put_back_once_and_counts_as_backlog(bench: Bench) -> None:
    owner = Owner(bench, "o", (1,))
    owner.commit(parked=[b"one", b"two"])
    reader = bench.reader()
    (first, _), (second, _) = reader.parked(10)
    assert reader.put_back([(first, 1, b"frame")]) == [first]
    assert reader.put_back([(first, 1, b"frame")]) == []
    assert bench.frames(1) == [b"frame"]
    assert reader.backlog()[1] == 5
    assert [id for id, _ in reader.parked(10)] == [second]
    (entry,) = read(owner.transport, {1: START.entry}, 1)
    owner.commit(cursors={1: Cursor(entry.id, 0)}, drained_bytes={1: len(entry.data)})
    assert (bench.frames(1), reader.backlog()[1]) == ([], 0)


def test_a_dead_letter_of_a_task_without_an_owner_stays(bench: Bench) -> None:
    Owner(bench, "o", (1,)).commit(parked=[b"one"])
    reader = bench.reader()
    reader.delete()
    (id, _), *_ = reader.parked(10)
    before = bench.dump()
    with pytest.raises(NotAliveError, match="no worker"):
        reader.put_back([(id, 1, b"frame")])
    assert (bench.frames(1), bench.dump()) == ([], before)


def test_many_dead_letters_are_put_back_at_once_in_their_order(bench: Bench) -> None:
    Owner(bench, "o", (1, 2)).commit(parked=[b"%d" % n for n in range(6)])
    reader = bench.reader()
    ids = [id for id, _ in reader.parked(10)]
    assert reader.drop_dead_letter(ids[3])
    several = [(id, 1 + n % 2, b"frame %d" % n) for n, id in enumerate(ids)]
    gone = ids[3]
    assert reader.put_back([*several, several[0]]) == [id for id in ids if id != gone], (
        "the second of the same letter is missing"
    )
    assert bench.frames(1) == [b"frame 0", b"frame 2", b"frame 4"]
    result = bench.frames(2)
    assert result == [b"frame 1", b"frame 5"]
    assert (reader.backlog(), reader.parked(10)) == ({1: 21, 2: 14}, [])


def test_of_letters_of_which_one_has_no_owner_none_is_put_back(bench: Bench) -> None:
    Owner(bench, "o", (1,)).commit(parked=[b"one", b"two"])
    reader = bench.reader()
    (first, _), (second, _) = reader.parked(10)
    before = bench.dump()
    with pytest.raises(NotAliveError, match="task 2"):
        reader.put_back([(first, 1, b"frame"), (second, 2, b"frame")])
    assert bench.dump() == before


def test_of_too_many_dead_letters_the_oldest_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for twin in (redis_transport, local_transport):
        monkeypatch.setattr(twin, "MOST_DEAD_LETTERS", 500)
    owner = Owner(bench, "o", (1,))
    for first in range(0, 1500, 300):
        owner.commit(parked=[str(n).encode() for n in range(first, first + 300)])
    kept = [int(data) for _, data in bench.reader().parked(9999)]
    assert kept == list(range(kept[0], 1500)) and 500 <= len(kept) < 700


def test_an_owner_without_tasks_may_commit(bench: Bench) -> None:
    owner = Owner(bench, "idle", ())
    owner.commit(progress=b"nothing to do")
    assert bench.reader().progress() == {"idle": b"nothing to do"}


# -- rollback


def test_a_commit_out_of_turn_is_refused_and_leaves_no_trace(bench: Bench) -> None:
    owner = Owner(bench, "o", (1,))
    owner.commit(journal=[(1, b"one")])
    owner.commit(journal=[(1, b"two")])
    before = bench.dump()
    with pytest.raises(StoreRolledBackError, match="seq 2"):
        # the store is ahead: no alarm
        owner.transport.commit(replace(owner.draft(journal=[(1, b"?")]), seq=1))
    assert bench.dump() == before
    with pytest.raises(StoreRolledBackError, match="generation 0, seq 2"):
        owner.transport.commit(replace(owner.draft(journal=[(1, b"?")]), seq=4))
    assert bench.reader().record(1).journal == [b"one", b"two"]


def test_a_store_that_lost_its_tail_sends_every_owner_back_to_it(bench: Bench) -> None:
    first, second = Owner(bench, "first", (1,)), Owner(bench, "second", (2,))
    first.commit(journal=[(1, b"kept")])
    second.commit(journal=[(2, b"kept too")])
    checkpoint = bench.checkpoint()
    first.commit(journal=[(1, b"lost")])
    bench.restore(checkpoint)
    for owner in (first, second):
        with pytest.raises(StoreRolledBackError):
            owner.commit(journal=[(9, b"on sand")])
        owner.claim()
        assert owner.claimed.generation == 1
    first.commit(journal=[(1, b"again")])
    second.commit(journal=[(2, b"on")])
    assert bench.reader().record(1).journal == [b"kept", b"again"]
    assert bench.reader().record(2).journal == [b"kept too", b"on"]
    assert bench.reader().record(9).journal == []


def test_a_frame_read_and_then_lost_cannot_be_consumed(bench: Bench) -> None:
    """The receiver's own commits are all there; only the frame is gone, and its sender will send it
    again.
    """
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2,))
    sender.commit(frames=frames_for(2, b"kept"))
    checkpoint = bench.checkpoint()
    sender.commit(frames=frames_for(2, b"lost"))
    found = read(receiver.transport, {2: START.entry}, 2)
    bench.restore(checkpoint)
    with pytest.raises(StoreRolledBackError):
        receiver.commit(cursors=consumed(found), journal=[(2, b"kept and lost")])
    with pytest.raises(StoreRolledBackError):
        sender.commit(frames=frames_for(2, b"next"))
    sender.claim()
    receiver.claim()
    sender.commit(frames=frames_for(2, b"sent again"))
    cursor = receiver.claimed.record_by_task[2].cursor
    again = read(receiver.transport, {2: cursor.entry}, 2)
    assert [e.data for e in again] == [b"kept", b"sent again"]
    receiver.commit(cursors=consumed(again), journal=[(2, b"both")])
    assert bench.reader().record(2).journal == [b"both"]


def test_a_lost_frame_is_missed_even_when_it_was_sent_again_before_its_reader_commits(
    bench: Bench,
) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2,))
    sender.commit(progress=b"begun")
    checkpoint = bench.checkpoint()
    sender.commit(frames=frames_for(2, b"lost"))
    found = read(receiver.transport, {2: START.entry}, 1)
    bench.restore(checkpoint)
    # nobody has noticed anything: the generation is the old one
    successor = Owner(bench, "s2", (1,), token=2)
    successor.commit(frames=frames_for(2, b"sent again"))
    with pytest.raises(StoreRolledBackError):
        found += read(receiver.transport, {2: found[-1].id}, 1)
    with pytest.raises(StoreRolledBackError):
        receiver.commit(cursors=consumed(found))
    assert bench.frames(2) == [b"sent again"]
    assert successor.transport.claim("s2", {1: 2}).generation == 1


def test_an_answer_of_a_store_that_is_no_more_is_not_read_after_a_commit_to_its_successor(
    bench: Bench,
) -> None:
    sender = Owner(bench, "s", (1,))
    receiver = Owner(bench, "r", (2,))
    other = Owner(bench, "o", (3,))
    assert receiver.transport.poll({2: START.entry}, 10) == []
    checkpoint = bench.checkpoint()
    sender.commit(frames=frames_for(2, b"lost"))
    receiver.transport.wait(5_000)  # the answer has arrived, but nobody has taken it
    bench.restore(checkpoint)
    receiver.commit(journal=[(2, b"nothing read yet")])
    other.commit(frames=frames_for(2, b"real"))
    assert [e.data for e in read(receiver.transport, {2: START.entry}, 1)] == [b"real"]


def test_a_store_that_came_back_whole_disturbs_nobody(bench: Bench) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2,))
    sender.commit(frames=frames_for(2, b"a", b"b"))
    found = read(receiver.transport, {2: START.entry}, 2)
    bench.restore(bench.checkpoint())
    receiver.commit(cursors={2: Cursor(found[0].id, 0)}, journal=[(2, b"a")])
    bench.restore(bench.checkpoint())
    receiver.commit(cursors=consumed(found), journal=[(2, b"b")])
    sender.commit(frames=frames_for(2, b"c"))
    assert [e.data for e in read(receiver.transport, {2: found[-1].id}, 1)] == [b"c"]
    assert bench.reader().record(2).journal == [b"a", b"b"]


def test_an_idle_owner_hears_by_polling_that_the_store_has_lost_its_commits(bench: Bench) -> None:
    owner = Owner(bench, "o", (1,))
    owner.commit(journal=[(1, b"kept")])
    checkpoint = bench.checkpoint()
    assert owner.transport.poll({1: START.entry}, 10) == []
    owner.commit(journal=[(1, b"lost")])
    bench.restore(checkpoint)

    def hears() -> bool:
        try:
            owner.transport.poll({1: START.entry}, 10)
        except StoreRolledBackError:
            return True
        owner.transport.wait(20)
        return False

    wait_until(hears, "hearing of the loss")
    owner.claim()
    assert (owner.claimed.generation, owner.claimed.seq) == (1, 1)


def test_a_store_that_lost_a_claim_does_not_take_its_owner_for_a_zombie(bench: Bench) -> None:
    old = Owner(bench, "old", (1,), token=1)
    old.commit(journal=[(1, b"old")])
    checkpoint = bench.checkpoint()
    new = Owner(bench, "new", (1,), token=2)
    new.commit(journal=[(1, b"new")])
    bench.restore(checkpoint)
    with pytest.raises(StoreRolledBackError):
        new.commit(journal=[(1, b"newer")])
    # the zombie has its token back, but not its generation
    with pytest.raises(StoreRolledBackError):
        old.commit(journal=[(1, b"zombie")])
    new.claim()
    new.commit(journal=[(1, b"newer")])
    assert bench.reader().record(1).journal == [b"old", b"newer"]


def test_what_was_read_before_a_claim_is_not_read_on_from_there(bench: Bench) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2,))
    sender.commit(frames=frames_for(2, b"a", b"b"))
    found = read(receiver.transport, {2: START.entry}, 2)
    # a question behind b may still be open
    assert receiver.transport.poll({2: found[-1].id}, 10) == []
    receiver.claim()
    sender.commit(frames=frames_for(2, b"c"))
    assert [e.data for e in read(receiver.transport, {2: START.entry}, 3)] == [b"a", b"b", b"c"]


# -- pressure, heads and watermarks


def test_a_commit_tells_the_backlog_of_the_tasks_it_watches(bench: Bench) -> None:
    sender, other = Owner(bench, "s", (1,)), Owner(bench, "t", (3,))
    assert sender.commit(
        frames=[(2, b"data", 4), (9, b"ack", 0)], watched=(2, 9)
    ).backlog_by_task == {2: 4, 9: 0}
    assert other.commit(frames=frames_for(2, b"more data"), watched=(2,)).backlog_by_task == {2: 13}
    receiver = Owner(bench, "r", (2,))
    assert receiver.commit(drained_bytes={2: 4}, watched=(2, 5)).backlog_by_task == {2: 9, 5: 0}
    # Of a task that this commit changes, of one that it does not, and of one that has nothing.
    result = other.commit(frames=frames_for(4, b"more"), watched=(4, 2, 6)).backlog_by_task
    assert result == {4: 4, 2: 9, 6: 0}


def test_frames_that_nobody_counted_leave_no_backlog_below_nothing(bench: Bench) -> None:
    owner = Owner(bench, "o", (1,))
    owner.commit(frames=[(1, b"stranger", 0), *frames_for(1, b"own")])
    entries = read(owner.transport, {1: START.entry}, 2)
    drained = {1: sum(len(entry.data) for entry in entries)}
    told = owner.commit(cursors={1: Cursor(entries[-1].id, 0)}, drained_bytes=drained, watched=(1,))
    assert told.backlog_by_task == {1: 0}
    assert owner.commit(frames=frames_for(1, b"more"), watched=(1,)).backlog_by_task == {1: 4}


def test_the_oldest_that_waits_is_looked_for_in_every_frame_of_tasks_with_a_backlog_and_of_those_named(
    bench: Bench,
) -> None:
    sender, receiver = Owner(bench, "s", (1,)), Owner(bench, "r", (2, 3))
    assert sender.transport.oldest_waiting_ms() is None
    sender.commit(
        frames=[*frames_for(2, born(700), born(500), b"garbage", born(600)), (4, born(300), 0)]
    )
    assert sender.transport.oldest_waiting_ms() == 500
    assert sender.transport.oldest_waiting_ms(also=[5, 4]) == 300
    receiver.commit(low_ms=400)
    assert sender.transport.oldest_waiting_ms() == 400
    receiver.commit(low_ms=0)
    found = read(receiver.transport, {2: START.entry}, 4)
    receiver.commit(cursors={2: Cursor(found[1].id, 0)}, drained_bytes={2: 2 * len(born(0))})
    assert sender.transport.oldest_waiting_ms() == 600


def test_whatever_is_not_younger_than_the_floor_ends_the_search(bench: Bench) -> None:
    sender = Owner(bench, "s", (1,))
    sender.commit(
        frames=[
            *frames_for(2, *[born(900 - n) for n in range(200)]),
            *frames_for(3, born(800), born(400)),
        ]
    )
    assert sender.transport.oldest_waiting_ms() == 400
    assert sender.transport.oldest_waiting_ms(floor_ms=399) == 400
    found = sender.transport.oldest_waiting_ms(floor_ms=750)
    assert found is not None and found <= 750


def born(at_ms: int) -> bytes:
    """A frame whose oldest root was born then."""
    return encode_settled(Codec(), SettledRoots([], {}, at_ms))


def test_the_low_watermark_is_the_least_of_all_owners_and_zero_means_nothing_waits(
    bench: Bench,
) -> None:
    one, two = Owner(bench, "one", (1,)), Owner(bench, "two", (2,))
    assert one.transport.oldest_waiting_ms() is None
    one.commit(low_ms=500)
    two.commit(low_ms=300)
    assert one.transport.oldest_waiting_ms() == 300
    two.commit(low_ms=0)
    assert one.transport.oldest_waiting_ms() == 500
    one.commit(low_ms=None, journal=[(1, b"x")])
    assert one.transport.oldest_waiting_ms() == 500


def test_a_former_owner_no_longer_holds_the_watermark_down_once_its_last_task_is_claimed(
    bench: Bench,
) -> None:
    gone = Owner(bench, "gone", (1, 2))
    gone.commit(low_ms=100)
    heir = Owner(bench, "heir", (1,), token=2)
    assert heir.transport.oldest_waiting_ms() == 100
    other = Owner(bench, "other", (2,), token=2)
    assert other.transport.oldest_waiting_ms() is None
    other.commit(low_ms=200)
    Owner(bench, "other", (2,), token=3)  # the same owner, restarted: what it held still waits
    assert heir.transport.oldest_waiting_ms() == 200


def test_release_frees_what_the_stored_cursor_has_passed_and_no_more(bench: Bench) -> None:
    owner = Owner(bench, "o", (1,))
    owner.commit(frames=frames_for(1, b"a", b"b", b"c"))
    found = read(owner.transport, {1: START.entry}, 3)
    owner.transport.release()
    assert bench.frames(1) == [b"a", b"b", b"c"]
    bench.put_garbage(1, f"{found[1].id} 0")
    if isinstance(bench, RedisBench):
        owner.transport.release()
        assert bench.frames(1) == [b"c"]


# -- what waits for a task


def test_what_waits_for_a_task_is_its_held_inputs_and_the_entries_behind_its_cursor(
    bench: Bench,
) -> None:
    owner, reader = Owner(bench, "o", (1,)), bench.reader()
    assert (reader.inputs(1, 10).held, list(reader.inputs(1, 10).entries)) == ({}, [])
    owner.commit(frames=frames_for(1, b"a", b"b", b"c"))
    first, _, _ = read(owner.transport, {1: START.entry}, 3)
    owner.commit(cursors={1: Cursor(first.id, 0)}, drained_bytes={1: 1}, held=[(1, "h", b"held")])
    found = reader.inputs(1, 10)
    assert (found.cursor, dict(found.held)) == (Cursor(first.id, 0), {"h": b"held"})
    assert [data for _, data in found.entries] == [b"b", b"c"]
    assert [data for _, data in reader.inputs(1, 1).entries] == [b"b"]


# -- taps


def test_samples_are_kept_for_those_who_look(bench: Bench) -> None:
    owner, reader = Owner(bench, "o", (1,)), bench.reader()
    assert not owner.transport.open_taps(["a:default", "b:x"])
    assert reader.open_tap("a:default") == START.entry
    assert set(owner.transport.open_taps(["a:default", "b:x"])) == {"a:default"}
    assert not owner.transport.open_taps([])
    owner.transport.show({"a:default": [b"1", b"2"]})
    last = reader.open_tap("a:default")
    assert [data for _, data in reader.samples("a:default", START.entry)] == [b"1", b"2"]
    owner.transport.show({"a:default": [b"%d" % n for n in range(3 * MOST_SAMPLES)]})
    found = reader.samples("a:default", last)
    assert found[-1][1] == b"%d" % (3 * MOST_SAMPLES - 1)
    assert MOST_SAMPLES <= len(found) < 2 * MOST_SAMPLES
    owner.commit(frames=frames_for(1, b"frame"))  # and the commits go on as before


# -- incarnations of the store (law 10)


class Witness(Owner):
    """An owner that remembers what it has seen of the store, as its slot does, and expects it at
    its next claim.
    """

    step = 0
    floor = 0

    def commit(self, **changes: Any) -> Any:
        found = super().commit(**(changes or {"journal": [(1, b"delta")]}))
        self.step = found.step
        return found

    def mark(self) -> StoreMark:
        claimed = self.claimed
        return StoreMark(
            claimed.incarnation,
            claimed.generation,
            max(self.step, claimed.step),
            1_700_000_000_000,
            self.floor,
        )

    def claim_again(self, accepts_loss: bool = False) -> Claim:
        self.claimed = self.transport.claim(
            self.name, self.token_by_task, Expected(self.mark(), accepts_loss)
        )
        self.seq, self.step = self.claimed.seq, self.claimed.step
        return self.claimed


def test_writes_are_counted_and_a_store_that_has_them_all_stays_the_same_incarnation(
    bench: Bench,
) -> None:
    owner = Witness(bench, "o", (1,))
    before = owner.claimed
    steps = [before.step, *(owner.commit().step for _ in range(3)), owner.commit(journal=[]).step]
    assert steps == list(range(steps[0], steps[0] + 5))
    after = owner.claim_again()
    assert after.incarnation == before.incarnation
    assert after.generation == before.generation
    assert after.loss == ""
    assert before.incarnation


def test_a_lost_tail_makes_a_new_incarnation_of_a_greater_generation(bench: Bench) -> None:
    owner = Witness(bench, "o", (1,))
    owner.floor = owner.commit().step
    copy = bench.checkpoint()
    before, former = [owner.commit() for _ in range(3)][-1].step, owner.claimed
    bench.restore(copy)
    found = owner.claim_again()
    assert (found.generation, found.loss) == (former.generation + 1, "")
    assert found.incarnation not in ("", former.incarnation)
    assert found.step > before
    owner.commit()


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_store_that_lost_more_than_its_tail_is_refused_unchanged(
    bench: Bench, is_empty: bool
) -> None:
    copy = bench.checkpoint()
    owner = Witness(bench, "o", (1,))
    owner.commit()
    copy = copy if is_empty else bench.checkpoint()
    owner.floor = owner.commit().step
    owner.commit()
    bench.restore(copy)
    before, generation = bench.dump(), owner.claimed.generation
    with pytest.raises(StoreLostError, match="Redis has lost"):
        owner.claim_again()
    assert bench.dump() == before
    found = owner.claim_again(accepts_loss=True)
    assert found.loss.startswith("Redis has lost")
    assert found.generation == generation + 1
    owner.commit()


@pytest.mark.parametrize("is_claimed", [False, True])
def test_an_emptied_store_is_refused_though_its_writes_were_all_tail(
    bench: Bench, is_claimed: bool
) -> None:
    empty = bench.checkpoint()
    owner = Witness(bench, "o", (1,))
    assert owner.commit() and owner.floor == 0
    bench.restore(empty)
    if is_claimed:
        other = Witness(bench, "other", (2,))  # its slot has not heard of any write
        other.commit()
    before = bench.dump()
    with pytest.raises(StoreLostError, match="it is empty"):
        owner.claim_again()
    assert bench.dump() == before
    assert owner.claim_again(accepts_loss=True).loss.startswith("Redis has lost")
    assert owner.claim_again().loss == ""
    owner.commit()


def test_an_owner_without_a_commit_notices_an_emptied_store_and_a_new_owner(bench: Bench) -> None:
    empty, owner = bench.checkpoint(), Owner(bench, "o", (1,))
    owner.commit()
    before = bench.dump()
    owner.transport.look()
    assert bench.dump() == before
    Owner(bench, "next", (1,), token=2)
    with pytest.raises(FencedError, match="task 1 belongs to token 2 now"):
        owner.transport.look()
    bench.restore(empty)
    with pytest.raises((FencedError, StoreRolledBackError)):
        owner.transport.look()


def test_a_store_emptied_after_a_loss_is_refused_at_any_time(bench: Bench) -> None:
    empty = bench.checkpoint()
    owner = Witness(bench, "o", (1,))
    copy = bench.checkpoint()
    owner.commit()
    bench.restore(copy)
    assert owner.claim_again().generation == 1
    bench.restore(empty)
    with pytest.raises(StoreLostError, match="it is empty"):
        owner.claim_again()


def test_the_generation_grows_over_one_older_copy_after_another(bench: Bench) -> None:
    owner = Witness(bench, "o", (1,))
    owner.commit()
    copy, seen = bench.checkpoint(), [(owner.claimed.generation, owner.claimed.incarnation)]
    for _ in range(3):
        owner.floor = owner.commit().step
        bench.restore(copy)
        found = owner.claim_again(accepts_loss=True)
        seen.append((found.generation, found.incarnation))
    generations, ids = zip(*seen, strict=True)
    assert list(generations) == sorted(set(generations))
    assert len(set(ids)) == len(ids)


def test_a_mark_of_a_former_incarnation_accuses_the_one_that_follows_it_no_more(
    bench: Bench,
) -> None:
    copy = bench.checkpoint()
    one, other = Witness(bench, "one", (1,)), Witness(bench, "other", (2,))
    one.floor = one.commit().step
    for _ in range(5):
        other.floor = other.commit().step
    bench.restore(copy)
    first = one.claim_again(accepts_loss=True)
    second = other.claim_again()
    assert second.generation == first.generation
    assert second.incarnation == first.incarnation
    assert second.loss == ""
    one.commit()
    other.commit()


def test_a_claimer_that_knows_more_than_the_first_one_after_a_loss_says_it(bench: Bench) -> None:
    one, other = Witness(bench, "one", (1,)), Witness(bench, "other", (2,))
    one.floor = one.commit().step
    copy = bench.checkpoint()
    for _ in range(5):
        one.commit()
        other.floor = other.commit().step
    bench.restore(copy)
    first = one.claim_again()  # for all that it knows a tail
    assert first.loss == ""
    before = bench.dump()
    with pytest.raises(StoreLostError, match="Redis has lost"):
        other.claim_again()
    assert bench.dump() == before
    third = Witness(bench, "third", (3,))
    third.claimed, third.floor = other.claimed, other.floor
    second = other.claim_again(accepts_loss=True)
    assert second.loss.startswith("Redis has lost")
    assert f"all since write {one.floor:,}" in second.loss
    assert (second.generation, second.incarnation) == (first.generation, first.incarnation)
    assert third.claim_again().loss == ""  # it was said
    one.commit()
    other.commit()
