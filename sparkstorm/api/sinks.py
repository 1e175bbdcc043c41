"""TransactionalSink: a bolt without outputs that writes to an outside system in step with the
epochs of its worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from sparkstorm.api.components import Conf, Effects, Outputs
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.model.tuples import Tuple

Row = TypeVar("Row")


class RefusedRows(Exception):
    """Error of a TransactionalSink for tuples that the target will never take: (tuple, reason)
    pairs, which are parked.

    The worker then calls `prepare` again, for which the sink must have dropped these rows. Raised
    by `commit` or `recover`, it means that the rest of the epoch is in the target.
    """

    def __init__(self, rows: Sequence[tuple[Tuple, str]]) -> None:
        super().__init__(f"{len(rows)} rows were refused: {rows[0][1] if rows else ''}")
        self.rows = list(rows)


def find_refused(rows: Sequence[Row], take: Callable[[Sequence[Row]], str]) -> dict[int, str]:
    """Return the rows that a target refuses alone, by place, each with its reason.

    `take` gives rows to the target and returns why it refuses them all, or "". Refused rows are
    halved in order: about 2 k log2(n) calls for k refused rows of n.
    """
    refused: dict[int, str] = {}
    waiting = [range(len(rows))] if rows else []
    while waiting:
        piece = waiting.pop()
        reason = take([rows[index] for index in piece])
        if reason and len(piece) == 1:
            refused[piece[0]] = reason
        elif reason:
            middle = len(piece) // 2
            waiting += [piece[middle:], piece[:middle]]
    return refused


class TransactionalSink:
    """Bolt that writes each epoch of its task to an outside system exactly once, in two phases
    (Flink's TwoPhaseCommitSink).

    For every epoch with tuples the worker calls `begin(epoch)`, `write(tup)` for each tuple and
    `prepare(epoch)`; it commits the epoch's number with what `prepare` returned; then it calls
    `commit(epoch, prepared)`. A worker that starts first calls `recover` with the last committed
    epoch. What was prepared and never committed in the store must be thrown away.

    Epoch numbers of a task only grow, with gaps, within one topology id: name them by it in the
    target. `open` and `begin` should not talk to the target. What `prepare`, `commit` and `recover`
    raise is tried again for `topology.sink.patience.secs`; a `SparkStormError` or a TypeError ends
    the worker at once. A tuple on which `write` raises is tried again, then parked: `write` must
    have left nothing of it.

    With `flush_secs` an epoch lasts so long, or `flush_rows` tuples, which are acked as ever, kept
    in the store, and written again after a crash. Inputs must have the fields `input_fields`. In a
    batch replay a sink is redirected (its input is a result) or muted.
    """

    outputs: Outputs = ()
    blocking: ClassVar[bool] = False
    effects: Effects | None = None
    order_insensitive: bool = False
    input_fields: Sequence[str] = ()
    flush_secs: float = 0
    flush_rows: int = 100_000

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Prepare the task: called once in the worker, before any other method."""

    def begin(self, epoch: int) -> None:
        """Begin an epoch: its first tuple follows."""

    def write(self, tup: Tuple) -> None:
        """Take one tuple; the target must show nothing of it before `commit`."""
        raise NotImplementedError

    def write_all(self, tuples: Sequence[Tuple]) -> None:
        """Take tuples of one stream at once, instead of `write`; optional.

        When it raises it must have left none of them: the worker writes them one by one then.
        """
        raise NotImplementedError

    def prepare(self, epoch: int) -> Any:
        """Return what `commit` needs, also in another process: any value that a tuple may carry,
        but None.

        Either the rows themselves (an outbox, kept in the store), or the name of what was staged in
        the target.
        """
        raise NotImplementedError

    def commit(self, epoch: int, prepared: Any) -> None:
        """Make an epoch visible; a second call for it, also from another process, must change
        nothing.
        """
        raise NotImplementedError

    def recover(self, epoch: int, prepared: Any) -> None:
        """Bring the last committed epoch to its end and throw away what was prepared later.

        `epoch` is 0 when there is none; `prepared` is None when the epoch is known to be in the
        target.
        """
        if prepared is not None:
            self.commit(epoch, prepared)

    def last_epoch(self) -> int | None:
        """Return the last epoch of this task in the target, 0 without one; None where the target
        keeps none.

        It only reads. Called after `recover`, and after `open` alone where the topology's store has
        lost data and the worker stops, to report what the target has. The next epoch gets a greater
        number, so that a target never takes it for one that is done, also when the topology's store
        has lost commits that the target has not.
        """
        return None

    def cleanup(self) -> None:
        """Release resources: called when the worker stops, not when it is killed."""
