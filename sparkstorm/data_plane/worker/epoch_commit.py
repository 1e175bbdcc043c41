"""End of an epoch: open blocks become entries, edges become acker messages, changes of tasks become
one commit.

Order matters and is fixed: blocks of holds, which no row may overtake, of data, then those of
marks, which may overtake no row (all draw edge ids), then held inputs (they do too), then the messages to ackers, local verdicts,
and last the journals, since all of the former change them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any

from sparkstorm.common.errors import CodecError, MalformedFrameError
from sparkstorm.common.model.compiled import empty
from sparkstorm.common.model.roots import split_roots
from sparkstorm.common.model.values.unfolding import require_bounded
from sparkstorm.common.settings import EpochSettings
from sparkstorm.data_plane.executor.emitter import weigh
from sparkstorm.data_plane.executor.pieces import count_rows, is_piece, sliced
from sparkstorm.data_plane.executor.sink_runner import SinkRunner
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.data_plane.task_kit.journal import Whole
from sparkstorm.data_plane.transport import frames
from sparkstorm.data_plane.transport.base import Commit
from sparkstorm.data_plane.transport.frames import AckerMessages, Row, SettledRoots
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.open_blocks import OpenBlock
from sparkstorm.data_plane.worker.packed_rows import BYTES_PER_ENTRY, ROWS_PER_ENTRY, PackedRows
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.tasks.acker_task import AckerTask
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask
from sparkstorm.data_plane.worker.tasks.states import warn_of_lost_changes

# Times the byte budget that one commit may carry: half a gigabyte. Redis ends a connection whose
# request is larger than one.
_BUDGETS = 256
# An epoch's rows in one piece. Half of it divides every large batch, double is never reached.
_ROWS_PER_BATCH = 1 << 16


class CommitBuilder:
    """Converter of an epoch and its task_set into a commit."""

    def __init__(self, parts: WorkerParts) -> None:
        self._plan = parts.plan
        self._task_set = parts.task_set
        self._now_ms = parts.clock.now_ms
        self._origin = parts.origin
        self._edge = parts.counters.edge
        self._timed = [
            (sender, sender.time) for sender in self._task_set.senders() if sender.time is not None
        ]
        self._ackers = self._plan.ackers
        self._split_ms = self._plan.settings.batch_split_ms
        self._most_bytes = EpochSettings.of(self._plan.conf).bytes * _BUDGETS
        self._leaving = 0
        self._count_by_latency: Counter[int] = Counter()

    def close(self, epoch: Epoch, commit: Commit) -> None:
        """Fill the commit; CodecError when some row or state value has no bytes."""
        for block in (*self._task_set.blocks.holds, *self._task_set.blocks.data):
            if block.rows or block.packed:
                self._send(epoch, commit, block)
        for sender, time in self._timed:
            time.outlook.has_ended |= sender.has_ended
            # After the data and before the blocks of marks leave: a mark promises that nothing
            # older follows, so it must not be written before a row that it covers.
            time.put_marks(lambda target: True, self._now_ms())
        for block in self._task_set.blocks.marks:
            if block.rows:
                self._send(epoch, commit, block)
        for bolt in self._task_set.bolts.values():
            # Also where nothing has changed: the oldest input that waits is a part of each commit,
            # by which time-outs are held back.
            held = bolt.held
            if held.by_key or held.changed or held.released:
                self._keep_held(epoch, commit, bolt)
        if epoch.is_tracking:
            self._tell_ackers(epoch, commit)
        for inbox in self._task_set.inboxes.values():
            inbox.take_progress(commit)
        self._write_journals(commit)

    def _send(self, epoch: Epoch, commit: Commit, block: OpenBlock) -> None:
        """Write what is left of an open block into the stream of its task, also when that is a task
        of this worker.
        """
        task = block.target.task
        entries = 0
        if (flow := block.flow) is None:
            flow = block.flow = self._edge(
                block.component, block.stream, self._plan.component_by_task[task]
            )
        if block.packed:
            # What has come since lies in the same entry.
            block.pack()
        flow.sent += count_rows(block.rows) if block.has_pieces else len(block.rows)
        flow.sent += sum(map(len, block.packed))
        oldest_ms = block.births.oldest_ms or self._now_ms()
        if epoch.is_tracking and self._now_ms() - oldest_ms >= self._split_ms:
            _split_off(block)
        for rows in _cut(block):
            for data in self._encoded(epoch, block, oldest_ms, rows):
                self._require_bounded(block, commit, len(data))
                commit.frames.append((task, data, len(data)))
                entries += 1
                flow.bytes += len(data)
        flow.entries += entries
        empty(block.rows)
        block.packed = []
        if block.target.is_local:
            self._task_set.bolts[task].older_entries.spill(entries)

    def _require_bounded(self, block: OpenBlock, commit: Commit, size: int) -> None:
        """Refuse a commit that the store would hang up on: an epoch ends long before it is so
        large, unless one input made all this.
        """
        self._leaving = size if not commit.frames else self._leaving + size
        if self._leaving > self._most_bytes:
            raise CodecError(
                f"component '{block.component}', stream '{block.stream}': more than {self._most_bytes} bytes leave "
                f"at once ({_BUDGETS} times topology.epoch.bytes); emit less per input"
            )

    def _encoded(
        self, epoch: Epoch, block: OpenBlock, oldest_ms: int, rows: Sequence[Row] | PackedRows
    ) -> Iterator[bytes]:
        if isinstance(rows, PackedRows):  # cut by their bytes already
            yield self._entry(epoch, block, oldest_ms, rows, [])
            return
        weight = 0 if is_piece(rows[0]) else weigh(rows)  # pieces are cut by their bytes already
        if weight <= BYTES_PER_ENTRY or len(rows) == 1:
            drawn: list[tuple[Collection[int], int]] = []
            data = self._entry(epoch, block, oldest_ms, rows, drawn)
            weight = len(data)
            if weight <= 2 * BYTES_PER_ENTRY or len(rows) == 1 or is_piece(rows[0]):
                yield data
                return
            # The sample was too light. The entry that is thrown away has put its edge into the
            # roots, and each part draws one of its own: without taking it out again the trees would
            # never end.
            for roots, edge in drawn:
                epoch.consume(roots, edge)
        step = max(1, min(len(rows) - 1, len(rows) * BYTES_PER_ENTRY // weight))
        for start in range(0, len(rows), step):
            yield from self._encoded(epoch, block, oldest_ms, rows[start : start + step])

    def _entry(
        self,
        epoch: Epoch,
        block: OpenBlock,
        oldest_ms: int,
        rows: Sequence[Row] | PackedRows,
        drawn: list[tuple[Collection[int], int]],
    ) -> bytes:
        def draw(roots: Collection[int]) -> int:
            drawn.append((roots, epoch.draw_edge(roots)))
            return drawn[-1][1]

        tracking = draw if epoch.is_tracking else None
        try:
            if isinstance(rows, PackedRows):
                codec = self._plan.codec
                return rows.encode(codec, block.channel, oldest_ms, tracking, self._origin)
            encode = frames.encode_pieces if is_piece(rows[0]) else frames.encode_rows
            data = encode(
                self._plan.codec,
                block.channel,
                oldest_ms,
                rows,
                tracking,
                self._origin,
            )
            if len(rows) == 1 and len(data) > frames.MAX_FRAME_BYTES:
                raise CodecError(
                    f"a tuple of {len(data)} bytes; the limit is {frames.MAX_FRAME_BYTES}"
                )
            if len(rows) == 1:
                # Several rows are cut until they are few; a single one must be small enough to be
                # read back, or its receiver would put it into quarantine.
                require_bounded(memoryview(data)[frames.HEADER_BYTES :], frames.MAX_MEMORY)
        except (CodecError, MalformedFrameError) as error:
            raise CodecError(
                f"component '{block.component}', stream '{block.stream}': {error}"
            ) from error
        return data

    def _keep_held(self, epoch: Epoch, commit: Commit, bolt: BoltTask) -> None:
        for key in bolt.held.changed:
            held = bolt.held.by_key[key]
            # Its own edge: the entry that it came with is consumed now, and its edge leaves
            # the trees (decision 3).
            held.edge = held.edge or epoch.hold(held.tuple)
            commit.held.append((bolt.task, key, held.encode(self._plan.codec)))
            held.is_stored = True
        commit.released += [(bolt.task, key) for key in bolt.held.released]
        bolt.held.changed.clear()
        bolt.held.released.clear()
        waiting_ms = bolt.held.waiting_since_ms(bolt.queued)
        if waiting_ms is not None:
            commit.low_ms = min(waiting_ms, commit.low_ms or waiting_ms)

    def _tell_ackers(self, epoch: Epoch, commit: Commit) -> None:
        for spout_task, verdict in epoch.address(self._ackers).items():
            self._settle_here(spout_task, verdict)
        oldest_ms = self._oldest_ms()
        for messages in epoch.messages.values():
            # Time-outs are held back by what waits in any stream, acks on their way included.
            messages.oldest_ms = oldest_ms
        verdicts = self._read_verdicts()
        for task, acker in self._task_set.ackers.items():
            # What lay in the stream comes before this epoch's own messages, as it was sent before
            # them.
            heard = [m for m in acker.inbox.take_controls() if isinstance(m, AckerMessages)]
            if task in epoch.messages:
                heard.append(epoch.messages.pop(task))
            verdicts += acker.apply(heard).items()
        for spout_task, verdict in verdicts:
            # A spout of this worker gets the verdict at once: its pending messages are part of this
            # very commit.
            if spout_task not in self._task_set.spouts:
                commit.frames.append(
                    (spout_task, frames.encode_settled(self._plan.codec, verdict), 0)
                )
            else:
                self._settle_here(spout_task, verdict)
        for acker_task, messages in epoch.messages.items():
            commit.frames.append(
                (acker_task, frames.encode_messages(self._plan.codec, messages), 0)
            )

    def take_latencies(self) -> Counter[int]:
        """Return the number of trees that ended since the last call, by complete latency."""
        taken = self._count_by_latency
        self._count_by_latency = Counter()
        return taken

    def _oldest_ms(self) -> int:
        """Birth of the oldest root that this epoch can have touched."""
        return self._task_set.blocks.oldest_ms() or self._now_ms()

    def _read_verdicts(self) -> list[tuple[int, SettledRoots]]:
        return [
            (task, verdict)
            for task, spout in self._task_set.spouts.items()
            for verdict in spout.inbox.take_controls()
            if isinstance(verdict, SettledRoots)
        ]

    def _settle_here(self, spout_task: int, verdict: SettledRoots) -> None:
        settled = self._task_set.spouts[spout_task].settle(verdict, self._now_ms())
        self._count_by_latency.update(settled)

    def _write_journals(self, commit: Commit) -> None:
        journals = self._task_set.journals
        for task, spout in self._task_set.spouts.items():
            delta: dict[str, Any] = {}
            if pending := spout.pending.take_delta():
                delta["p"] = pending
            if spout.position is not None:
                if (position := spout.position.take()) is not None:
                    delta["o"] = position
                if handed := spout.position.take_handed():
                    delta["h"] = handed
            delta |= _changed_times(spout)
            journals[task].write(commit, delta, partial(_whole_of_spout, spout))
        for task, acker in self._task_set.ackers.items():
            if ledger := acker.ledger.take_delta():
                journals[task].write(commit, {"l": ledger}, partial(_whole_of_acker, acker))
        for task, bolt in self._task_set.bolts.items():
            # Commits of small epochs would pay for every task of the worker, also for those that
            # have not run.
            if bolt.state is not None and bolt.state.handed:
                warn_of_lost_changes(
                    self._plan.component_by_task[task], bolt.state, self._plan.codec
                )
            if bolt.is_unchanged:
                continue
            delta = _changed(bolt.state, "s", "d") | _changed_times(bolt)
            if isinstance(bolt.runner, SinkRunner):
                delta |= bolt.runner.take_news()
            if delta:
                delta |= bolt.take_version()
            journals[task].write(commit, delta, partial(_whole_of_bolt, bolt))


def _split_off(block: OpenBlock) -> None:
    """Let late rows leave their batches, which need not wait for what descends from them, such as
    in a loop.
    """
    for packed in block.packed:
        packed.split_off()
    rows = block.rows
    rows[:] = [(values, split_roots(roots), source) for values, roots, source in rows]


def _cut(block: OpenBlock) -> Iterator[Sequence[Row] | PackedRows]:
    """Parts of a block that may be an entry each: rows, or pieces of batches with the same
    columns.
    """
    yield from block.packed
    if not block.rows:
        return
    if not block.has_pieces:
        if len(block.rows) <= ROWS_PER_ENTRY:
            yield block.rows
            return
        for start in range(0, len(block.rows), ROWS_PER_ENTRY):
            yield block.rows[start : start + ROWS_PER_ENTRY]
        return
    for is_batch, group in groupby(block.rows, key=is_piece):
        if is_batch:
            small = chain.from_iterable(map(_slices, group))
            for _, pieces in groupby(small, key=lambda piece: piece[0].schema):
                yield from _gathered(pieces)
        else:
            rows = list(group)
            yield from (
                rows[start : start + ROWS_PER_ENTRY]
                for start in range(0, len(rows), ROWS_PER_ENTRY)
            )


def _slices(piece: Any) -> Iterator[Any]:
    batch, roots, source = piece
    return ((part, roots, source) for part in sliced(batch, _ROWS_PER_BATCH, BYTES_PER_ENTRY))


def _gathered(pieces: Iterable[Any]) -> Iterator[list[Any]]:
    gathered: list[Any] = []
    rows = size = 0
    for piece in pieces:
        more_rows = piece[0].num_rows
        more = piece[0].nbytes
        if gathered and (rows + more_rows > _ROWS_PER_BATCH or size + more > BYTES_PER_ENTRY):
            yield gathered
            gathered = []
            rows = 0
            size = 0
        gathered.append(piece)
        rows += more_rows
        size += more
    yield gathered


def _changed(state: MemoryState | None, changed: str, deleted: str) -> dict[str, Any]:
    """Return changed and deleted keys of a state since the last commit, under the journal's field
    names.
    """
    if state is None or not state.has_changes:
        return {}
    pairs, gone = state.take_changes()
    return {
        **({changed: pairs} if pairs else {}),
        **({deleted: gone} if gone else {}),
        **state.marks(),
    }


def _changed_times(task: SpoutTask | BoltTask) -> dict[str, Any]:
    if task.time is None:
        return {}
    task.time.outlook.save()
    return _changed(task.time.times, "w", "x")


def _whole_of_spout(spout: SpoutTask) -> Whole:
    first = {"P": spout.pending.snapshot()}
    if spout.position is not None:
        first |= {} if spout.position.newest is None else {"o": spout.position.newest}
        first |= {"h": spout.position.handed} if spout.position.handed else {}
    return first, _times(spout)


def _whole_of_acker(acker: AckerTask) -> Whole:
    return {"L": acker.ledger.snapshot()}, {}


def _whole_of_bolt(bolt: BoltTask) -> Whole:
    first = bolt.runner.whole() if isinstance(bolt.runner, SinkRunner) else {}
    if bolt.stored_version != 1:
        first = {**first, "v": bolt.stored_version}
    if bolt.state is not None:
        first = {**first, **bolt.state.marks()}
    return first, {**({} if bolt.state is None else {"s": bolt.state}), **_times(bolt)}


def _times(task: SpoutTask | BoltTask) -> dict[str, MemoryState]:
    return {} if task.time is None else {"w": task.time.times}
