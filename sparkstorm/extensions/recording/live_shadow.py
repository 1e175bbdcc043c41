"""Live shadow: committed input of a task goes to both versions of its code as it comes, and their
outputs are compared.

The worker's loop pays for a list of the rows of its epochs and one copy of the state; all else
happens on a thread and in two processes of lower priority. When these fall behind, rows are skipped
and counted, and the comparison begins anew with the state as it is then. Nothing that the new code
does reaches the topology.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.extensions.recording.recorder import Desk, ThreadedDesk
from sparkstorm.extensions.recording.segments import Beginning, Call
from sparkstorm.extensions.recording.versions import (
    NEW,
    OLD,
    Comparison,
    Input,
    Version,
    in_batches,
)
from sparkstorm.extensions.upgrade.live_shadow import ShadowFigures

_BATCH = 100
_SHOWN = 5
_PATIENCE_S = 30.0
_MOST_WAITING_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class ShadowedTask:
    """A task that is shadowed; `index` is its place among its component's tasks."""

    component: str
    task: int
    index: int
    is_stateful: bool
    is_timed: bool  # it has windows or timers


@dataclass(frozen=True, slots=True)
class VersionSource:
    """Code and configuration of a version."""

    code: bytes
    conf: Mapping[str, Any]


class RestingDesk(ThreadedDesk):
    """Writer that, once full, takes nothing before everything is written: each new beginning costs
    a copy of the state.
    """

    def __init__(self) -> None:
        super().__init__(_MOST_WAITING_ROWS)
        self._is_resting = False

    def has_room(self) -> bool:
        """Return whether it would take more."""
        self._is_resting = (
            self._taken > self._written if self._is_resting else not super().has_room()
        )
        return not self._is_resting


class LiveShadow:
    """Comparison next to a live task: takes its committed rows as a recording's file does, and keeps
    figures.

    `problem` has the reason why it cannot go on; rows that come after that are skipped.
    """

    over = 0  # as a file that is never full
    fill = (0, 0)
    rests_until_ms = 0

    def __init__(
        self, task: ShadowedTask, old: VersionSource, new: VersionSource, limit_mb: float | None
    ) -> None:
        self._task = task
        self._sources = {OLD: old, NEW: new}
        self._limit_mb = limit_mb
        self.codec = Codec(is_lenient=True)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._versions: list[Version] = []
        self._comparison: Comparison | None = None
        self._is_over = False
        self.skipped = 0
        self.problem = ""

    def take(self, beginning: Beginning | None, calls: Iterable[Call], now_ms: int) -> None:
        """Give committed rows to both versions; a beginning brings the state before them."""
        rows: list[Input] = []
        try:
            rows = [(row[1], row[3], row[4], row[0]) for call in calls for row in call.rows()]
            if beginning is not None:
                self._begin(beginning)
            if self.problem or self._is_over or self._comparison is None:
                self.skipped += len(rows)
                return
            for batch in in_batches(rows, _BATCH):
                self._comparison.rows(batch)
        except (SparkStormError, OSError) as error:
            self.problem = self.problem or ("" if self._is_over else str(error))

    def _begin(self, beginning: Beginning) -> None:
        self.skipped += beginning.lost
        if self.problem or self._is_over:
            return
        is_too_large = (self._task.is_stateful and beginning.state is None) or (
            self._task.is_timed and beginning.cells is None
        )
        if is_too_large:
            self.problem = "the state of the task has more keys than topology.record.state.keys; raise it, or do without a shadow"
            return
        if self._comparison is None:
            self._folder = tempfile.TemporaryDirectory(prefix="sparkstorm-shadow-")
            for name, source in self._sources.items():
                where = Path(self._folder.name)
                version = Version(
                    name,
                    source.code,
                    self._task.component,
                    source.conf,
                    where,
                    _PATIENCE_S,
                    self._limit_mb,
                )
                self._versions.append(version)
                if self._is_over:  # `stop` may have been called before this one was in the list
                    version.kill()
            self._comparison = Comparison(
                self._versions, self._task.component, self._task.task, _SHOWN
            )
        self._comparison.begin(
            self._task.index,
            {_key(pair[0]): pair[1] for pair in beginning.state or ()},
            beginning.cells,
        )

    def figures(self, code_key: str, lost: int) -> ShadowFigures:
        """Return counts and the first differences; `lost` rows have not reached it."""
        task = self._task
        comparison = self._comparison
        skipped = self.skipped + lost
        if comparison is None:
            return ShadowFigures(
                task.component, task.task, code_key, skipped=skipped, problem=self.problem
            )
        first = tuple(str(difference)[:500] for difference in comparison.kept)
        counts = (comparison.compared, comparison.different, skipped)
        return ShadowFigures(task.component, task.task, code_key, *counts, first, self.problem)

    def stop(self) -> None:
        """End both processes, so that a thread that waits for one of them goes on."""
        self._is_over = True
        for version in self._versions:
            version.kill()

    def close(self) -> None:
        """Give everything back, after the thread has ended."""
        self.stop()
        for version in self._versions:
            version.close()
        if self._folder is not None:
            self._folder.cleanup()

    abandon = close


def new_desk(is_threaded: bool) -> Desk:
    """Return a writer for a live shadow: on a thread, or for simulations in the caller's."""
    return RestingDesk() if is_threaded else Desk()


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
