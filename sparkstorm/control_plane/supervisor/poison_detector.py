"""Counts of worker deaths per input row: a row that kills its worker repeatedly is parked.

PURE. The first unexplained death makes the next child careful (one input row per commit, announced
before it is tried); from then on a death is held against the row that was being tried. The child is
given the counts and parks a row itself. A first SIGKILL is taken for what it mostly is, that of an
operator or of a kernel short of memory: careful mode costs most of the throughput while it lasts,
and a row that causes the kill will do so again.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sparkstorm.common.model.worker_messages import ExitCode, Passed, Trying, WorkerReport
from sparkstorm.common.model.worker_spec import Suspect

# For each bolt some 1.3 s of commits of 0.25 ms next to the store. With half of it the process is more often
# careless again when a poison row comes, which costs one more restart; twice as many keep a worker
# slow for longer after a death that no row has caused. Not measured. When the next process dies
# unexplained again, the row lies further behind: an epoch may hold 65,536 rows.
FEWEST_INPUTS = 5_000
_FACTOR = 4
_MOST_UNFOUND = 2
MAX_SUSPECTS = 256
MAX_END_CHARS = 300
# Ends with their own cause; no row has caused them.
_EXPLAINED = frozenset(
    (
        ExitCode.STOPPED,
        ExitCode.FAILED_START,
        ExitCode.FENCED,
        ExitCode.STORE_LOST,
        ExitCode.RELOAD,
        ExitCode.ORPHANED,
        ExitCode.BAD_SPEC,
        ExitCode.DAMAGED,
        ExitCode.MISTAKEN,
    )
)

Row = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class PoisonDetector:
    """Deaths of one slot's workers under one assignment."""

    careful: int = 0  # inputs of each bolt that the next child runs one by one
    unfound: int = 0  # last deaths that no row has explained, up to _MOST_UNFOUND
    trying: Trying | None = None
    suspect_by_row: Mapping[Row, Suspect] = field(default_factory=dict)
    was_killed: bool = False

    def heard(self, report: WorkerReport) -> "PoisonDetector":
        """Take in a report of the child: the row it tries now, or the end of careful mode."""
        if isinstance(report, Trying):
            return replace(self, trying=report)
        if not isinstance(report, Passed):
            return self
        return PoisonDetector(unfound=0 if self.suspect_by_row else self.unfound)

    def died(self, exit_code: int, has_said_why: bool = False, end: str = "") -> "PoisonDetector":
        """Record the death of a running worker process that had no order to end.

        A code of ours without a last report is the user's own `os._exit` or exec.
        """
        if has_said_why and exit_code in _EXPLAINED:
            return replace(self, trying=None)
        if exit_code == -signal.SIGKILL and not (self.careful or self.was_killed):
            return replace(self, was_killed=True)
        if self.trying is None:
            inputs = FEWEST_INPUTS * _FACTOR**self.unfound
            return replace(self, careful=inputs, unfound=min(self.unfound + 1, _MOST_UNFOUND))
        row = (self.trying.task, self.trying.entry, self.trying.row)
        before = self.suspect_by_row.get(row)
        suspect = Suspect(*row, 1 + (before.deaths if before else 0), end[:MAX_END_CHARS])
        # The newest rows last, the oldest forgotten: what is parked is never tried again.
        suspects = {
            **{key: other for key, other in self.suspect_by_row.items() if key != row},
            row: suspect,
        }
        newest = dict(list(suspects.items())[-MAX_SUSPECTS:])
        return replace(
            self, careful=self.careful or FEWEST_INPUTS, trying=None, suspect_by_row=newest
        )

    def suspects(self) -> tuple[Suspect, ...]:
        """The counts in the form in which a WorkerSpec carries them."""
        return tuple(self.suspect_by_row.values())
