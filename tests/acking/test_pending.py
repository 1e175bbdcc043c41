"""Checks the promises to a spout task about its messages: the limit, time-outs, latency and
callbacks.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import ormsgpack
import pytest

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.roots import batch_root, split, tree_root
from sparkstorm.data_plane.acking.pending import MessageOutcome, Pending, open_messages

FAILED = Failure(FailureKind.FAILED, "no", "bolt", 3)


def why(outcome: MessageOutcome) -> FailureKind | None:
    return None if outcome.failure is None else outcome.failure.kind


def over_the_wire(value: Any) -> Any:
    return ormsgpack.unpackb(ormsgpack.packb(value))


def restarted(*deltas: Any, snapshot: Any = (), needs_callbacks: bool = True) -> Pending:
    pending = Pending(needs_callbacks=needs_callbacks)
    pending.load(over_the_wire(snapshot), [over_the_wire(delta) for delta in deltas])
    return pending


def test_s1_2_the_spout_is_told_about_success_and_failure_of_each_message() -> None:
    pending = Pending()
    pending.add(1, "a", 0)
    pending.add(2, "b", 0)
    pending.settle(acked=[1], failed=[2], now_ms=5, failure=FAILED)
    assert pending.take_callbacks() == [MessageOutcome(1, "a"), MessageOutcome(2, "b", FAILED)]
    assert [
        outcome.acked for outcome in (MessageOutcome(1, "a"), MessageOutcome(2, "b", FAILED))
    ] == [
        True,
        False,
    ]


def test_s1_2_a_message_that_is_not_processed_within_the_timeout_failed() -> None:
    pending = Pending()
    pending.add(1, "a", 0)
    assert pending.expire(29_999, 30_000, None) == []
    assert pending.expire(30_000, 30_000, None) == [1]
    result = [(o.message_id, why(o)) for o in pending.take_callbacks()]
    assert result == [("a", FailureKind.TIMED_OUT)]


def test_s1_19_the_spouts_own_pending_fails_what_the_acker_dropped_silently() -> None:
    pending = Pending()
    pending.add(1, "a", 0)
    pending.expire(60_000, 30_000, None)
    completion = pending.settle(acked=[1], failed=[], now_ms=60_001)
    assert completion.acked == 0
    assert list(map(why, pending.take_callbacks())) == [FailureKind.TIMED_OUT]


def test_a_tuple_that_waits_is_not_a_failed_tuple() -> None:
    pending = Pending()
    for root in (1, 2, 3):
        pending.add(root, None, root * 10)
    assert pending.expire(1000, 30, low_watermark_ms=10) == []
    assert pending.expire(1000, 30, low_watermark_ms=20) == [1]
    assert pending.expire(1000, 30, low_watermark_ms=None) == [2, 3]


def test_only_the_old_messages_time_out_and_the_others_in_their_turn() -> None:
    pending = Pending()
    for at_ms in range(10):
        pending.add(at_ms + 1, None, at_ms)
    assert pending.expire(104, 100, None) == [1, 2, 3, 4, 5]
    assert pending.oldest_emit_ms == 5
    assert pending.expire(104, 100, None) == []
    assert pending.expire(200, 100, None) == [6, 7, 8, 9, 10]
    assert pending.oldest_emit_ms is None


def test_a_shorter_timeout_is_obeyed_at_once() -> None:
    pending = Pending()
    pending.add(1, None, 0)
    assert pending.expire(50, 100, None) == []
    assert pending.expire(50, 50, None) == [1]


def test_the_gate_counts_open_messages_per_task() -> None:
    pending = Pending(max_spout_pending=2)
    pending.add(1, None, 0)
    assert pending.room == 1
    pending.add(2, None, 0)
    assert pending.room == 0
    pending.settle([1], [], 1)
    assert pending.room == 1
    assert Pending().room > 1 << 60


def test_a_gate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max\.spout\.pending"):
        Pending(max_spout_pending=0)


def test_the_latency_of_acked_messages_is_reported_and_never_negative() -> None:
    pending = Pending()
    pending.add(1, None, 100)
    pending.add(2, None, 200)
    pending.add(3, None, 900)
    assert pending.settle([1, 2, 9], [3], 150).count_by_latency == {50: 1, 0: 1}


def test_a_root_told_twice_is_ignored() -> None:
    pending = Pending()
    pending.add(1, "a", 0)
    assert pending.settle([1, 1], [1], 1)[:2] == (1, 0)
    assert len(pending.take_callbacks()) == 1


def test_callbacks_are_handed_out_once_while_the_spout_lives() -> None:
    pending = Pending()
    pending.add(1, "a", 0)
    pending.settle([1], [], 1)
    assert len(pending.take_callbacks()) == 1
    assert pending.take_callbacks() == []


def test_callbacks_that_no_later_commit_confirmed_are_due_again_after_a_restart() -> None:
    pending = Pending()
    pending.add(1, "a", 0)
    pending.add(2, "b", 0)
    opened = pending.take_delta()
    pending.settle([1], [2], 1)
    settled = pending.take_delta()
    outcomes = pending.take_callbacks()
    assert restarted(opened, settled).take_callbacks() == outcomes
    pending.confirm(outcomes[:1])
    confirmed = pending.take_delta()
    assert restarted(opened, settled, confirmed).take_callbacks() == outcomes[1:]


def test_a_spout_that_restarts_before_the_settling_commit_still_has_the_message_open() -> None:
    pending = Pending()
    pending.add(1, ["file", 7], 40)
    again = restarted(pending.take_delta())
    assert 1 in again
    assert again.take_callbacks() == []
    assert again.settle([1], [], 100).count_by_latency == {60: 1}
    assert again.take_callbacks() == [MessageOutcome(1, ["file", 7])]


def test_a_message_that_begins_and_ends_in_one_epoch_is_journalled_only_for_its_callback() -> None:
    pending = Pending()
    pending.add(1, "a", 0)
    pending.settle([1], [], 1)
    assert pending.take_delta() == [[], [[1, "a", []]], []]
    silent = Pending(needs_callbacks=False)
    silent.add(1, None, 0)
    silent.settle([1], [], 1)
    assert silent.take_delta() == []


def test_a_spout_without_callbacks_skips_the_settled_stage() -> None:
    pending = Pending(needs_callbacks=False)
    pending.add(1, None, 0)
    opened = pending.take_delta()
    assert pending.settle([1], [], 7) == (1, 0, {7: 1})
    assert pending.take_callbacks() == []
    closed = pending.take_delta()
    assert closed == [[], [], [1]]
    assert len(restarted(opened, closed, needs_callbacks=False)) == 0


def test_a_new_version_without_callbacks_lets_go_of_those_still_due() -> None:
    pending = Pending()
    pending.add(1, "a", 0)
    pending.settle([1], [], 1)
    settled = pending.take_delta()
    again = restarted(settled, needs_callbacks=False)
    assert again.take_callbacks() == []
    assert again.take_delta() == [[], [], [1]]
    assert again.idle


def test_idle_means_nothing_open_nothing_due_and_nothing_unwritten() -> None:
    pending = Pending()
    seen = [pending.idle]
    pending.add(1, "a", 0)
    seen.append(pending.idle)
    pending.settle([1], [], 1)
    pending.take_delta()
    seen.append(pending.idle)
    pending.confirm(pending.take_callbacks())
    seen.append(pending.idle)
    pending.take_delta()
    assert [*seen, pending.idle] == [True, False, False, False, True]


def test_an_epoch_without_change_journals_nothing() -> None:
    pending = Pending()
    pending.add(1, "a", 0)
    assert pending.take_delta() == [[[1, "a", 0]], [], []]
    assert pending.take_delta() == []


def test_a_snapshot_replaces_the_deltas_before_it() -> None:
    pending = Pending()
    for root in (1, 2, 3):
        pending.add(root, f"m{root}", root)
    pending.settle([2], [], 5)
    pending.take_delta()
    snapshot = pending.snapshot()
    pending.settle([3], [], 6)
    again = restarted(pending.take_delta(), snapshot=snapshot)
    assert len(again) == 1
    assert again.oldest_emit_ms == 1
    assert [outcome.root for outcome in again.take_callbacks()] == [2, 3]
    assert again.expire(100, 50, None) == [1]


def test_callbacks_made_before_their_delta_was_taken_leave_nothing_behind() -> None:
    pending = Pending()
    pending.add(1, "a", 0)
    opened = pending.take_delta()
    pending.settle([1], [], 1)
    pending.confirm(pending.take_callbacks())
    again = restarted(opened, pending.take_delta())
    assert len(again) == 0
    assert again.take_callbacks() == []


@pytest.mark.parametrize(
    "record",
    [
        "text",
        [[], []],
        [[], [], [], []],
        [{}, [], []],
        [[[1, "a"]], [], []],
        [[["1", "a", 0]], [], []],
        [[[0, "a", 0]], [], []],
        [[[1 << 63, "a", 0]], [], []],
        [[[True, "a", 0]], [], []],
        [[[1, "a", "now"]], [], []],
        [[[1 << 61, "a", 0]], [], []],
        [[[1 << 61, [], 0]], [], []],
        [[[1 << 61, ["a"] * 1025, 0]], [], []],
        [[[1 << 61 | 1, ["a"], 0]], [], []],
        [[[1 << 61, ["a"], 0, 0]], [], []],
        [[], [[1, "a", 0]], []],
        [[], ["abc"], []],
        [[], [[1, "a", ["failed"]]], []],
        [[], [], ["1"]],
        [[], [], [-1]],
    ],
)
def test_a_delta_that_is_not_ours_is_refused_and_changes_nothing(record: Any) -> None:
    pending = Pending()
    pending.add(5, "kept", 0)
    with pytest.raises(MalformedFrameError, match="pending delta 0"):
        pending.load([], [record])
    assert 5 in pending


@pytest.mark.parametrize("snapshot", ["text", [[]], [[], [], []], [[[1, "a", None]], []], 7])
def test_a_snapshot_that_is_not_ours_is_refused(snapshot: Any) -> None:
    with pytest.raises(MalformedFrameError, match="pending snapshot"):
        Pending().load(snapshot)


class ByMessage:
    """Pending messages one by one: what a batch must not change of them."""

    def __init__(self, needs_callbacks: bool) -> None:
        self.open: dict[int, tuple[Any, int, int]] = {}  # message id, emission, renewal
        self.outcomes: list[MessageOutcome] = []
        self.needs_callbacks = needs_callbacks

    def close(self, roots: list[int], kind: FailureKind | None) -> int:
        found = [(root, self.open.pop(root)[0]) for root in roots if root in self.open]
        for root, message_id in found if self.needs_callbacks else ():
            self.outcomes.append(
                MessageOutcome(root, message_id, None if kind is None else Failure(kind, "why"))
            )
        return len(found)


class BothForms:
    """The same messages in a Pending as batches and in a ByMessage one by one; random acts on both
    must agree.
    """

    def __init__(self, seed: int, size: int) -> None:
        self.chance, self.size, self.needs_callbacks = random.Random(seed), size, seed % 2 == 0
        self.pending = Pending(needs_callbacks=self.needs_callbacks)
        self.plain = ByMessage(self.needs_callbacks)
        self.now_ms = 0
        self.members: dict[int, list[int]] = {}  # of all batches so far

    def act(self, number: int) -> None:
        """Do one thing to both; `number` is that of a new batch."""
        self.now_ms += self.chance.randrange(5)
        match self.chance.randrange(7):
            case 0 | 1:
                self.emit(number)
            case 2 if self.members:
                self.settle_batch()
            case 3 | 4 if self.members:
                self.settle_messages()
            case 5 if self.members:
                self.renew_message()
            case 6:
                self.expire()

    def emit(self, number: int) -> None:
        ids = [f"m{number}-{n}" for n in range(self.chance.randint(1, min(self.size, 20)))]
        root = tree_root(number) if self.size == 1 else batch_root(number << 10)
        members = self.members[root] = [split(root) + place for place in range(len(ids))]
        self.plain.open |= {
            member: (name, self.now_ms, self.now_ms)
            for member, name in zip(members, ids, strict=True)
        }
        self.pending.add_batch(root, ids, self.now_ms)

    def settle_batch(self) -> None:
        root = self.chance.choice(list(self.members))
        members, kept = self.members[root], list[int]()
        if self.chance.random() < 0.5:
            kept = self.chance.sample(members, self.chance.randint(0, len(members) - 1))
        ended = [member for member in members if member not in kept]
        latencies = [
            self.now_ms - self.plain.open[member][1]
            for member in ended
            if member in self.plain.open
        ]
        self.plain.close(ended, None)
        result = self.pending.settle([root], [], self.now_ms, kept=kept)
        assert result == (len(latencies), 0, Counter(latencies))

    def settle_messages(self) -> None:
        roots = [self.any_message() for _ in range(3)]
        acked, lost = roots[:2], roots[2:]
        done = self.plain.close(acked, None), self.plain.close(lost, FailureKind.FAILED)
        assert (
            self.pending.settle(acked, lost, self.now_ms, Failure(FailureKind.FAILED, "why"))[:2]
            == done
        )

    def renew_message(self) -> None:
        root = self.any_message()
        self.pending.renew([root], self.now_ms)
        if root in self.plain.open:
            self.plain.open[root] = (*self.plain.open[root][:2], self.now_ms)

    def expire(self) -> None:
        late = [
            root
            for root, (_, _, renewed_ms) in self.plain.open.items()
            if renewed_ms <= self.now_ms - 60
        ]
        why_late = Failure(FailureKind.TIMED_OUT, "why")
        assert sorted(self.pending.expire(self.now_ms, 60, None, why_late)) == sorted(late)
        self.plain.close(late, FailureKind.TIMED_OUT)

    def any_message(self) -> int:
        """Return a message of any batch so far; it may be closed."""
        return self.chance.choice(self.chance.choice(list(self.members.values())))

    def require_the_same_open(self) -> None:
        assert len(self.pending) == len(self.plain.open)
        assert sorted(open_messages(self.pending.snapshot()[0])) == sorted(self.plain.open)
        result = self.pending.oldest_emit_ms
        assert result == min((emit_ms for _, emit_ms, _ in self.plain.open.values()), default=None)


@pytest.mark.parametrize("size", [1, 2, 512])
@pytest.mark.parametrize("seed", range(8))
def test_messages_of_a_batch_are_settled_as_if_each_were_alone(seed: int, size: int) -> None:
    both = BothForms(seed, size)
    snapshot, deltas, told = list[Any](), list[Any](), list[MessageOutcome]()
    for number in range(1, 120):
        both.act(number)
        told += both.pending.take_callbacks()
        deltas.append(both.pending.take_delta())
        if both.chance.random() < 0.1:
            snapshot, deltas = both.pending.snapshot(), []
        if both.chance.random() < 0.3:
            both.pending = restarted(
                *deltas, snapshot=snapshot, needs_callbacks=both.needs_callbacks
            )
            assert len(both.pending.take_callbacks()) == len(told)
        both.require_the_same_open()
    outcomes = {o.root: (o.message_id, why(o)) for o in told}
    assert outcomes == {o.root: (o.message_id, why(o)) for o in both.plain.outcomes}
    assert len(told) == len(outcomes) == len(both.plain.outcomes)
    assert told or not both.needs_callbacks
    both.pending.confirm(told)
    deltas.append(both.pending.take_delta())
    assert not restarted(
        *deltas, snapshot=snapshot, needs_callbacks=both.needs_callbacks
    ).take_callbacks()


def test_a_batch_takes_an_eighth_of_the_limit() -> None:
    result = [Pending(limit).batch_size(512) for limit in (None, 5000, 1000, 8, 5)]
    assert result == [512, 512, 125, 1, 1]


@pytest.mark.parametrize("root", [tree_root(5 << 20), batch_root(5 << 20)])
def test_a_message_that_began_and_failed_in_one_epoch_is_not_in_the_journal(root: int) -> None:
    pending = Pending(needs_callbacks=False)
    pending.add_batch(root, ["a"], 0)
    pending.settle(acked=[], failed=[split(root)], now_ms=5)
    assert pending.take_delta() == []
    pending.add_batch(root, ["a"], 6)
    pending.take_delta()
    pending.settle(acked=[], failed=[split(root)], now_ms=9)
    assert pending.take_delta() == [[], [], [split(root)]]


def test_messages_from_the_future_hide_no_newer_one_that_is_late() -> None:
    former = Pending()
    former.add(1, "a", 6_000)
    former.take_delta()
    pending = Pending()
    pending.load(former.snapshot(), now_ms=0)  # on a clock that is 6 s behind
    pending.add(2, "b", 1_000)
    assert pending.oldest_emit_ms == 1_000
    assert pending.expire(3_000, 2_000, None) == [2]
    assert pending.expire(8_000, 2_000, None) == [1]
