"""Looks of sources for news behind what they have read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkstorm.connectors.patience import check_flags, check_number


@dataclass(frozen=True, slots=True)
class Poll:
    """Options of a source: whether it is followed behind its end, and the pause between two
    looks.
    """

    follow: bool
    pause_ms: int

    @classmethod
    def of(cls, connector: str, follow: bool, poll_secs: float) -> Poll:
        """Return the checked arguments of a connector; InvalidConfigError names a wrong one."""
        check_flags(connector, follow=follow)
        check_number(connector, "poll_secs", poll_secs)
        return cls(follow, round(poll_secs * 1000))


class Looks:
    """When a source looks for news: at once, then after each pause, and never again behind the end
    of one that is not followed.
    """

    def __init__(self, poll: Poll, now_ms: Callable[[], int]) -> None:
        self._poll = poll
        self._now_ms = now_ms
        self._due_ms = 0
        self._is_at_end = False

    @property
    def are_over(self) -> bool:
        """Return whether the last look found the end, of a source that is not followed."""
        return self._is_at_end and not self._poll.follow

    @property
    def is_due(self) -> bool:
        """Return whether to look now."""
        return not self.are_over and self._now_ms() >= self._due_ms

    def note(self, is_at_end: bool, pause_ms: int | None = None) -> None:
        """Note what a look has found; the next one comes after the pause of the user, or this
        one.
        """
        self._is_at_end = is_at_end
        self.put_off(self._poll.pause_ms if pause_ms is None else pause_ms)

    def put_off(self, pause_ms: int) -> None:
        """Let the next look wait so long."""
        self._due_ms = self._now_ms() + pause_ms
