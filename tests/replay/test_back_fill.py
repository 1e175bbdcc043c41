"""Back-fill, then live: a checkpoint behind some history, and a topology that goes on from it, with
no gap and no double.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    CombiningBolt,
    Effects,
    Spout,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.api.windows import Count as CountOf
from sparkstorm.api.windows import Duration, FoldingBolt, Window, WindowedBolt
from sparkstorm.common.errors import (
    CheckpointError,
    InvalidConfigError,
    InvalidTopologyError,
    ReplayFailedError,
    StoreInconsistentError,
)
from sparkstorm.common.model.topology import Topology
from sparkstorm.connectors import FileLines, find_files
from sparkstorm.data_plane.checkpoint.files import CheckpointWriter, read_checkpoint
from sparkstorm.replay import back_fill_locally
from sparkstorm.testing import LocalCluster
from sparkstorm.testing.sim_transport import CommitFault
from tests.replay.bolts import Listed, Silence, WindowSums
from tests.sim.test_every_point import OnePoint

pytestmark = pytest.mark.sampled

# key and time in ms, a little out of order
LINES = [f"{'abcde'[n % 5]} {1000 * (n // 4) + 250 * (n % 3)}" for n in range(60)]
LAG_MS, WINDOW_MS = 1000, 2000


class Parse(BasicBolt):
    outputs = ("key", "at_ms")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        key, at_ms = tup.values[0].split()
        collector.emit((key, int(at_ms)))


class Count(StatefulBolt):
    order_insensitive = True
    state_keyed_by_grouping = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup.values[0], 1)


class Total(CombiningBolt):
    """The same, combined before the shuffle in a replay."""

    def pair(self, tup: Tuple) -> tuple[str, int]:
        return tup.values[0], 1

    def combine(self, one: int, other: int) -> int:
        return one + other


class Sum(FoldingBolt):
    """Count of a key in each window."""

    outputs = ("key", "start", "n")
    key_fields = ("key",)

    def initial(self) -> int:
        return 0

    def fold(self, accumulator: int, tup: Tuple) -> int:
        return accumulator + 1

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((*window.key, window.start, window.value))


class Members(WindowedBolt):
    """The same from the tuples themselves."""

    outputs = ("key", "start", "n")
    key_fields = ("key",)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        assert all(tup.component == "parse" for tup in window)
        collector.emit((*window.key, window.start, len(list(window))))


class TimeInputs(WindowedBolt):
    """Which times a window holds."""

    outputs = ("key", "start", "times")
    key_fields = ("key",)

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit(
            (*window.key, window.start, " ".join(sorted(str(tup["at_ms"]) for tup in window)))
        )


class Seen(StatefulBolt):
    """Every firing, under its key, window and number: one that comes twice is counted twice."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tuple(tup.values[:3]), 1)


def build(
    files: list[tuple[str, int]] | Spout,
    tasks: Mapping[str, int] | None = None,
    windows: type[Any] = Sum,
) -> Topology:
    """Lines -> parse -> count, and -> windows -> seen."""
    count = {"lines": 2, "parse": 2, "count": 2, "windows": 2, "seen": 1, **(tasks or {})}
    builder = TopologyBuilder()
    spout = files if isinstance(files, Spout) else FileLines(files)
    builder.set_spout("lines", spout, parallelism=count["lines"])
    builder.set_bolt("parse", Parse(), parallelism=count["parse"]).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), parallelism=count["count"]).fields_grouping("parse", "key")
    builder.set_bolt("total", Total(), parallelism=2).fields_grouping("parse", "key")
    windowed = (
        windows()
        .with_tumbling_window(Duration.millis(WINDOW_MS))
        .with_timestamp_field("at_ms")
        .with_lag(Duration.millis(LAG_MS))
    )
    builder.set_bolt("windows", windowed, parallelism=count["windows"]).fields_grouping(
        "parse", "key"
    )
    builder.set_bolt("seen", Seen(), parallelism=count["seen"]).global_grouping("windows")
    return builder.build()


def files_of(folder: Path, contents: Mapping[str, list[str]]) -> list[tuple[str, int]]:
    for name, lines in contents.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return find_files([folder], "*.txt")


def expected_counts() -> dict[str, int]:
    return dict(Counter(line.split()[0] for line in LINES))


def expected_windows() -> dict[tuple[str, int, int], int]:
    found: Counter[tuple[str, int]] = Counter()
    for line in LINES:
        key, at_ms = line.split()
        found[key, int(at_ms) // WINDOW_MS * WINDOW_MS] += 1
    return {(key, start, n): 1 for (key, start), n in found.items()}


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[str, int]]:
    (tmp_path / "in").mkdir()
    return files_of(tmp_path / "in", {"a.txt": LINES})


