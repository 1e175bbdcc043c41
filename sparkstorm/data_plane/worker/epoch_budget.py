"""Budget of an epoch: limits on its time, rows and bytes, and batch sizes within it.

Law: under load an epoch lasts `topology.epoch.loaded.ms`, or as long as its commit if that is
longer, so that a worker far from its store spends half of its time on work at least. Commits one
behind the other on the wire, without waiting for each answer, would spend all of it, but each would
build on one that may be refused: state, sinks and callbacks would have to be taken back. Storm and
Flink need not choose: what they send is no commit.
"""

from __future__ import annotations

from sparkstorm.common.settings import EpochSettings
from sparkstorm.data_plane.worker.epoch import Epoch

# Double of it would let a worker answer its slot and end no sooner than after two seconds (an epoch
# may run twice its length). Half of it leaves a worker 200 ms from its store a commit for every
# 250 ms of work.
_LONGEST_MS = 500
# Of a new commit's time in the mean, as TCP smooths its round trips (RFC 6298): one slow commit
# must not make epochs long. Half of it follows a new distance twice as slowly, double half forgets
# it after three commits.
_SHARE = 1 / 8


class Budget:
    """The budget of a worker's epochs: short ones while there is little to do, longer ones under
    load.
    """

    def __init__(self, settings: EpochSettings) -> None:
        self._idle_ms = settings.idle_ms
        self._loaded_ms = settings.loaded_ms
        self.rows = settings.rows
        self._bytes = settings.bytes
        self._commit_ms = 0.0
        self._ms = float(self._idle_ms)
        self._deadline_ms = 0.0

    def begin(self, now_ms: int) -> None:
        """Begin an epoch."""
        self._deadline_ms = now_ms + self._ms

    def is_over(self, epoch: Epoch, now_ms: int) -> bool:
        """Return whether this epoch must end."""
        return epoch.rows >= self.rows or epoch.bytes >= self._bytes or now_ms >= self._deadline_ms

    def left_to_drain(self, epoch: Epoch, now_ms: int) -> int:
        """Return how many local rows may still run once this epoch is over: up to twice its rows
        and bytes, and as long as a loaded epoch lasts.
        """
        # Not only twice its time: spouts that wait for acks end epochs early, these become short,
        # and rows left by a short one cross Redis, as do all that come before those are read: half
        # of the rows of a chain of local bolts in the Yahoo benchmark, 3 % now.
        if epoch.bytes >= 2 * self._bytes or now_ms >= self._deadline_ms + self._longest_ms:
            return 0
        return max(0, 2 * self.rows - epoch.rows)

    def end(self, was_over: bool) -> None:
        """Take note of the end of an epoch: its budget was over, or nothing was left to do."""
        # By halves and doubles: load comes in bursts, and a mean would make the first epochs after
        # a lull late.
        self._ms = (
            min(self._ms * 2, self._longest_ms) if was_over else max(self._ms // 2, self._idle_ms)
        )

    @property
    def _longest_ms(self) -> float:
        return max(self._loaded_ms, min(self._commit_ms, _LONGEST_MS))

    def note_commit(self, took_ms: float) -> None:
        """Take in the time of a commit, from its sending to its answer."""
        self._commit_ms += (took_ms - self._commit_ms) * _SHARE

    def pace(self, pace: int, done: int, took_ms: int, most: int, sent_bytes: int) -> int:
        """Return the next batch size: work of a few milliseconds, from what the last batch took and
        sent.
        """
        adapted = pace
        # Only a full batch that took no time may grow: a short one does not measure the bolt.
        # Between 1 and 4 ms it stays, so that the clock's coarse milliseconds do not make it swing.
        if took_ms <= 1 and done == pace:
            adapted = min(pace * 2, most)
        elif took_ms > 4:
            adapted = max(1, pace * 4 // took_ms)
        # A bolt that makes much of little would pass the byte budget by one batch: with a quarter
        # an epoch overruns it by that at the most. Half as much cuts such batches in two; with the
        # whole an epoch may be twice as large.
        share = self._bytes // 4
        return adapted if sent_bytes <= share else max(1, min(adapted, done * share // sent_bytes))
