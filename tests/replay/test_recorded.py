"""Checks that the input of a live bolt is recorded, once it is committed, within bounds; and steps
go through it again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.cli import main as cli
from sparkstorm.common.errors import InvalidTopologyError, RecordingError, WorkerFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.executor.state import MemoryState
from sparkstorm.extensions.recording.recorder import Batch, Desk, Recorder, ThreadedDesk
from sparkstorm.extensions.recording.segments import (
    Beginning,
    Call,
    Header,
    Limits,
    SegmentFile,
    read_part,
)
from sparkstorm.extensions.recording.stepping.recorded import Slice, recorded
from sparkstorm.testing import FeederSpout, LocalCluster

HEADER = Header("wc-1-1", "sum", 3, 0, 7, 0, is_stateful=True)
LIMITS = Limits(1000, 1 << 20, 100)


class Divide(StatefulBolt):
    """Emits 100 / the sum so far, which fails once it is zero."""

    outputs = ("share",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        total = self.state.add("sum", tup.values[0])
        collector.emit((100 // total,))


class Nothing(BasicBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        pass


def build(spout: FeederSpout) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("numbers", spout)
    builder.set_bolt("divide", Divide()).global_grouping("numbers")
    builder.set_bolt("end", Nothing()).shuffle_grouping("divide")
    return builder.build()


def conf(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "topology.record.components": ["divide"],
        "topology.record.directory": str(folder),
        "topology.max.retries": 1,
        **{f"topology.record.{key.replace('_', '.')}": value for key, value in more.items()},
    }


def run(
    folder: Path,
    numbers: Sequence[int],
    harm: Callable[[LocalCluster], Any] = lambda _: None,
    **more: Any,
) -> Topology:
    spout = FeederSpout(["number"])
    topology = build(spout)
    with LocalCluster() as cluster:
        cluster.submit(topology, conf(folder, **more))
        for at in range(0, len(numbers), 4):
            for number in numbers[at : at + 4]:
                spout.feed([number])
            cluster.run_until_idle()
            harm(cluster)
    return topology


def task_folder(folder: Path) -> Path:
    (found,) = folder.glob("recorded/test-1-*/divide/task-*")
    return found


def numbers_in(slices: Sequence[Slice]) -> list[int]:
    return [each.values[0] for part in slices for each in part.tuples]


def test_a_failure_is_found_again_step_by_step(tmp_path: Path) -> None:
    topology = run(tmp_path, [5, 5, 10, -20, 3, 4])
    (part,) = recorded(task_folder(tmp_path))
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert files and {each.stat().st_mode & 0o777 for each in files} == {0o600}, "input of users"
    assert numbers_in([part]) == [5, 5, 10, -20, -20, 3, 4]  # the culprit was tried twice
    result = [each.failure is not None for each in part.tuples]
    assert result == [False, False, False, True, True, False, False]
    steps = list(part.steps(topology))
    assert [step.emitted for step in steps] == [
        {"default": [(20,)]},
        {"default": [(10,)]},
        {"default": [(5,)]},
        {},
        {},
        {"default": [(4,)]},
        {"default": [(3,)]},
    ]
    assert "ZeroDivisionError" in str(steps[3].failure) and steps[3].state == {"sum": 20}
    assert steps[-1].state == {"sum": 27}


def test_the_newest_rows_are_kept_with_the_state_before_them(tmp_path: Path) -> None:
    topology = run(tmp_path, range(1, 101), max_rows=40)
    slices = recorded(task_folder(tmp_path))
    numbers = numbers_in(slices)
    assert numbers == list(range(101 - len(numbers), 101)) and 24 <= len(numbers) <= 40
    (first,) = slices
    assert first.state == {"sum": sum(range(1, 101 - len(numbers)))}
    assert list(first.steps(topology))[-1].state == {"sum": 5050}
    assert {path.suffix for path in task_folder(tmp_path).iterdir()} == {".parquet"}


def test_killed_workers_leave_whole_files_and_rows_once(tmp_path: Path) -> None:
    topology = run(
        tmp_path, range(1, 41), lambda cluster: cluster.kill_worker("divide"), max_rows=1000
    )
    slices = recorded(task_folder(tmp_path))
    # an epoch that died was executed again, and committed once
    assert numbers_in(slices) == list(range(1, 41))
    assert len(slices) > 5 and len(list(tmp_path.rglob("*.part"))) <= 1  # the last one's
    total = 0
    for part in slices:
        assert part.state == ({"sum": total} if total else {})
        total += sum(numbers_in([part]))
        assert list(part.steps(topology))[-1].state == {"sum": total}


def test_a_state_that_is_too_large_is_left_out_and_asked_for(tmp_path: Path) -> None:
    topology = run(tmp_path, [1, 2], state_keys=0)
    (part,) = recorded(task_folder(tmp_path))
    assert part.state == {}  # nothing was in it when the recording began
    folder = tmp_path / "other"
    topology = run(folder, range(1, 101), state_keys=0, max_rows=40)
    part = recorded(task_folder(folder))[-1]
    assert part.state is None
    sentence = r"the state of 'divide' .* was too large to be recorded"
    with pytest.raises(RecordingError, match=sentence):
        part.steps(topology)
    assert list(part.steps(topology, state={"sum": 1}))[-1].failure is None


def test_without_the_key_nothing_is_made_and_a_wrong_name_is_refused(tmp_path: Path) -> None:
    run(tmp_path, [1], components=[])
    assert list(tmp_path.iterdir()) == []
    sentence = r"components names 'numbers', which is no bolt: divide, end are"
    with pytest.raises(InvalidTopologyError, match=sentence):
        run(tmp_path, [1], components=["numbers"])
    sentence = r"topology\.record\.directory is not: nobody here has a folder"
    with pytest.raises(WorkerFailedError, match=sentence):
        run(tmp_path, [1], directory=None)


def test_the_command_line_shows_tuples_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, [5, -5])
    assert cli(["recorded", str(task_folder(tmp_path))]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    result = [(each["values"], each["stream"]) for each in shown]
    assert result == [([5], "default"), ([-5], "default"), ([-5], "default")]
    assert shown[0]["failure"] is None and "ZeroDivisionError" in shown[1]["failure"]
    assert cli(["recorded", str(tmp_path / "nowhere")]) == 1
    assert "there is no recording" in capsys.readouterr().err


def test_ids_with_slashes_and_dots_have_folders_of_their_own_below_the_recordings(
    tmp_path: Path,
) -> None:
    ids = ["a/b", "a-b", "..", "../../out"]
    spout, builder = FeederSpout(["number"]), TopologyBuilder()
    builder.set_spout("numbers", spout)
    for id in ids:
        builder.set_bolt(id, Divide()).global_grouping("numbers")
    with LocalCluster() as cluster:
        cluster.submit(builder.build(), conf(tmp_path / "logs", components=ids))
        spout.feed([4])
        cluster.run_until_idle()
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    folders = list(tmp_path.glob("logs/recorded/test-1-*/*/task-*"))
    assert sorted(part.component for folder in folders for part in recorded(folder)) == sorted(ids)


# -- files -----------------------------------------------------------------------------------------


def rows(*numbers: int, size: int = 0) -> list[Call]:
    return [
        Call(
            0,
            "numbers",
            1,
            "default",
            [Codec().pack([n, Random(n).randbytes(size)]) for n in numbers],
            {},
        )
    ]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SegmentFile]:
    made = SegmentFile(tmp_path / "task-3", HEADER, LIMITS)
    yield made
    made.close()


def test_a_part_cut_anywhere_gives_what_is_whole_before_the_cut(
    file: SegmentFile, tmp_path: Path
) -> None:
    file.take(Beginning(1, 0, [["sum", 4]]), rows(1, 2), 0)
    file.take(None, rows(3), 0)
    (part,) = (tmp_path / "task-3").iterdir()
    whole = part.read_bytes()
    copy = tmp_path / "cut.part"
    seen = set()
    for end in range(len(whole) + 1):
        copy.write_bytes(whole[:end])
        header, state, found = read_part(copy)
        seen.add((header is not None, len(state), sum(len(call.values) for call in found)))
    assert seen == {(False, 0, 0), (True, 0, 0), (True, 1, 0), (True, 1, 2), (True, 1, 3)}


def test_the_next_owner_closes_what_a_dead_one_left_and_keeps_out_of_the_way_of_newer_ones(
    tmp_path: Path,
) -> None:
    def owner(token: int) -> SegmentFile:
        made = SegmentFile(
            tmp_path, Header("wc-1-1", "sum", 3, 0, token, 0, is_stateful=True), LIMITS
        )
        made.take(Beginning(1, 0, []), rows(token), 0)
        return made

    dead, alive = owner(7), owner(9)
    dead.abandon()
    (tmp_path / f"{7:020d}-000002.tmp").write_bytes(b"half")
    last = owner(8)
    result = sorted(path.name[18:] for path in tmp_path.iterdir())
    assert result == ["07-000001.parquet", "08-000001.part", "09-000001.part"]
    for each in (last, alive):
        each.close()
    assert [numbers_in([part]) for part in recorded(tmp_path)] == [[7], [8], [9]]


def test_bytes_are_bounded_and_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    file = SegmentFile(tmp_path, HEADER, Limits(10_000, 1 << 16, 100))
    for number in range(1, 9):
        file.take(Beginning(number, 0, None), rows(*range(100), size=1000), 0)
        assert file.over == number
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1 << 16
    file.close()
    slices = recorded(tmp_path)
    assert 2 <= len(slices) <= 4
    assert all(part.lost > 80 and len(part.tuples) > 10 for part in slices)


def row(number: int) -> Tuple:
    return Tuple((number,), 0, Source("numbers", 1, "default", ("n",)))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_costs_rows_and_nothing_else(tmp_path: Path) -> None:
    file = SegmentFile(tmp_path, HEADER, LIMITS)
    (tmp_path / f"{7:020d}-000001.part").symlink_to("/dev/full")
    recorder = Recorder(Desk(), file, None, LIMITS, lambda: now[0])
    now = [1000]
    for number in range(3):
        recorder.executed([row(number)], [], (), [(number,)])
        recorder.committed()
    now[0] += 60_000
    for number in range(3, 7):
        recorder.executed([row(number)], [], (), [(number,)])
        recorder.committed()
    file.close()
    (tmp_path / f"{7:020d}-000001.part").unlink(missing_ok=True)
    (part,) = recorded(tmp_path)
    assert numbers_in([part]) == [4, 5, 6] and part.lost == 4


def test_a_desk_that_falls_behind_refuses_rather_than_waits(tmp_path: Path) -> None:
    state = MemoryState(Codec())
    file, desk = SegmentFile(tmp_path, HEADER, LIMITS), ThreadedDesk(most_rows=0)
    recorder = Recorder(desk, file, state, LIMITS, lambda: 0)
    recorder.executed([row(1)], [], (), [(1,)])
    recorder.committed()
    desk.close([file])
    assert list(tmp_path.iterdir()) == []


def test_the_thread_writes_what_the_loop_hands_over(tmp_path: Path) -> None:
    file, desk = SegmentFile(tmp_path, HEADER, LIMITS), ThreadedDesk()
    source = Source("numbers", 1, "default", ("n",))
    for number in range(1, 51):
        desk.take(
            Batch(
                file,
                Beginning(1, 0, None) if number == 1 else None,
                [(source, [(number,)], {})],
                1,
                number,
            )
        )
    desk.close([file])
    assert numbers_in(recorded(tmp_path)) == list(range(1, 51))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "format 2; this version reads 1"),
        ({"task": "3"}, "header of a recording: task: expected an integer, got '3'"),
        ({"extra": 1}, "header of a recording: unknown field 'extra'"),
    ],
)
def test_headers_of_others_are_named(tmp_path: Path, change: Mapping[str, Any], said: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    from sparkstorm.extensions.recording.segments import _META, _schema

    header = {**asdict(HEADER), **change}
    table = pa.Table.from_pylist([], _schema().with_metadata({_META: json.dumps(header).encode()}))
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(RecordingError, match=rf"a\.parquet.*{said}"):
        recorded(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(RecordingError, match=r"a\.parquet cannot be read as a recording"):
        recorded(tmp_path)
