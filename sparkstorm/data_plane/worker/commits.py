"""Commits of a worker: numbered, left out without news, and kept while the store is full.

Law: the same commit is sent again until the store has confirmed that it is applied. A refused one
is never built anew: what it holds was taken out of the tasks, and the next epoch would count on it.
"""

from __future__ import annotations

import contextlib
from typing import Any

from sparkstorm.common.errors import StoreFullError
from sparkstorm.data_plane.transport.base import Commit, Pressure
from sparkstorm.data_plane.transport.progress import EARLIER_MS, MOST_EARLIER
from sparkstorm.data_plane.worker.epoch import Epoch
from sparkstorm.data_plane.worker.epoch_commit import CommitBuilder
from sparkstorm.data_plane.worker.parts import WorkerParts

# Half of the first asks a full store a hundred times a second, double adds 20 ms to what waits once
# there is room. The longer pause is for a disk that is full: patience is over, and an urgent commit
# was refused too. Neither was measured.
_REFUSED_MS = 20
_REFUSED_LONG_MS = 200
# Refusals after which a commit goes through all the same: its rows are consumed, and this worker
# may be the only one whose commit can free anything. That is after a second; with half of it a
# worker goes through while others still drain, with double it waits for twice as long.
_PATIENCE = 50


class Commits:
    """The commits of one worker, one after the other."""

    def __init__(self, parts: WorkerParts) -> None:
        self._plan = parts.plan
        self._transport = parts.transport
        self._clock = parts.clock
        self._counters = parts.counters
        self._progress = parts.progress
        self._backpressure = parts.backpressure
        self._failures = parts.failures
        self._builder = CommitBuilder(parts)
        self.generation = parts.claim.generation
        self.seq = parts.claim.seq
        self.quarantined: list[bytes] = []
        self.refused: Commit | None = None
        self.refusal = ""  # why the store refuses that commit
        self._refusals = 0
        self._last_gauges: Any = None
        self._record = parts.claim.progress  # of the last commit
        self._minute = -1
        self._low_ms: int | None = None  # as last committed
        self.has_news = False  # of the last commit
        self.took_ms = 0.0

    def build(self, epoch: Epoch) -> Commit:
        """Return the commit of an epoch that has ended."""
        watched = self._backpressure.watched
        commit = Commit(
            self._plan.owner,
            self._plan.token_by_task,
            self.generation,
            self.seq + 1,
            watched=watched,
            low_ms=0,
        )
        commit.parked, self._failures.parked = self._failures.parked, []
        commit.quarantined = self.quarantined
        self.quarantined = []
        self._builder.close(epoch, commit)
        return commit

    def complete(self, commit: Commit, now_ms: int) -> bool:
        """Put the counts into a new commit; False when it has no news and no answer is awaited."""
        self._counters.note(now_ms, self._clock.now_us(), self._builder.take_latencies())
        gauges = self._counters.gauges()
        # Only the clock has moved: committing it with every step would let the append-only file
        # grow without a row.
        self.has_news = (
            not commit.is_empty() or gauges != self._last_gauges or commit.low_ms != self._low_ms
        )
        if not self.has_news and not self._backpressure.must_ask:
            return False
        self._last_gauges = gauges
        self._counters.note_commit(commit)
        minute = now_ms // EARLIER_MS
        if minute != self._minute and self._record:
            commit.earlier = minute % MOST_EARLIER, self._record
        self._minute = minute
        commit.progress = self._record = self._progress.encode()
        if commit.low_ms == self._low_ms:
            # Most commits hold no input back: one field less to send and to write.
            commit.low_ms = None  # as the store has it
        return True

    def send(self, commit: Commit) -> Pressure | None:
        """Send a commit, new or refused before; None when the store is full: it is kept."""
        began_us = self._clock.now_us()
        try:
            pressure = self._transport.commit(commit)
        except StoreFullError as error:
            # The same object: by its number the store distinguishes a repetition from a new commit.
            self._keep_refused(commit, error)
            return None
        self.took_ms = (self._clock.now_us() - began_us) / 1000
        self.refused = None
        self._refusals = 0
        self.refusal = ""
        self.seq = commit.seq
        self._low_ms = self._low_ms if commit.low_ms is None else commit.low_ms
        return pressure

    def _keep_refused(self, commit: Commit, error: StoreFullError) -> None:
        """Keep a refused commit for the next step, and free what may be freed."""
        self.refused, self.refusal = commit, str(error)
        self._refusals += 1
        commit.is_urgent = self._refusals >= _PATIENCE
        # A full disk refuses this write too.
        with contextlib.suppress(StoreFullError):
            self._transport.release()

    @property
    def pause_ms(self) -> int:
        """Return how long to wait before a refused commit is sent again."""
        return _REFUSED_MS if self._refusals < 2 * _PATIENCE else _REFUSED_LONG_MS
