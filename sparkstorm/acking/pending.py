"""Pending messages of a spout task: their limit, time-outs, latencies, and callbacks still to be made.

A message goes through three stages: *pending* (its tree is open), *settled* (acked or failed, the user's callback
still to be made), gone. The callback is made only after the commit that settled it, and is forgotten only with the
next commit; a spout that restarts in between is called again (callbacks are at least once, never early). A spout
without callbacks skips the middle stage.

Per epoch: `add` for each emission, `settle` and `expire`, `take_delta` into the commit, and after the commit
`take_callbacks`, whose outcomes the worker hands to the user's `ack` and `fail`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from sparkstorm.acking.batch import ID_LIMIT
from sparkstorm.acking.pending_limit import AdaptiveLimit
from sparkstorm.errors import MalformedFrameError
from sparkstorm.model.failure import Failure, FailureKind

Delta: TypeAlias = list[list[Any]]
"""`[added, settled, gone]`, in that order: rows [root, message id, emit_ms] and, if a bolt has reset its time-out, when; rows
[root, message id, failure's row]; roots."""
Snapshot: TypeAlias = list[list[Any]]
"""`[open, settled]`: rows as in a delta."""

_UNKNOWN = Failure(FailureKind.FAILED, "failed")
TIMED_OUT = Failure(FailureKind.TIMED_OUT, "timed out")
_FAR_FUTURE_MS = 1 << 62


class Outcome(NamedTuple):
    """Pending callback of one message to the user's spout; without a failure it was acked."""

    root: int
    message_id: Any
    failure: Failure | None = None

    @property
    def acked(self) -> bool:
        """Return whether every tuple of the tree was acked."""
        return self.failure is None


class Completion(NamedTuple):
    """Result of one `settle`; latencies are those of the acked messages, in the order given."""

    acked: int
    failed: int
    latencies_ms: list[int]


class Pending:
    """The open messages of one spout task, oldest first."""

    __slots__ = (
        "_added",
        "_adaptive",
        "_renewed",
        "_renewed_unwritten",
        "_due",
        "_gone",
        "_keeps_settled",
        "_limit",
        "_oldest_ms",
        "_open",
        "_settled",
        "_unwritten",
    )

    def __init__(self, max_spout_pending: int | str | None = None, needs_callbacks: bool = True, workers: int = 1) -> None:
        """`workers` among which the trees' rows are divided."""
        self._adaptive = AdaptiveLimit(workers) if max_spout_pending == "auto" else None
        limit = self._adaptive.limit if self._adaptive is not None else max_spout_pending
        if isinstance(limit, str) or (limit is not None and limit < 1):
            raise ValueError(f"topology.max.spout.pending must be 1 or more, or auto, not {max_spout_pending!r}")
        self._limit = limit
        self._keeps_settled = needs_callbacks
        self._open: dict[int, tuple[Any, int]] = {}
        self._oldest_ms = _FAR_FUTURE_MS  # no open message is older; lets expire() return without looking
        self._settled: dict[int, Outcome] = {}
        self._due: list[Outcome] = []  # settled and not yet handed out
        self._renewed: dict[int, int] = {}  # root -> when a bolt last reset its time-out
        self._renewed_unwritten: dict[int, None] = {}
        # The journal's side: what the next delta must say.
        self._added: dict[int, None] = {}
        self._unwritten: list[int] = []
        self._gone: list[int] = []

    def __len__(self) -> int:
        """Open messages; settled ones whose callback is due no longer count."""
        return len(self._open)

    def __contains__(self, root: int) -> bool:
        return root in self._open

    @property
    def room(self) -> int:
        """Number of messages that may be emitted now (`topology.max.spout.pending`, per task)."""
        return _FAR_FUTURE_MS if self._limit is None else max(0, self._limit - len(self._open))

    @property
    def idle(self) -> bool:
        """Return whether nothing is open, every callback was made and the journal knows it."""
        return not (self._open or self._settled or self._gone)

    @property
    def oldest_emit_ms(self) -> int | None:
        """Emit time of the oldest open message."""
        for _, emit_ms in self._open.values():
            return emit_ms
        return None

    def add(self, root: int, message_id: Any, emit_ms: int) -> None:
        """Remember an emission; roots are never reused."""
        self.add_all(((root, message_id),), emit_ms)

    def add_all(self, born: Sequence[tuple[int, Any]], emit_ms: int) -> None:
        """Remember emissions, (root, message id) each, of one moment."""
        for root, message_id in born:
            self._open[root] = (message_id, emit_ms)
            self._added[root] = None
        if born and emit_ms < self._oldest_ms:
            self._oldest_ms = emit_ms

    def settle(self, acked: Iterable[int], failed: Iterable[int], now_ms: int, failure: Failure = _UNKNOWN) -> Completion:
        """Close trees the ackers reported; unknown roots (timed out before, or repeated) are ignored."""
        before = len(self._open)
        latencies = self._ack(acked, now_ms)
        if self._adaptive is not None:
            self._adaptive.note(latencies, before, now_ms)
            self._limit = self._adaptive.limit
        failures = 0
        for root in failed:
            entry = self._open.pop(root, None)
            if entry is not None:
                failures += 1
                self._close(root, entry[0], failure)
        return Completion(len(latencies), failures, latencies)

    def _ack(self, acked: Iterable[int], now_ms: int) -> list[int]:
        """Close acked trees; return their latencies."""
        latencies: list[int] = []
        note, close = latencies.append, self._open.pop
        if self._keeps_settled or self._renewed:
            for root in acked:
                entry = close(root, None)
                if entry is not None:
                    note(max(0, now_ms - entry[1]))
                    self._close(root, entry[0], None)
            return latencies
        is_new, added, forget = self._added.__contains__, self._added, self._gone.append
        for root in acked:  # `_close` written out
            entry = close(root, None)
            if entry is not None:
                waited_ms = now_ms - entry[1]
                note(waited_ms if waited_ms > 0 else 0)
                if is_new(root):
                    del added[root]
                else:
                    forget(root)
        return latencies

    def renew(self, roots: Iterable[int], now_ms: int) -> None:
        """Let the time-outs of these trees begin anew (Storm's `resetTimeout`); unknown roots are ignored."""
        for root in roots:
            if root in self._open:
                self._renewed[root] = now_ms
                self._renewed_unwritten[root] = None

    def expire(self, now_ms: int, timeout_ms: int, low_watermark_ms: int | None, failure: Failure = TIMED_OUT) -> list[int]:
        """Fail the messages that are too old and return their roots.

        Too old: emitted or renewed `timeout_ms` ago or more, and before `low_watermark_ms`, the birth of the oldest root that
        waits in any inbox, held set or blocking queue (None: nothing waits). A tuple that waits is not a failed tuple.
        """
        limit_ms = now_ms - timeout_ms + 1
        if low_watermark_ms is not None:
            limit_ms = min(limit_ms, low_watermark_ms)
        if limit_ms <= self._oldest_ms:
            return []
        late = self._older_than(limit_ms)
        for root in late:
            message_id, emit_ms = self._open.pop(root)
            self._close(root, message_id, replace(failure, time_ms=now_ms, waited_ms={"tree": now_ms - emit_ms}))
        self._oldest_ms = _FAR_FUTURE_MS if (oldest := self.oldest_emit_ms) is None else oldest
        return late

    def _older_than(self, limit_ms: int) -> list[int]:
        late = []
        for root, (_, emit_ms) in self._open.items():
            if emit_ms >= limit_ms:  # emissions are in the order of time
                break
            if self._renewed.get(root, emit_ms) < limit_ms:
                late.append(root)
        return late

    def _close(self, root: int, message_id: Any, failure: Failure | None) -> None:
        if self._renewed:
            self._renewed.pop(root, None)
            self._renewed_unwritten.pop(root, None)
        journalled = root not in self._added
        if not journalled:
            del self._added[root]
        if self._keeps_settled:
            outcome = self._settled[root] = Outcome(root, message_id, failure)
            self._due.append(outcome)
            self._unwritten.append(root)
        elif journalled:  # a message that began and ended inside one epoch leaves no trace
            self._gone.append(root)

    @property
    def has_callbacks(self) -> bool:
        """Return whether callbacks are due."""
        return bool(self._due)

    def take_callbacks(self) -> list[Outcome]:
        """Callbacks to make now; call it after the commit whose delta says that they are due."""
        outcomes, self._due = self._due, []
        return outcomes

    def confirm(self, outcomes: Iterable[Outcome]) -> None:
        """Take note that these callbacks returned; the next delta forgets them."""
        for outcome in outcomes:
            if self._settled.pop(outcome.root, None) is not None:
                self._gone.append(outcome.root)

    def take_delta(self) -> Delta:
        """Return the changes since the last call, as lists for msgpack; empty when there are none."""
        if not (self._added or self._unwritten or self._gone or self._renewed_unwritten):
            return []
        settled = self._settled
        opened = self._open
        if self._renewed or self._renewed_unwritten:
            added = [self._opened_row(root) for root in {**self._added, **self._renewed_unwritten}]
        else:
            added = [[root, *opened[root]] for root in self._added]
        written = [_row(settled[root]) for root in self._unwritten if root in settled]
        delta: Delta = [added, written, self._gone]
        self._added, self._renewed_unwritten, self._unwritten, self._gone = {}, {}, [], []
        return delta

    def _opened_row(self, root: int) -> list[Any]:
        return [root, *self._open[root], *([self._renewed[root]] if root in self._renewed else [])]

    def snapshot(self) -> Snapshot:
        """Return all open messages as of the last delta; take the delta first."""
        return [[self._opened_row(root) for root in self._open], [_row(outcome) for outcome in self._settled.values()]]

    def load(self, snapshot: Any, deltas: Iterable[Any] = ()) -> None:
        """Become the spout task that wrote them; every callback that was not confirmed is due again.

        MalformedFrameError (and nothing changed) when one is not what `snapshot` and `take_delta` make.
        """
        opened, settled = _replay(snapshot, deltas)
        in_order = sorted(opened.items(), key=lambda item: item[1][1])
        self._open = {root: (entry[0], entry[1]) for root, entry in in_order}
        self._renewed = {root: entry[2] for root, entry in in_order if len(entry) > 2}
        self._renewed_unwritten = {}
        self._oldest_ms = _FAR_FUTURE_MS if (oldest := self.oldest_emit_ms) is None else oldest
        self._settled = settled if self._keeps_settled else {}
        self._due = list(self._settled.values())
        # A spout whose new version wants no callbacks lets go of those that its old version still waited for.
        self._added, self._unwritten, self._gone = {}, [], [] if self._keeps_settled else list(settled)


def _replay(snapshot: Any, deltas: Iterable[Any]) -> tuple[dict[int, tuple[Any, ...]], dict[int, Outcome]]:
    opened: dict[int, tuple[Any, ...]] = {}
    settled: dict[int, Outcome] = {}
    added, closed = _parts(snapshot, 2, "pending snapshot") if snapshot else ([], [])
    records: list[Any] = [(added, closed, [])]
    records += [_parts(delta, 3, f"pending delta {at}") for at, delta in enumerate(deltas) if delta]
    for added, closed, gone in records:
        opened.update((row[0], tuple(row[1:])) for row in added)
        for root, message_id, row in closed:
            opened.pop(root, None)
            settled[root] = Outcome(root, message_id, _failure(row))
        for root in gone:
            opened.pop(root, None)
            settled.pop(root, None)
    return opened, settled


def _row(outcome: Outcome) -> list[Any]:
    return [outcome.root, outcome.message_id, [] if outcome.failure is None else outcome.failure.to_row()]


def _failure(row: list[Any], name: str = "pending") -> Failure | None:
    try:
        return Failure.from_row(row) if row else None
    except ValueError as error:
        raise MalformedFrameError(f"{name}, settled: {error}") from error


def _parts(record: Any, parts: int, name: str) -> Any:
    if not isinstance(record, (list, tuple)) or len(record) != parts or not all(isinstance(p, list) for p in record):
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
        is_row = isinstance(row, (list, tuple)) and (len(row) == 3 or (is_renewable and len(row) == 4))
        if not is_row or any(type(value) is not last for value in row[2:]):
            raise MalformedFrameError(f"{name}: {row!r:.80} is not [root, message id, {last.__name__}]")
        _require_root(row[0], name)


def _require_root(root: Any, name: str) -> None:
    if type(root) is not int or not 0 < root < ID_LIMIT:
        raise MalformedFrameError(f"{name}: {root!r:.80} is no root id")
