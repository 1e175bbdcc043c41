"""Shadow of an upgrade: new code is given what a live task was given, beside the old code; outputs are compared and thrown away.

The input is a recording of the live task (`topology.record.components`): committed rows with the state before them. Each
version runs in a process of its own, from the same state; compared are what each row emits, whether it fails, and which keys
of the state it changes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkstorm.client import ClusterClient, TopologyHandle
from sparkstorm.errors import InvalidTopologyError, RecordingError, WorkerFailedError
from sparkstorm.model.topology import Topology
from sparkstorm.model.values.codec import Codec
from sparkstorm.replay.stepping.recorded import RecordedTuple, Slice, recorded
from sparkstorm.replay.stepping.step_server import read_frame, write_frame

_BATCH = 200
_KEPT = 20
_IDS = ("topology.id", "topology.name", "storm.id")
_PARTS = ("emitted", "failure", "changed state", "deleted keys")


@dataclass(frozen=True, slots=True)
class Difference:
    """One row that the versions treat differently: the first part that differs, as each version has it."""

    component: str
    task: int
    number: int  # of the row in the recording, from 1
    input: tuple[Any, ...]
    part: str  # emitted, failure, changed state, deleted keys
    old: Any
    new: Any

    def __str__(self) -> str:
        where = f"{self.component}#{self.task}, row {self.number} {show(self.input)}"
        return f"{where}: {self.part}: {show(self.old)} by the code that runs, {show(self.new)} by the new code"


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """Result of a comparison: rows compared, rows that differ, and the first of them."""

    compared: int
    different: int
    differences: tuple[Difference, ...]
    passed_over: int = 0  # rows before which the state is unknown


def show(value: Any) -> str:
    """Return a value, shortened."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


class _Version:
    """One version of the code in its process."""

    def __init__(self, name: str, code: Path, component: str, conf: Mapping[str, Any], errors: Path) -> None:
        self._name, self._errors, self._codec = name, errors, Codec()
        command = [sys.executable, "-m", "sparkstorm.replay.stepping.step_server", str(code), component]
        with errors.open("wb") as err:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, cwd=errors.parent)
        self.send({key: value for key, value in conf.items() if key.startswith(("topology.", "app.")) and key not in _IDS})

    def send(self, frame: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            write_frame(self._process.stdin, self._codec, frame)

    def answer(self) -> list[Any]:
        assert self._process.stdout is not None
        try:
            found: list[Any] = read_frame(self._process.stdout, self._codec)
        except EOFError:
            self._process.wait()
            lines = self._errors.read_text(errors="replace").strip().splitlines()
            why = lines[-1] if lines else "it ended"
            raise WorkerFailedError(f"the {self._name} code cannot be stepped through: {why}") from None
        return found

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self._process.kill()
        self._process.wait()


def shadow(
    handle: TopologyHandle,
    cluster: ClusterClient,
    topology: Topology,
    conf: Mapping[str, Any],
    recording: str | Path,
    most: int = 0,
    by_value: Sequence[str] | None = None,
) -> ShadowReport:
    """Step new code and the code that runs through the recording of a live task, and compare them row by row.

    Nothing is changed. `recording` is a folder that `topology.record.components` has filled; the newest rows are compared,
    `most` at least (0: all).
    """
    new = cluster.packed(topology, by_value, conf), conf
    return compare_versions(cluster.running_code(handle.topology_id), new, recording, most)


def compare_versions(
    old: tuple[bytes, Mapping[str, Any]], new: tuple[bytes, Mapping[str, Any]], recording: str | Path, most: int = 0
) -> ShadowReport:
    """Step both versions (code, configuration) through a task's recording, its newest `most` rows at the most (0: all).

    RecordingError when there is no row to compare, or none with a known state; WorkerFailedError for code that cannot run.
    """
    slices = recorded(recording)
    if not slices or not any(each.tuples for each in slices):
        raise RecordingError(f"{recording}: there is no row to compare")
    known = [each for each in slices if each.state is not None or not each.is_stateful]
    if not known:
        raise RecordingError(f"{recording}: the state before its rows was too large to be recorded (topology.record.state.keys)")
    passed_over = sum(len(each.tuples) for each in slices) - sum(len(each.tuples) for each in known)
    with tempfile.TemporaryDirectory() as name:
        folder, versions = Path(name), []
        try:
            for word, (code, conf) in (("running", old), ("new", new)):
                (folder / word).mkdir()
                (folder / word / "code").write_bytes(code)
                versions.append(_Version(word, folder / word / "code", known[0].component, conf, folder / word / "errors"))
            return _compared(versions, _newest(known, most), passed_over)
        finally:
            for each in versions:
                each.close()


def _newest(slices: Sequence[Slice], most: int) -> list[Slice]:
    """Return whole slices from the end that hold at least so many rows: only their beginnings have a state."""
    found: list[Slice] = []
    for each in reversed(slices):
        found.insert(0, each)
        if most and sum(len(one.tuples) for one in found) >= most:
            break
    return found


def _compared(versions: Sequence[_Version], slices: Sequence[Slice], passed_over: int) -> ShadowReport:
    compared = different = 0
    kept: list[Difference] = []
    for each in slices:
        for version in versions:
            version.send(["begin", each.index, [[key, value] for key, value in (each.state or {}).items()]])
        for version in versions:
            version.answer()
        for batch in _batches(each.tuples):
            for version in versions:
                version.send(["rows", [[t.component, t.stream, list(t.values), t.at_ms] for t in batch]])
            for row, old, new in zip(batch, *(version.answer() for version in versions), strict=True):
                compared += 1
                if found := _difference(each, compared, row, old, new):
                    different += 1
                    kept += [found] if len(kept) < _KEPT else []
    return ShadowReport(compared, different, tuple(kept), passed_over)


def _batches(tuples: Sequence[RecordedTuple]) -> Iterator[Sequence[RecordedTuple]]:
    for at in range(0, len(tuples), _BATCH):
        yield tuples[at : at + _BATCH]


def _difference(each: Slice, number: int, row: RecordedTuple, old: list[Any], new: list[Any]) -> Difference | None:
    for part, one, other in zip(_PARTS, old, new, strict=True):
        is_same = (one is None) == (other is None) if part == "failure" else _sorted(part, one) == _sorted(part, other)
        if not is_same:
            return Difference(each.component, each.task, number, row.values, part, one, other)
    return None


def _sorted(part: str, value: Any) -> Any:
    """State changes have no order."""
    return sorted(value, key=repr) if part in _PARTS[2:] else value


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
