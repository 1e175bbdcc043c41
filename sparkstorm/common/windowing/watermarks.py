"""Watermarks: event time at a sender and at a receiver, and which rows are late.

Laws:
1. A sender's clock is a function of the rows it emitted to one subscriber, in their order, and of
   nothing else: not of time, batching or placement. A row is late when its time is more than lag
   and allowed lateness behind the newest one before it. So lateness is decided by the sender, and
   every receiver and every run agrees.
2. A sender's mark (newest time minus lag) travels behind the rows that made it. Rows that come
   later and are no older than the mark are on time; those between the mark and the allowed lateness
   are tardy; older ones are late.
3. A receiver's watermark is the least mark of all tasks that may send to it, so no row that is on
   time can find its window already fired. It never falls. Idle senders are left out (where an idle
   timeout is set; then this law does not hold for the first rows after the silence). When all
senders are idle or have ended, and not all have ended, it is the newest mark of any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

NEVER = -1
"""The mark of a sender that has sent none yet; times are never negative."""
END = 2**63 - 1
"""The mark of a sender that will never send again."""

IDLE = -2
"""Mark of a sender that has been silent for long: time may pass without it, until its next mark."""
LAST_MS = 2**53
"""No row may claim to be later: a clock that one bad row had set that far would call everything
else late.
"""

Channel = tuple[int, str]
"""Sender: task and stream."""


class SourceClock:
    """Event time of the rows that one task sends to one subscriber (law 1), and how far out of
    order they were.

    Only rows older than `edge_ms` need a closer look: they are late, or further behind the newest
    row than any before.
    """

    __slots__ = (
        "behind_ms",
        "edge_ms",
        "newest_ms",
        "oldest_ms",
        "_lag_ms",
        "_slack_ms",
        "_edge_behind_ms",
    )

    def __init__(self, lag_ms: int, lateness_ms: int, newest_ms: int = NEVER) -> None:
        self._lag_ms = lag_ms
        self._slack_ms = lag_ms + lateness_ms
        # greatest distance since rows were last taken back, at most the slack
        self._edge_behind_ms = 0
        self.behind_ms = 0  # greatest distance of a row behind the newest one before it
        self.oldest_ms = END
        self.set_newest(newest_ms)

    def is_late(self, at_ms: Any) -> bool:
        """Take in the next row's time and return whether the row is late; the receiver refuses what
        is no time.
        """
        if type(at_ms) is not int:
            return False
        if at_ms > self.newest_ms:
            if at_ms <= LAST_MS:
                self.set_newest(at_ms)
            return False
        return 0 <= at_ms < self.edge_ms and self.is_older(at_ms)

    def is_older(self, at_ms: int) -> bool:
        """Take in a time before `edge_ms` and return whether the row is late."""
        behind_ms = self.newest_ms - at_ms
        self.behind_ms = max(self.behind_ms, behind_ms)
        self.oldest_ms = min(self.oldest_ms, at_ms)
        self._edge_behind_ms = min(max(self._edge_behind_ms, behind_ms), self._slack_ms)
        self.edge_ms = self.newest_ms - self._edge_behind_ms
        return behind_ms > self._slack_ms

    def set_newest(self, at_ms: int) -> None:
        """Continue from this newest time: that of the next row, or of a stored clock."""
        if 0 <= at_ms < self.oldest_ms:
            self.oldest_ms = at_ms
        self.newest_ms = at_ms
        self.edge_ms = at_ms - self._edge_behind_ms

    def take_back(self, newest_ms: int) -> None:
        """Continue from the newest time of the rows that are left after some were undone."""
        self._edge_behind_ms = 0
        self.set_newest(newest_ms)

    def mark_ms(self, low_ms: int = NEVER, held_ms: int = END) -> int:
        """Return the least time of rows on time that may follow; `low_ms` is how far the sender
        itself has fired, `held_ms` the newest time before a row that is still to come.
        """
        return max(NEVER, max(min(self.newest_ms, held_ms), low_ms) - self._lag_ms)

    def opening_mark_ms(self) -> int:
        """Return the least time of rows on time of a sender whose first rows alone are known: their
        oldest less the lag.
        """
        return max(NEVER, self.oldest_ms - self._lag_ms)


class Watermarks:
    """Marks that a task has received from every task and stream that can send to it (law 3)."""

    def __init__(
        self,
        channels: Iterable[Channel],
        heard: Mapping[Channel, int] | None = None,
        newest_ms: int = NEVER,
    ) -> None:
        self._mark_by_channel = dict.fromkeys(sorted(channels), NEVER)
        for channel, at_ms in (heard or {}).items():
            if channel in self._mark_by_channel:
                self._mark_by_channel[channel] = at_ms
        # newest mark of any sender, also of one that has ended since
        self.newest_ms = max(
            newest_ms, *(m for m in self._mark_by_channel.values() if m < END), NEVER
        )
        self._idle: set[Channel] = set()
        self.low_ms = self._lowest()

    def hear(self, channel: Channel, at_ms: int) -> bool:
        """Take in a mark; return whether it changed anything. Marks never fall; those of unknown
        senders are ignored.
        """
        if at_ms == IDLE and channel in self._mark_by_channel:
            return self.rest(channel)
        self._idle.discard(channel)
        if at_ms <= self._mark_by_channel.get(channel, END):
            return False
        if at_ms < END:
            self.newest_ms = max(self.newest_ms, at_ms)
        was_lowest = self._mark_by_channel[channel] <= self.low_ms
        self._mark_by_channel[channel] = at_ms
        if was_lowest:
            self.low_ms = max(self.low_ms, self._lowest())
        return True

    def rest(self, channel: Channel) -> bool:
        """Ignore an idle sender until its next mark; return whether it was not idle before."""
        was_idle = channel in self._idle
        self._idle.add(channel)
        self.low_ms = max(self.low_ms, self._lowest())
        return not was_idle

    def is_idle(self, channel: Channel) -> bool:
        """Return whether a sender is idle."""
        return channel in self._idle

    @property
    def is_ended(self) -> bool:
        """Return whether all senders have ended; False for a task without senders."""
        return bool(self._mark_by_channel) and min(self._mark_by_channel.values()) == END

    def behind(self) -> list[Channel]:
        """Return the senders with the lowest mark."""
        return [channel for channel, at_ms in self._mark_by_channel.items() if at_ms == self.low_ms]

    def _lowest(self) -> int:
        if not self._idle:
            return min(self._mark_by_channel.values(), default=NEVER)
        return min(
            (
                at_ms
                for channel, at_ms in self._mark_by_channel.items()
                if channel not in self._idle and at_ms < END
            ),
            default=self.newest_ms,
        )