CONF = {"topology.workers": 2, "topology.acker.executors": 1, "topology.message.timeout.secs": 3600}
TASKS = {"lines": 1, "parse": 1}


@pytest.mark.parametrize("windows", [Sum, Members])
@pytest.mark.parametrize("rows", [0, 1, 31, 59, 60])
def test_history_up_to_any_row_and_then_live_is_the_whole(
    tmp_path: Path, files: list[tuple[str, int]], rows: int, windows: type[Any]
) -> None:
    topology = build(files, TASKS, windows)
    back_fill_locally(topology, tmp_path / "half", rows={"lines": rows}, conf=CONF)
    with LocalCluster() as cluster:
        cluster.submit(
            topology,
            {**CONF, "topology.workers": 3, "topology.acker.executors": 2},
            from_checkpoint=tmp_path / "half",
        )
        cluster.run_until_idle()
        assert cluster.state("count") == cluster.state("total") == expected_counts()
        assert cluster.state("seen") == expected_windows()
        assert cluster.counts("lines").emitted == 60 - rows


# -- spouts whose rows carry the time --------------------------------------------------------------


class Summed(WindowSums):
    """Sums of times, in pieces that can be put together."""

    outputs = ("key", "start", "times")

    def fold(self, accumulator: int, tup: Tuple) -> int:
        return accumulator + int(tup["at_ms"])

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        collector.emit((*window.key, window.start, window.value))


SHAPES: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda bolt: bolt.with_tumbling_window(Duration.millis(WINDOW_MS)),
    "sliding": lambda bolt: bolt.with_window(Duration.millis(1500), Duration.millis(400)),
    "session": lambda bolt: bolt.with_session_window(Duration.millis(300)),
    "count": lambda bolt: bolt.with_window(CountOf(5), CountOf(2)),
}


def timed(*parts: Any, windows: Any = None) -> Topology:
    """Windows and timers right behind a spout, which has a task for each list."""
    builder = TopologyBuilder()
    builder.set_spout("rows", Listed(*parts, fields=("key", "at_ms")), parallelism=len(parts))
    windows = (windows or SHAPES["tumbling"](TimeInputs())).with_late_tuple_stream("late")
    for id, bolt in (("windows", windows), ("silence", Silence("at_ms", 700))):
        settings = bolt.with_timestamp_field("at_ms").with_lag(Duration.millis(LAG_MS))
        builder.set_bolt(id, settings, parallelism=2).fields_grouping("rows", "key")
    seen = builder.set_bolt("seen", Seen()).global_grouping("windows").global_grouping("silence")
    seen.global_grouping("windows", stream="late")
    return builder.build()


def whole_run(topology: Topology) -> tuple[dict[Any, Any], dict[Any, Any]]:
    with LocalCluster() as cluster:
        cluster.submit(topology, CONF)
        cluster.run_until_idle()
        return cluster.state("seen"), cluster.state("silence")


@pytest.mark.parametrize("rows", [0, 7, 20, 39, 40])
@pytest.mark.parametrize("event_time", [None, "at_ms"])
def test_late_rows_timers_and_senders_of_unlike_pace_are_as_in_one_run(
    tmp_path: Path, rows: int, event_time: str | None
) -> None:
    random = Random(rows)
    fast = [(random.choice("ab"), 400 * n + random.randint(0, 2500)) for n in range(40)]
    slow = [(random.choice("ab"), 90 * n + random.randint(0, 2500)) for n in range(40)]
    topology = timed(fast, slow)
    seen, silence = whole_run(topology)
    assert any(key[0] == "rows" for key in seen)  # late ones, by the component that sent them
    history = back_fill_locally(
        topology, tmp_path / "half", rows={"rows": rows}, conf=CONF, event_time=event_time
    )
    # some windows have fired in history
    assert rows < 20 or event_time is None or history["windows"]
    with LocalCluster() as cluster:
        # other task ids
        cluster.submit(
            topology, {**CONF, "topology.acker.executors": 3}, from_checkpoint=tmp_path / "half"
        )
        cluster.run_until_idle()
        assert cluster.state("seen") == seen
        assert cluster.state("silence") == silence


@pytest.mark.parametrize("bolt", [TimeInputs, Summed])
@pytest.mark.parametrize("shape", SHAPES)
def test_windows_of_every_shape_go_over_the_seam(
    tmp_path: Path, shape: str, bolt: type[Any]
) -> None:
    random = Random(shape)
    parts = [
        [(random.choice("abc"), 100 * n + random.randint(0, 1500)) for n in range(40)]
        for _ in range(2)
    ]
    topology = timed(*parts, windows=SHAPES[shape](bolt()))
    seen, silence = whole_run(topology)
    fired = 0
    for rows in (3, 17, 33):
        history = back_fill_locally(
            topology, tmp_path / f"{rows}", rows={"rows": rows}, conf=CONF, event_time="at_ms"
        )
        fired += len(history["windows"])
        with LocalCluster() as cluster:
            cluster.submit(topology, CONF, from_checkpoint=tmp_path / f"{rows}")
            cluster.run_until_idle()
            assert (cluster.state("seen"), cluster.state("silence")) == (seen, silence), (
                f"{rows} rows of history"
            )
    assert fired  # some before the seam, the others behind it


