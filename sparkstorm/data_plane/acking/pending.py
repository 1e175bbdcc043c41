"""Pending messages of a spout task: their limit, time-outs, latencies, and callbacks still to be
made.

A message goes through three stages: *pending* (its tree is open), *settled* (acked or failed, the
user's callback still to be made), gone. The callback is made only after the commit that settled it,
and is forgotten only with the next commit; a spout that restarts in between is called again
(callbacks are at least once, never early). A spout without callbacks skips the middle stage.

Messages of one batch (common/model/roots.py) are one record, and each is settled by itself: acked with its
batch, or acked, failed or timed out under its split root, which is how a single message is named
here. A message is settled once: a further verdict on it is ignored.

Per epoch: `add` or `add_batch` for emissions, `settle` and `expire`, `take_delta` into the commit,
and after the commit `take_callbacks`, whose outcomes the worker hands to the user's `ack` and
`fail`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from sparkstorm.common.errors import MalformedFrameError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.roots import (
    ID_LIMIT,
    PLACES,
    SPLIT,
    batch_of,
    is_batch,
    place_of,
    split,
)
from sparkstorm.data_plane.acking.pending_limit import AdaptiveLimit

Delta: TypeAlias = list[list[Any]]
"""`[added, settled, gone]`, in that order: rows [root, message id, emit_ms] and, if a bolt has
reset its time-out, when, or [root of a batch, message ids, emit_ms]; rows [root, message id,
failure's row]; roots."""
Snapshot: TypeAlias = list[list[Any]]
"""`[open, settled]`: rows as in a delta."""

_UNKNOWN = Failure(FailureKind.FAILED, "failed")
TIMED_OUT = Failure(FailureKind.TIMED_OUT, "timed out")
_FAR_FUTURE_MS = 1 << 62
_CLOSED: Any = object()
"""In the place of a message id that is not open any more."""
# Batches that fit into the limit of open messages: a batch that is nearly done keeps no more than
# an eighth of the room from new messages. With two batches, one waits for the other; with many, a
# low limit makes batches of one.
_BATCHES_PER_LIMIT = 8


class MessageOutcome(NamedTuple):
    """Pending callback of one message to the user's spout; without a failure it was acked."""

    root: int
    message_id: Any
    failure: Failure | None = None

    @property
    def acked(self) -> bool:
        """Return whether every tuple of the tree was acked."""
        return self.failure is None


class Completion(NamedTuple):
    """Result of one `settle`: numbers of messages, and of the acked ones by latency in
    milliseconds.
    """

    acked: int
    failed: int
    count_by_latency: dict[int, int]


class _MessageBatch:
    """Messages of one moment, by their places; a tree by itself is a batch of one."""

    __slots__ = ("emit_ms", "ids", "open", "root")

    def __init__(self, root: int, ids: list[Any], emit_ms: int) -> None:
        self.root = root
        self.ids = ids
        self.emit_ms = emit_ms
        self.open = len(ids)

    def members(self) -> Iterator[tuple[int, int]]:
        """Places and roots of the open messages."""
        first = split(self.root)
        return (
            (index, first + index)
            for index, message_id in enumerate(self.ids)
            if message_id is not _CLOSED
        )


class Pending:
    """The open messages of one spout task, oldest first."""

    __slots__ = (
        "_added",
        "_adaptive",
        "_batches",
        "_count",
        "_due",
        "_gone",
        "_keeps_settled",
        "_limit",
        "_is_in_order",
        "_oldest_ms",
        "_renewed",
        "_renewed_unwritten",
        "_settled",
        "_unwritten",
    )

    def __init__(
        self,
        max_spout_pending: int | str | None = None,
        needs_callbacks: bool = True,
        workers: int = 1,
        timeout_ms: float = math.inf,
    ) -> None:
        """`workers` among which the trees' rows are divided; `timeout_ms` of a message."""
        self._adaptive = AdaptiveLimit(workers, timeout_ms) if max_spout_pending == "auto" else None
        limit = self._adaptive.limit if self._adaptive is not None else max_spout_pending
        if isinstance(limit, str) or (limit is not None and limit < 1):
            raise ValueError(
                f"topology.max.spout.pending must be 1 or more, or auto, not {max_spout_pending!r}"
            )
        self._limit = limit
        self._keeps_settled = needs_callbacks
        self._batches: dict[int, _MessageBatch] = {}  # by their root
        self._count = 0  # open messages
        # no open message is older; lets expire() return without looking
        self._oldest_ms = _FAR_FUTURE_MS
        self._is_in_order = True  # emissions are in the order of time
        self._settled: dict[int, MessageOutcome] = {}
        self._due: list[MessageOutcome] = []  # settled and not yet handed out
        # root of a message -> when a bolt last reset its time-out
        self._renewed: dict[int, int] = {}
        self._renewed_unwritten: dict[int, None] = {}
        # The journal's side: the content of the next delta.
        self._added: dict[int, None] = {}  # batches
        self._unwritten: list[int] = []
        self._gone: list[int] = []

    def __len__(self) -> int:
        """Open messages; settled ones whose callback is due no longer count."""
        return self._count

    def __contains__(self, root: int) -> bool:
        return self._find(root) is not None

    @property
    def room(self) -> int:
        """Number of messages that may be emitted now (`topology.max.spout.pending`, per task)."""
        return _FAR_FUTURE_MS if self._limit is None else max(0, self._limit - self._count)

    def batch_size(self, most: int) -> int:
        """Return how many messages a batch may have now."""
        return most if self._limit is None else max(1, min(most, self._limit // _BATCHES_PER_LIMIT))

    @property
    def idle(self) -> bool:
        """Return whether nothing is open, every callback was made and the journal has it."""
        return not (self._batches or self._settled or self._gone)

    @property
    def oldest_emit_ms(self) -> int | None:
        """Emit time of the oldest open message."""
        if not self._is_in_order:
            return min((batch.emit_ms for batch in self._batches.values()), default=None)
        for batch in self._batches.values():
            return batch.emit_ms
        return None

    def messages(self) -> Iterator[tuple[int, Any, int]]:
        """Yield the open messages: the root that names each, its id, and when it was emitted."""
        for batch in self._batches.values():
            yield from ((root, batch.ids[index], batch.emit_ms) for index, root in batch.members())

    def add(self, root: int, message_id: Any, emit_ms: int) -> None:
        """Remember an emission that is a tree by itself; roots are never reused."""
        self.add_batch(root, [message_id], emit_ms)

    def add_batch(self, root: int, message_ids: list[Any], emit_ms: int) -> None:
        """Remember the emissions of a batch, in the order of their places; takes the list over."""
        self._batches[root] = _MessageBatch(root, message_ids, emit_ms)
        self._added[root] = None
        self._count += len(message_ids)
        if emit_ms < self._oldest_ms:
            self._oldest_ms = emit_ms

    def settle(
        self,
        acked: Iterable[int],
        failed: Iterable[int],
        now_ms: int,
        failure: Failure = _UNKNOWN,
        kept: Collection[int] = (),
    ) -> Completion:
        """Close trees and batches that the ackers reported; `kept`: split roots that stay open when
        their batch is acked.

        Unknown roots (timed out before, or repeated) are ignored.
        """
        before = self._count
        latencies = self._ack(acked, now_ms, frozenset(kept))
        if self._adaptive is not None:
            self._adaptive.note(latencies, before, now_ms)
            self._limit = self._adaptive.limit
        failures = 0
        for root in failed:
            if (member := self._find(root)) is not None:
                failures += 1
                self._close(*member, failure)
        return Completion(sum(latencies.values()), failures, latencies)

    def _ack(self, acked: Iterable[int], now_ms: int, kept: frozenset[int]) -> dict[int, int]:
        """Close acked trees and batches; return the number of their messages by latency."""
        # Counted here: messages of a batch have one latency, and a list of all of them, counted
        # with the commit, took 4 % of the CPU of a chain of small bolts.
        count_by_latency: dict[int, int] = {}
        leaves_whole = not (self._keeps_settled or self._renewed or kept)
        for root in acked:
            batch = self._batches.get(root)
            if batch is None:
                if root >= SPLIT and (member := self._find(root)) is not None:
                    latency = max(0, now_ms - member[0].emit_ms)
                    count_by_latency[latency] = count_by_latency.get(latency, 0) + 1
                    self._close(*member, None)
                continue
            latency = max(0, now_ms - batch.emit_ms)
            if leaves_whole:
                del self._batches[root]
                count = batch.open
                self._count -= count
                # a message that began and ended inside one epoch leaves no trace
                if root in self._added:
                    del self._added[root]
                else:
                    self._gone.append(root)
            else:
                ended = [index for index, member in batch.members() if member not in kept]
                for index in ended:
                    self._close(batch, index, None)
                count = len(ended)
            if count:
                count_by_latency[latency] = count_by_latency.get(latency, 0) + count
        return count_by_latency

    def _find(self, root: int) -> tuple[_MessageBatch, int] | None:
        """The batch and the place of an open message."""
        batch = self._batches.get(batch_of(root))
        index = place_of(root)
        if batch is None or index >= len(batch.ids) or batch.ids[index] is _CLOSED:
            return None
        return batch, index

    def renew(self, roots: Iterable[int], now_ms: int) -> None:
        """Let the time-outs of these messages begin anew (Storm's `resetTimeout`); unknown roots
        are ignored.
        """
        for root in roots:
            if root in self:
                self._renewed[root] = now_ms
                self._renewed_unwritten[root] = None

    def expire(
        self,
        now_ms: int,
        timeout_ms: int,
        low_watermark_ms: int | None,
        failure: Failure = TIMED_OUT,
    ) -> list[int]:
        """Fail the messages that are too old and return their roots.

        Too old: emitted or renewed `timeout_ms` ago or more, and before `low_watermark_ms`, the
        birth of the oldest root that waits in any inbox, held set or blocking queue (None: nothing
        waits). A tuple that waits is not a failed tuple.
        """
        limit_ms = now_ms - timeout_ms + 1
        if low_watermark_ms is not None:
            limit_ms = min(limit_ms, low_watermark_ms)
        if limit_ms <= self._oldest_ms:
            return []
        late = self._older_than(limit_ms)
        for batch, index, _ in late:
            self._close(
                batch,
                index,
                replace(failure, time_ms=now_ms, waited_ms={"tree": now_ms - batch.emit_ms}),
            )
        self._oldest_ms = _FAR_FUTURE_MS if (oldest := self.oldest_emit_ms) is None else oldest
        return [root for _, _, root in late]

    def _older_than(self, limit_ms: int) -> list[tuple[_MessageBatch, int, int]]:
        late = []
        for batch in self._batches.values():
            if batch.emit_ms >= limit_ms:
                if self._is_in_order:
                    break
                continue
            for index, root in batch.members():
                if self._renewed.get(root, batch.emit_ms) < limit_ms:
                    late.append((batch, index, root))
        return late

    def _close(self, batch: _MessageBatch, index: int, failure: Failure | None) -> None:
        root = split(batch.root) + index
        message_id = batch.ids[index]
        batch.ids[index] = _CLOSED
        batch.open -= 1
        self._count -= 1
        if self._renewed:
            self._renewed.pop(root, None)
            self._renewed_unwritten.pop(root, None)
        journalled = batch.root not in self._added
        if not batch.open:
            del self._batches[batch.root]
            self._added.pop(batch.root, None)
        if self._keeps_settled:
            outcome = self._settled[root] = MessageOutcome(root, message_id, failure)
            self._due.append(outcome)
            self._unwritten.append(root)
        elif journalled:
            self._gone.append(root)

    @property
    def has_callbacks(self) -> bool:
        """Return whether callbacks are to be made, or not confirmed yet."""
        return bool(self._settled)

    def take_callbacks(self) -> list[MessageOutcome]:
        """Callbacks to make now; call it after the commit whose delta has them as due."""
        outcomes = self._due
        self._due = []
        return outcomes

    def confirm(self, outcomes: Iterable[MessageOutcome]) -> None:
        """Take note that these callbacks returned; the next delta forgets them."""
        for outcome in outcomes:
            if self._settled.pop(outcome.root, None) is not None:
                self._gone.append(outcome.root)

    def take_delta(self) -> Delta:
        """Return the changes since the last call, as lists for msgpack; empty when there are
        none.
        """
        if not (self._added or self._unwritten or self._gone or self._renewed_unwritten):
            return []
        added = [row for root in self._added for row in self._rows(self._batches[root])]
        for root in self._renewed_unwritten:
            if batch_of(root) not in self._added:
                added.append(self._member_row(self._batches[batch_of(root)], place_of(root), root))
        written = [_row(self._settled[root]) for root in self._unwritten if root in self._settled]
        delta: Delta = [added, written, self._gone]
        self._added = {}
        self._renewed_unwritten = {}
        self._unwritten = []
        self._gone = []
        return delta

    def _rows(self, batch: _MessageBatch) -> list[list[Any]]:
        """Rows of a batch's open messages: one for all, or one for each when some are not like the
        others.
        """
        is_whole = batch.open == len(batch.ids)
        if is_whole and (
            not self._renewed or not any(root in self._renewed for _, root in batch.members())
        ):
            return [
                [batch.root, batch.ids[:] if is_batch(batch.root) else batch.ids[0], batch.emit_ms]
            ]
        return [self._member_row(batch, index, root) for index, root in batch.members()]

    def _member_row(self, batch: _MessageBatch, index: int, root: int) -> list[Any]:
        return [
            root,
            batch.ids[index],
            batch.emit_ms,
            *([self._renewed[root]] if root in self._renewed else []),
        ]

    def snapshot(self) -> Snapshot:
        """Return all open messages as of the last delta; take the delta first."""
        opened = [row for batch in self._batches.values() for row in self._rows(batch)]
        return [opened, [_row(outcome) for outcome in self._settled.values()]]

    def load(self, snapshot: Any, deltas: Iterable[Any] = (), now_ms: int = _FAR_FUTURE_MS) -> None:
        """Become the spout task that wrote them; every callback that was not confirmed is due
        again.

        The clock of the former owner may have been ahead: messages from after `now_ms` come before
        newer ones with an earlier time. MalformedFrameError (and nothing changed) when one is not what `snapshot` and `take_delta`
        make.
        """
        batches, renewed, settled = _replay(snapshot, deltas)
        self._batches = {
            batch.root: batch for batch in sorted(batches.values(), key=lambda batch: batch.emit_ms)
        }
        self._count = sum(batch.open for batch in batches.values())
        self._is_in_order = all(batch.emit_ms <= now_ms for batch in batches.values())
        self._renewed = {root: at_ms for root, at_ms in renewed.items() if root in self}
        self._renewed_unwritten = {}
        self._oldest_ms = _FAR_FUTURE_MS if (oldest := self.oldest_emit_ms) is None else oldest
        self._settled = settled if self._keeps_settled else {}
        self._due = list(self._settled.values())
        # A spout whose new version has no callbacks drops those that its old version still waited
        # for.
        self._added, self._unwritten, self._gone = (
            {},
            [],
            [] if self._keeps_settled else list(settled),
        )


def open_messages(opened: Sequence[Sequence[Any]]) -> Iterator[int]:
    """Roots of the messages in the first part of a snapshot."""
    for root, ids, *_ in opened:
        if is_batch(root):
            yield from range(split(root), split(root) + len(ids))
        else:
            yield root


def _replay(
    snapshot: Any, deltas: Iterable[Any]
) -> tuple[dict[int, _MessageBatch], dict[int, int], dict[int, MessageOutcome]]:
    batches: dict[int, _MessageBatch] = {}
    renewed: dict[int, int] = {}
    settled: dict[int, MessageOutcome] = {}
    added, closed = _parts(snapshot, 2, "pending snapshot") if snapshot else ([], [])
    records: list[Any] = [(added, closed, [])]
    records += [
        _parts(delta, 3, f"pending delta {index}") for index, delta in enumerate(deltas) if delta
    ]
    for added, closed, gone in records:
        for row in added:
            _open(batches, renewed, *row)
        for root, message_id, row in closed:
            _shut(batches, root)
            settled[root] = MessageOutcome(root, message_id, _failure(row))
        for root in gone:
            _shut(batches, root)
            settled.pop(root, None)
    for root, batch in list(batches.items()):
        batch.open = sum(message_id is not _CLOSED for message_id in batch.ids)
        if not batch.open:
            del batches[root]
    return batches, renewed, settled


def _open(
    batches: dict[int, _MessageBatch],
    renewed: dict[int, int],
    root: int,
    message_id: Any,
    emit_ms: int,
    *renewed_ms: int,
) -> None:
    if is_batch(root):
        batches[root] = _MessageBatch(root, list(message_id), emit_ms)
        return
    batch = batches.setdefault(batch_of(root), _MessageBatch(batch_of(root), [], emit_ms))
    index = place_of(root)
    batch.ids += [_CLOSED] * (index + 1 - len(batch.ids))
    batch.ids[index] = message_id
    for at_ms in renewed_ms:
        renewed[root] = at_ms


def _shut(batches: dict[int, _MessageBatch], root: int) -> None:
    """Close a message, or all that are left of a batch."""
    batch = batches.get(batch_of(root))
    index = place_of(root)
    if batch is not None and is_batch(root):
        del batches[root]
    elif batch is not None and index < len(batch.ids):
        batch.ids[index] = _CLOSED


def _row(outcome: MessageOutcome) -> list[Any]:
    return [
        outcome.root,
        outcome.message_id,
        [] if outcome.failure is None else outcome.failure.to_row(),
    ]


def _failure(row: list[Any], name: str = "pending") -> Failure | None:
    try:
        return Failure.from_row(row) if row else None
    except ValueError as error:
        raise MalformedFrameError(f"{name}, settled: {error}") from error


def _parts(record: Any, parts: int, name: str) -> Any:
    if (
        not isinstance(record, (list, tuple))
        or len(record) != parts
        or not all(isinstance(p, list) for p in record)
    ):
        raise MalformedFrameError(f"{name}: not {parts} lists")
    _require_rows(record[0], int, f"{name}, added", is_renewable=True)
    _require_rows(record[1], list, f"{name}, settled")
    for row in record[1]:
        _failure(row[2], name)
    for root in record[2] if parts == 3 else ():
        _require_root(root, f"{name}, gone")
    return record


def _require_rows(rows: list[Any], last: type, name: str, is_renewable: bool = False) -> None:
    for row in rows:
        is_row = isinstance(row, (list, tuple)) and (
            len(row) == 3 or (is_renewable and len(row) == 4)
        )
        if not is_row or any(type(value) is not last for value in row[2:]):
            raise MalformedFrameError(
                f"{name}: {row!r:.80} is not [root, message id, {last.__name__}]"
            )
        _require_root(row[0], name)
        if is_batch(row[0]) and (
            type(row[1]) is not list
            or not 0 < len(row[1]) <= PLACES
            or place_of(row[0])
            or len(row) > 3
        ):
            raise MalformedFrameError(
                f"{name}: {row!r:.80} is not [root of a batch, message ids, {last.__name__}]"
            )


def _require_root(root: Any, name: str) -> None:
    if type(root) is not int or not 0 < root < ID_LIMIT:
        raise MalformedFrameError(f"{name}: {root!r:.80} is no root id")
