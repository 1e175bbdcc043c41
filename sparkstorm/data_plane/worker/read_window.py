"""Window of a worker's reads: frames per task and question, and bytes per task. PURE.

Law: what is read and not executed stays below `WINDOW_BYTES` a task, except for one answer whose
frames are larger than those before; that one stays below `topology.inbox.high.bytes` and an epoch's
bytes, at which the senders pause. A question brings at most so many frames a task, and over a
distance there is one question per round trip: a fixed number of frames was a fixed rate (8 frames
of one row each, over 200 ms: 40 rows a second). So the number is doubled while answers come full,
as TCP's slow start does, and the round trip is followed without being measured. Redis' XREAD counts
entries, not bytes; the bytes are kept by the mean size of the frames that came last, as Kafka's
consumers keep theirs by `max.partition.fetch.bytes`. Flink's credits per channel were left out: a
stream has one reader, and its store keeps the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparkstorm.data_plane.transport.base import Entry

# Eight of the largest entries. Half of it halves what one task can take in per round trip: 20 MB/s
# over 200 ms now; double lets each task of a worker keep twice as much that it has not executed.
WINDOW_BYTES = 4 << 20
# Enough for a worker near its store, whose next question follows a millisecond later. Half of it
# asks twice as often there; double costs memory where frames are large, before their size is known.
LEAST_FRAMES = 8
# Frames of one row each, 20,000 a second over 200 ms. Half of it halves that rate; with double,
# after a restart of Redis, twice as many frames ahead are looked up one by one.
MOST_FRAMES = 4096
# An answer of less than this part of the window lets it shrink. Not at once: traffic comes in
# bursts, and a window that follows each lull starts again from the least. With 2 it would follow
# them, with 8 it hardly ever shrinks. 1,370 to 1,510 of 1,000 rows/s offered (a backlog) came over
# 100 ms each way, 213 to 450 with 8 frames fixed (decision 53).
_SHRINK_BELOW = 4


class ReadWindow:
    """The window of one worker, the same for each of its tasks: one question asks for all of them
    with one number.
    """

    def __init__(self) -> None:
        self.frames = LEAST_FRAMES

    def has_room(self, frames: int, size: int) -> bool:
        """Return whether a task with so many frames and bytes read ahead may read more."""
        return frames < self.frames and size < WINDOW_BYTES

    def note(self, entries: Sequence[Entry]) -> bool:
        """Take in an answer; return whether it was full for some task, so that there may be
        more.
        """
        # Of the least window an answer that is not full leaves nothing to change: most steps of a
        # worker that is not loaded bring one entry.
        if not entries or len(entries) < self.frames == LEAST_FRAMES:
            return False
        most = max(Counter(entry.task for entry in entries).values())
        is_full = most >= self.frames
        wanted = self.frames
        if is_full:
            wanted *= 2
        elif most * _SHRINK_BELOW < self.frames:
            wanted //= 2
        mean = max(1, sum(len(entry.data) for entry in entries) // len(entries))
        self.frames = max(LEAST_FRAMES, min(wanted, MOST_FRAMES, WINDOW_BYTES // mean))
        return is_full