# -- kills at the seam (a killed worker closes no file) --------------------------------------------


def lines() -> Topology:
    return build(Listed([(line,) for line in LINES], fields=("line",)), TASKS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [CommitFault.CRASH_BEFORE, CommitFault.CRASH_AFTER, CommitFault.SENT_TWICE],
    ids=lambda f: f.name,
)
def test_a_kill_around_any_commit_behind_the_seam_costs_no_count(
    tmp_path: Path, fault: CommitFault
) -> None:
    topology = lines()
    back_fill_locally(topology, tmp_path / "half", rows={"lines": 31}, conf=CONF)
    number = commits = 0
    while number <= commits:
        point = OnePoint(number, fault)
        with LocalCluster(supervisors=3, slots=1, make_transport=point.make_transport) as cluster:
            cluster.submit(
                topology,
                {**CONF, "topology.workers": 3, "topology.epoch.rows": 8},
                from_checkpoint=tmp_path / "half",
            )
            cluster.run_until_idle()
            assert cluster.state("count") == expected_counts(), f"commit {number}"
            assert cluster.state("seen") == expected_windows(), f"commit {number}"
        commits, number = commits or point.commits, number + 1
    assert commits > 8


def test_workers_moved_right_behind_the_seam_go_on_from_there(tmp_path: Path) -> None:
    topology = lines()
    back_fill_locally(topology, tmp_path / "half", rows={"lines": 20}, conf=CONF)
    with LocalCluster() as cluster:
        cluster.submit(topology, CONF, from_checkpoint=tmp_path / "half")
        cluster.rebalance(workers=1, reassign=True)
        cluster.run_until_idle()
        assert cluster.state("count") == expected_counts()
        assert cluster.state("seen") == expected_windows()


def test_a_store_that_has_lost_what_was_sown_is_not_counted_from(tmp_path: Path) -> None:
    topology = lines()
    back_fill_locally(topology, tmp_path / "half", rows={"lines": 20}, conf=CONF)
    with LocalCluster() as cluster:
        cluster.submit(topology, CONF, from_checkpoint=tmp_path / "half")
        for keys in cluster.topology().store.task_keys.values():
            keys.journal.clear()
        cluster.kill_worker()
        sentence = r"a part of topology\.from\.checkpoint, but the store has it no more"
        with pytest.raises(StoreInconsistentError, match=sentence):
            cluster.run_until_idle()


# -- other files, other tasks ----------------------------------------------------------------------


