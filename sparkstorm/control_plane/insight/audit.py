"""Conservation audit: on each edge, rows sent = rows consumed + rows that wait. PURE.

Rows consumed include those that a task holds, tries again or has parked, so a row that a bolt fails
is not missing. Both arguments must be read at one moment: a commit between two reads would look
like a loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sparkstorm.common.model.names import counted
from sparkstorm.data_plane.transport.progress import Progress


@dataclass(frozen=True, slots=True)
class EdgeAudit:
    """One edge: its rows since the topology began, and what is wrong with them ("": nothing)."""

    sender: str
    stream: str
    receiver: str
    sent: int
    consumed: int
    fault: str = ""

    @property
    def waiting(self) -> int:
        """Return the rows that must wait in Redis."""
        return self.sent - self.consumed


def audit(
    merged: Progress, backlog_by_task: Mapping[int, int], is_one_moment: bool = True
) -> tuple[EdgeAudit, ...]:
    """Return every edge, by name; `merged` is the progress of all owners, `backlog_by_task` the
    bytes in the tasks' streams. Where they are not of one moment, no edge is at fault.
    """
    backlog = Counter[str]()
    for task, size in backlog_by_task.items():
        if task in merged.counts_by_task:
            backlog[merged.counts_by_task[task].component] += size
    edges = []
    for (sender, stream, receiver), flow in sorted(merged.edges.items()):
        missing = flow.sent - flow.consumed
        fault = ""
        if not is_one_moment:
            pass
        elif missing < 0:
            fault = f"{counted(-missing, 'row')} more {_was(-missing)} consumed than sent"
        elif missing and not backlog.get(receiver):
            away = merged.quarantined
            lost = f", {counted(away, 'frame is', 'frames are')} in quarantine" if away else ""
            sent = f"{counted(missing, 'row')} {_was(missing)} sent"
            fault = f"{sent} and not consumed, and nothing waits{lost}"
        edges.append(EdgeAudit(sender, stream, receiver, flow.sent, flow.consumed, fault))
    return tuple(edges)


def _was(count: int) -> str:
    return "was" if count == 1 else "were"
