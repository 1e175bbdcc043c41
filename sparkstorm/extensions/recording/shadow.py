"""Shadow of an upgrade: new code gets the inputs of a live task, next to the old code; outputs are
compared and thrown away.

The input is a recording of the live task (`topology.record.components`): committed rows with the
state before them. Each version runs in its own process, from the same state; compared are what
each row emits, whether it fails, and which keys of the state it changes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkstorm.client import ClusterClient, TopologyHandle
from sparkstorm.common.errors import InvalidTopologyError, RecordingError
from sparkstorm.common.model.topology import Topology
from sparkstorm.extensions.recording.stepping.recorded import Slice, recorded
from sparkstorm.extensions.recording.versions import (
    NEW,
    OLD,
    CallDifference,
    Comparison,
    Version,
    in_batches,
)

_BATCH = 200


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """Result of a comparison: rows compared, rows that differ, and the first of them."""

    compared: int
    different: int
    differences: tuple[CallDifference, ...]
    passed_over: int = 0  # rows before which the state is unknown


def shadow(
    handle: TopologyHandle,
    cluster: ClusterClient,
    topology: Topology,
    conf: Mapping[str, Any],
    recording: str | Path,
    most: int = 0,
    by_value: Sequence[str] | None = None,
) -> ShadowReport:
    """Step new code and the code that runs through the recording of a live task, and compare them
    row by row.

    Nothing is changed. `recording` is a folder that `topology.record.components` has filled; the
    newest rows are compared, `most` at least (0: all).
    """
    new = cluster.packed(topology, by_value, conf), conf
    return compare_versions(cluster.running_code(handle.topology_id), new, recording, most)


def compare_versions(
    old: tuple[bytes, Mapping[str, Any]],
    new: tuple[bytes, Mapping[str, Any]],
    recording: str | Path,
    most: int = 0,
) -> ShadowReport:
    """Step both versions (code, configuration) through a task's recording, its newest `most` rows
    at the most (0: all).

    RecordingError when there is no row to compare, or none with a known state; WorkerFailedError
    for code that cannot run.
    """
    slices = recorded(recording)
    if not slices or not any(part.tuples for part in slices):
        raise RecordingError(f"{recording}: there is no row to compare")
    usable = [part for part in slices if part.state is not None or not part.is_stateful]
    if not usable:
        raise RecordingError(
            f"{recording}: the state before its rows was too large to be recorded (topology.record.state.keys)"
        )
    passed_over = sum(len(part.tuples) for part in slices) - sum(
        len(part.tuples) for part in usable
    )
    with tempfile.TemporaryDirectory() as name:
        versions: list[Version] = []
        try:
            for word, (code, conf) in ((OLD, old), (NEW, new)):
                versions.append(Version(word, code, usable[0].component, conf, Path(name)))
            return _compared(versions, _newest(usable, most), passed_over)
        finally:
            for version in versions:
                version.close()


def _newest(slices: Sequence[Slice], most: int) -> list[Slice]:
    """Return whole slices from the end that hold at least so many rows: only their beginnings have
    a state.
    """
    newest: list[Slice] = []
    for part in reversed(slices):
        newest.insert(0, part)
        if most and sum(len(kept_part.tuples) for kept_part in newest) >= most:
            break
    return newest


def _compared(
    versions: Sequence[Version], slices: Sequence[Slice], passed_over: int
) -> ShadowReport:
    comparison = Comparison(versions, slices[0].component, slices[0].task)
    for part in slices:
        comparison.begin(part.index, part.state or {})
        for batch in in_batches(
            [(t.component, t.stream, t.values, t.at_ms) for t in part.tuples], _BATCH
        ):
            comparison.rows(batch)
    return ShadowReport(
        comparison.compared, comparison.different, tuple(comparison.kept), passed_over
    )


def check_shadow(name: str, report: ShadowReport, least: int) -> None:
    """InvalidTopologyError when rows differ, or when fewer were compared than asked for."""
    if report.different:
        raise InvalidTopologyError(
            f"upgrade of {name}: {report.different:,} of {report.compared:,} recorded tuples come out differently with the new "
            f"code; first {report.differences[0]}"
        )
    if report.compared < least:
        raise InvalidTopologyError(
            f"upgrade of {name}: {report.compared:,} tuples were compared, {least:,} are asked for: record more, or ask for fewer"
        )