def test_files_that_grew_and_came_are_read_from_where_history_ended_by_any_number_of_tasks(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    before = files_of(tmp_path / "in", {"a.txt": LINES[:20], "b.txt": LINES[20:31], "c.txt": []})
    back_fill_locally(build(before), tmp_path / "half", conf=CONF)
    assert read_checkpoint(tmp_path / "half").parts["lines"].rows == 2
    after = files_of(
        tmp_path / "in",
        {"a.txt": LINES[:20], "b.txt": LINES[20:40], "c.txt": LINES[40:50], "d.txt": LINES[50:]},
    )
    for tasks in (1, 2, 3):
        with LocalCluster() as cluster:
            cluster.submit(
                build(after, {"lines": tasks, "parse": 3, "count": tasks}),
                CONF,
                from_checkpoint=tmp_path / "half",
            )
            cluster.run_until_idle()
            assert cluster.state("count") == expected_counts()
            assert cluster.counts("lines").emitted == 29


def test_a_file_that_shrank_is_named(tmp_path: Path, files: list[tuple[str, int]]) -> None:
    back_fill_locally(build(files), tmp_path / "half", conf=CONF)
    ((path, _),) = files
    with (
        pytest.raises(
            InvalidConfigError, match=r"a\.txt: \d+ bytes were read of it, but it has 5 now"
        ),
        LocalCluster() as cluster,
    ):
        cluster.submit(build([(path, 5)]), CONF, from_checkpoint=tmp_path / "half")


@pytest.mark.parametrize(
    ("component", "tasks", "number"), [("windows", 3, 2), ("windows", 1, 2), ("seen", 2, 1)]
)
def test_what_cannot_be_dealt_out_anew_is_refused_with_numbers(
    tmp_path: Path, files: list[tuple[str, int]], component: str, tasks: int, number: int
) -> None:
    back_fill_locally(build(files), tmp_path / "half", conf=CONF)
    with (
        pytest.raises(
            CheckpointError, match=f"'{component}' had {number} tasks and has {tasks} now"
        ),
        LocalCluster() as cluster,
    ):
        cluster.submit(build(files, {component: tasks}), CONF, from_checkpoint=tmp_path / "half")


def test_positions_are_not_dealt_to_other_numbers_of_tasks_unless_the_spout_can(
    tmp_path: Path,
) -> None:
    back_fill_locally(timed([("a", 1)], [("b", 2)]), tmp_path / "half", conf=CONF)
    with (
        pytest.raises(CheckpointError, match="spout 'rows' had 2 tasks and has 1 now"),
        LocalCluster() as cluster,
    ):
        cluster.submit(timed([("a", 1)]), CONF, from_checkpoint=tmp_path / "half")


def test_a_bolt_that_keeps_other_keys_than_it_promised_is_refused(
    tmp_path: Path, files: list[tuple[str, int]]
) -> None:
    tasks = {1: "count", 2: "count", 3: "lines", 4: "seen", 5: "windows", 6: "total"}
    with CheckpointWriter(tmp_path / "odd", "odd", tasks) as writer:
        for id in ("lines", "seen", "windows", "total"):
            writer.add(
                id,
                "spout" if id == "lines" else "bolt",
                [(3, "position", None, {})] if id == "lines" else (),
            )
        writer.add("count", "bolt", [(1, "state", key, 1) for key in "abcde"])
        writer.close()
    wanted = build(files, {"count": 3, "lines": 1, "windows": 1})
    said = r"'count' says state_keyed_by_grouping, but kept the key '.' in task 1 of 2"
    with pytest.raises(CheckpointError, match=said), LocalCluster() as cluster:
        cluster.submit(wanted, CONF, from_checkpoint=tmp_path / "odd")


def test_components_that_only_one_side_has_are_named(
    tmp_path: Path, files: list[tuple[str, int]]
) -> None:
    topology = build(files)
    less = Topology(
        {id: c for id, c in topology.components.items() if id not in ("windows", "seen")}
    )
    back_fill_locally(less, tmp_path / "less", conf=CONF)
    back_fill_locally(topology, tmp_path / "more", conf=CONF)
    with LocalCluster() as cluster:
        sentence = "has nothing of 'seen', only of count, lines, total"
        with pytest.raises(CheckpointError, match=sentence):
            cluster.submit(topology, CONF, from_checkpoint=tmp_path / "less")
        sentence = "has what the bolt 'windows' kept, but the topology has no bolt of that id"
        with pytest.raises(CheckpointError, match=sentence):
            cluster.submit(less, CONF, from_checkpoint=tmp_path / "more")


# -- what cannot be back-filled --------------------------------------------------------------------


def test_a_source_that_gives_other_rows_the_second_time_ends_the_replay(tmp_path: Path) -> None:
    class Fickle(Listed):
        """One row less from the second time on."""

        def open(self, conf: Any, context: Any, collector: Any) -> None:
            super().open(conf, context, collector)
            self.rows = self.rows[int(opened.exists()) :]
            opened.touch()

    opened = tmp_path / "opened"
    builder = TopologyBuilder()
    builder.set_spout("rows", Fickle([("a", 1)] * 3, fields=("key", "at_ms")))
    builder.set_bolt("count", Count()).fields_grouping("rows", "key")
    sentence = r"spout 'rows' \(task 1 of its own\) gave .* before it were 3 up to 3"
    with pytest.raises(ReplayFailedError, match=sentence):
        back_fill_locally(builder.build(), tmp_path / "half")
    assert not list(tmp_path.glob("half*"))


def test_bolts_whose_state_would_be_missing_are_refused(
    tmp_path: Path, files: list[tuple[str, int]]
) -> None:
    sentence = r"bolt 'seen' keeps state but does not run in this replay \(mute\)"
    with pytest.raises(InvalidTopologyError, match=sentence):
        back_fill_locally(
            build(files), tmp_path / "half", conf=CONF, effects={"seen": Effects.MUTE}
        )


def test_inputs_that_were_neither_acked_nor_failed_are_refused(
    tmp_path: Path, files: list[tuple[str, int]]
) -> None:
    class Keeps(Bolt):
        def execute(self, tup: Tuple) -> None:
            self.kept = tup

    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(files))
    builder.set_bolt("keeps", Keeps()).shuffle_grouping("lines")
    sentence = "'keeps' has 60 inputs that it has neither acked nor failed"
    with pytest.raises(CheckpointError, match=sentence):
        back_fill_locally(builder.build(), tmp_path / "half", effects={"keeps": Effects.RUN})
    assert not list(tmp_path.glob("half*"))
