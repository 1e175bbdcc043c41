"""Open blocks of a worker: rows emitted in this epoch, one list for each component, channel and
receiving task.

All tasks of a component append to the same lists, so that rows for one receiver lie together, from
all of these tasks: fewer and larger entries leave. A stream is one per receiving task (decision 7);
one per worker would cost Redis half as much from about 100 receivers on, but a claim would have to
copy the rows of the tasks that move.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkstorm.common.grouping.routes import LOCAL_RUN, MakeTarget, Rows, Target
from sparkstorm.common.model.compiled import core, move
from sparkstorm.common.model.topology import HOLD_STREAM, WATERMARK_STREAM, stream_of
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.pieces import take
from sparkstorm.data_plane.transport.frames import travelled
from sparkstorm.data_plane.transport.progress import EdgeCounts
from sparkstorm.data_plane.worker.packed_rows import PackedRows
from sparkstorm.data_plane.worker.tasks.inbox import FindSource

# Rows emitted, those for this worker's own tasks among them, after which rows for other workers are
# packed while their memory is in the processor's caches: some 200 kB of words. Half of it looks at all blocks twice as often.
_ROWS_TO_PACK = 2048
# The same of large rows: a mapping takes eight times its bytes.
_BYTES_TO_PACK = 64 << 10
# Fewer rows of a block wait for more: a call for each would cost more than it saves.
_LEAST_TO_PACK = 64


class Births:
    """Birth of the oldest root that the tasks of one component have touched in this epoch; 0: none
    has run.
    """

    __slots__ = ("oldest_ms",)

    def __init__(self) -> None:
        self.oldest_ms = 0

    def note(self, oldest_ms: int) -> None:
        """Take in what a task is about to run."""
        if not self.oldest_ms or oldest_ms < self.oldest_ms:
            self.oldest_ms = oldest_ms


class OpenBlock:
    """Rows of one channel for one task."""

    __slots__ = (
        "channel",
        "component",
        "target",
        "births",
        "rows",
        "has_own_channel",
        "stream",
        "has_pieces",
        "flow",
        "packed",
    )

    def __init__(self, component: str, channel: str, target: Target, births: Births) -> None:
        self.component = component
        self.channel = channel
        self.target = target
        self.births = births
        self.rows: Rows = target.rows
        self.stream = stream_of(channel)
        self.has_own_channel = self.stream != channel
        self.has_pieces = False  # whether batches may lie among the rows
        self.flow: EdgeCounts | None = None  # counts of its edge, once it has left
        # oldest rows for another worker, by entry; those in `rows` come behind them
        self.packed: list[PackedRows] = []

    def take(self, most: int) -> Rows:
        """Remove and return the oldest rows, `most` at the most."""
        rows = self.rows
        if self.has_pieces:
            return take(rows, most)
        # The list stays: pickers and the compiled core hold on to it for as long as the worker
        # lives.
        if len(rows) <= most:
            return move(rows)
        taken = rows[:most]
        del rows[:most]
        return taken

    def pack(self) -> None:
        """Pack what can be packed of the rows; the others stay, in their order."""
        while self.rows:
            if not (self.packed and self.packed[-1].take(self.rows)):
                entry = PackedRows()
                if not entry.take(self.rows):
                    return
                self.packed.append(entry)


class BlockFeed:
    """Open blocks for one task of this worker: holds come before all rows, marks wait until all
    rows before them have been taken.
    """

    __slots__ = ("data", "marks", "holds")

    def __init__(self) -> None:
        self.data: list[OpenBlock] = []
        self.marks: list[OpenBlock] = []
        self.holds: list[OpenBlock] = []

    def __bool__(self) -> bool:
        for block in self.data:  # asked for every task in every turn: no generator
            if block.rows:
                return True
        return (
            any(block.rows for block in (*self.holds, *self.marks))
            if self.marks or self.holds
            else False
        )

    def take(self, most: int) -> Iterator[tuple[OpenBlock, Rows]]:
        """Yield the oldest rows of each block, `most` of each at the most; marks when no other rows
        are left.
        """
        for block in self.holds:
            if block.rows:
                yield block, block.take(1 << 30)
        for block in self.data:
            if block.rows:
                yield block, block.take(most)
        # A mark that overtook a row would make the row late at its receiver.
        if self.marks and not any(block.rows for block in self.data):
            for block in self.marks:
                if block.rows:
                    # All of them: a mark costs nothing to execute, and only the newest of a sender
                    # counts.
                    yield block, block.take(1 << 30)


class OpenBlocks:
    """All open blocks of a worker, in the order in which they leave: holds, data, then marks."""

    def __init__(
        self,
        local_tasks: frozenset[int],
        find_source: FindSource,
        strict_codec: Codec | None = None,
        run_tasks: frozenset[int] = frozenset(),
        is_direct: bool = True,
    ) -> None:
        """Hand rows to tasks of this worker in memory unless `is_direct` is false: they then travel
        as to other workers. Encode rows for tasks of this worker too if a codec is given: a
        receiver then never sees values that another receiver has changed. `run_tasks` get the rows
        of a local shuffle in runs.
        """
        self._local = local_tasks if is_direct else frozenset()
        self._find_source = find_source
        self._strict_codec = strict_codec
        self._run_tasks = run_tasks
        self._blocks: dict[tuple[str, str, int], OpenBlock] = {}
        self._births: dict[str, Births] = {}
        self.data: list[OpenBlock] = []
        self.marks: list[OpenBlock] = []
        self.holds: list[OpenBlock] = []
        self.feeds: dict[int, BlockFeed] = {task: BlockFeed() for task in local_tasks}
        self._leaving: list[OpenBlock] = []  # of data, for tasks of other workers
        self._pack_at = (_ROWS_TO_PACK, _BYTES_TO_PACK)

    def pack_early(self, rows: int, size: int) -> None:
        """Pack rows for other workers, when this epoch has emitted so many rows and bytes more
        since it was done last; all that was emitted is final.
        """
        if core is None or (rows < self._pack_at[0] and size < self._pack_at[1]):
            return
        self._pack_at = (rows + _ROWS_TO_PACK, size + _BYTES_TO_PACK)
        for block in self._leaving:
            if len(block.rows) >= _LEAST_TO_PACK and not block.has_pieces:
                block.pack()

    def births(self, component: str) -> Births:
        """Return the births of a component's tasks in this worker."""
        return self._births.setdefault(component, Births())

    def expect_batches(self, component: str) -> None:
        """Let the tasks of a component emit batches."""
        for block in self.data:
            # Asked for once and not per row: blocks that can hold no batch are taken by slices.
            block.has_pieces |= block.component == component

    def targets_of(self, component: str) -> MakeTarget:
        """Return the maker of targets for the tasks of a component: one list per channel and
        receiver, shared by all.
        """

        def target(channel: str, task: int) -> Target:
            block = self._blocks.get((component, channel, task))
            return (block or self._add(component, channel, task)).target

        return target

    def handed_over(self, block: OpenBlock, rows: Rows) -> Rows:
        """Return rows taken from a block as their task of this worker gets them."""
        if self._strict_codec is not None:
            # Simulations need the values that another process would get: a bolt must not change
            # values of its sender.
            rows = travelled(self._strict_codec, rows)
        if block.has_own_channel:
            # The sender's source names the stream; its receiver is to see that the row is late, or
            # from a further try.
            rows = [
                (values, roots, self._find_source(source.task, block.channel))
                for values, roots, source in rows
            ]
        return rows

    def oldest_ms(self) -> int | None:
        """Return the birth of the oldest root that this epoch can have touched; None when nothing
        has run.
        """
        return min(
            (births.oldest_ms for births in self._births.values() if births.oldest_ms), default=None
        )

    def settle(self) -> None:
        """Take note of a successful commit."""
        self._pack_at = (_ROWS_TO_PACK, _BYTES_TO_PACK)
        for births in self._births.values():
            births.oldest_ms = 0

    def _add(self, component: str, channel: str, task: int) -> OpenBlock:
        run = LOCAL_RUN if task in self._run_tasks else 1
        target = Target(task, [], task in self._local, run)
        block = self._blocks[component, channel, task] = OpenBlock(
            component, channel, target, self.births(component)
        )
        # Lists of their own, since at the end of an epoch all data leave before all marks.
        kind = {WATERMARK_STREAM: "marks", HOLD_STREAM: "holds"}.get(channel, "data")
        getattr(self, kind).append(block)
        if target.is_local:
            getattr(self.feeds[task], kind).append(block)
        elif kind == "data":
            self._leaving.append(block)
        return block
