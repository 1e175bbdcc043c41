"""Savepoints of running topologies: exact over workers and kills, from which a submission, a replay
and a test go on.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import (
    BasicOutputCollector,
    Duration,
    FoldingBolt,
    Spout,
    StatefulBolt,
    TopologyBuilder,
    TransactionalSink,
    Tuple,
    bolt,
)
from sparkstorm.client.savepoints import SavepointSource
from sparkstorm.client.state_frames import state_frame, state_table
from sparkstorm.client.task_records import StoredTask
from sparkstorm.common.errors import CheckpointError
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.tagged import read_value
from sparkstorm.connectors import FileLines, find_files
from sparkstorm.data_plane.checkpoint.files import read_checkpoint
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.replay import checkpoint_states, replay_locally
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster, Shared
from tests.topologies import Count, ran, running, word_count
from tests.worker.building import Collecting, chain


class Words(StatefulBolt):
    """Counts words; its state may be dealt to any number of tasks."""

    key_fields = ("word",)
    state_keyed_by_grouping = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.state.add(tup["word"])


@pytest.mark.parametrize(("seed", "blocking"), [(1, False), (2, False), (3, True)])
def test_a_submission_goes_on_from_a_savepoint_that_was_taken_under_load(
    seed: int, blocking: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another number of tasks on every component: what was handed over, and what was counted, is
    dealt anew.
    """
    monkeypatch.setattr(FileLines, "blocking", blocking)
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(
            "".join(f"w{n % 17} {name}{n % 5}\n" for n in range(400))
        )
    source = FileLines(find_files([str(tmp_path)]))
    expected = Counter(
        word
        for name in "abc"
        for line in (tmp_path / f"{name}.txt").read_text().splitlines()
        for word in line.split()
    )
    with LocalCluster(seed=seed) as cluster:
        cluster.submit(
            word_count(source, 2, count=Words()),
            {"topology.workers": 3, "topology.max.spout.pending": 20},
            "one",
        )
        # A blocking spout reads in its own thread: simulated time alone does not say that it
        # has read
        cluster.run_until(lambda: cluster.state("count", "one") != {})
        cluster.savepoint(tmp_path / "saved", "one")
        cluster.run_until(lambda: cluster.state("count", "one") == expected)
        cluster.kill("one", 0)
        again = word_count(
            FileLines(find_files([str(tmp_path / f"{name}.txt") for name in "abc"])),
            counts=3,
            count=Words(),
        )
        cluster.submit(again, {"topology.workers": 2}, "two", from_checkpoint=tmp_path / "saved")
        cluster.run_until(lambda: cluster.state("count", "two") == expected)
        cluster.advance(1)
        assert cluster.state("count", "two") == expected
    saved = checkpoint_states(tmp_path / "saved")["count"]
    assert 0 < sum(saved.values()) < sum(expected.values()), "in the middle of the input"


def test_windows_of_a_savepoint_fire_in_the_next_run(tmp_path: Path) -> None:
    class Sum(FoldingBolt):
        outputs = ("start", "sum")

        def initial(self) -> int:
            return 0

        def fold(self, accumulator: int, tup: Tuple) -> int:
            return accumulator + int(tup["n"])

        def execute(self, window: Any, collector: BasicOutputCollector) -> None:
            collector.emit((window.start, window.value))

    def topology(spout: FeederSpout, capture: CaptureBolt) -> Topology:
        builder = TopologyBuilder()
        builder.set_spout("spout", spout)
        builder.set_bolt(
            "sums",
            Sum().with_tumbling_window(Duration(10)).with_timestamp_field("ts"),
            inputs="spout",
        )
        builder.set_bolt("capture", capture, inputs="sums")
        return builder.build()

    first, fired, second = FeederSpout(["n", "ts"]), CaptureBolt(), CaptureBolt()
    with LocalCluster() as cluster:
        cluster.submit(topology(first, fired), name="one")
        for ts in (1, 9, 12):
            first.feed([ts, ts])
        cluster.advance(1)
        cluster.kill_worker("sums")
        cluster.savepoint(tmp_path / "saved")
        cluster.kill("one", 0)
        assert fired.values == [(0, 10)]
        for ts in (19, 21):
            first.feed([ts, ts])
        first.finish()
        cluster.submit(topology(first, second), name="two", from_checkpoint=tmp_path / "saved")
        cluster.run_until_idle()
    assert second.values == [(10, 31), (20, 21)]


def test_a_replay_begins_with_the_states_of_a_savepoint(tmp_path: Path) -> None:
    spout = FeederSpout(["line"])
    with ran(word_count(spout, 2, count=Words()), spout, ["a b a"]) as cluster:
        cluster.savepoint(tmp_path / "saved")
        spout.feed(["c"])
        cluster.run_until_idle()
        assert cluster.state("count") == {"a": 2, "b": 1, "c": 1}, "its spouts go on"
    results = replay_locally(
        word_count(FeederSpout(["line"]), 2, count=Words()),
        {"lines": [("a c",)]},
        states=checkpoint_states(tmp_path / "saved"),
    )
    assert results.states["count"] == {"a": 3, "b": 1, "c": 1}


class Keeps(Collecting):
    """Never acks."""

    outputs = ()

    def execute(self, tup: Tuple) -> None:
        pass


class Plain(Spout):
    """Has no position."""

    outputs = ("value",)

    def next_tuple(self) -> None:
        pass


@pytest.mark.parametrize(
    ("spout", "bolt", "sentence"),
    [
        (
            FeederSpout(),
            Keeps(),
            r"'bolt' \(task \d\) has 1 input that it has neither acked nor failed|has 1 open messages",
        ),
        (
            Plain(),
            Count(),
            r"spout 'spout' \(task \d\) has not come to rest, or has no position to hand over",
        ),
    ],
)
def test_what_is_still_under_way_is_named_and_the_topology_goes_on(
    spout: Any, bolt: Any, sentence: str, tmp_path: Path
) -> None:
    with running(chain(spout, bolt), {"topology.message.timeout.secs": 600}) as cluster:
        if isinstance(spout, FeederSpout):
            spout.feed([1])
        cluster.advance(1)
        with pytest.raises(CheckpointError, match=sentence):
            cluster.savepoint(tmp_path / "saved")
        assert cluster.topology().is_active and not (tmp_path / "saved").exists()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_function_brings_a_state_of_another_version_into_its_form(
    seed: int, tmp_path: Path
) -> None:
    def times_ten(state: Any, version: int) -> None:
        assert version == 2
        for key, value in state.items():
            state.put(key, value * 10)

    def counting(**options: Any) -> Topology:
        @bolt(key="value", **options)
        def count(tup: Tuple, state: Any) -> None:
            state.add(tup[0], 1)

        builder = TopologyBuilder()
        builder.set_spout("spout", spout)
        builder.set_bolt("count", count, inputs="spout")
        return builder.build()

    spout = FeederSpout()
    with LocalCluster(seed=seed) as cluster:
        cluster.submit(counting(state_version=2), name="one")
        spout.feed(["a"])
        cluster.run_until_idle()
        cluster.savepoint(tmp_path / "saved")
        cluster.kill("one", 0)
        sentence = r"'count' of version 2, this code reads version 4: override migrate_state"
        with pytest.raises(CheckpointError, match=sentence):
            cluster.submit(
                counting(state_version=4), name="two", from_checkpoint=tmp_path / "saved"
            )
        new = counting(state_version=3, migrate_state=times_ten)
        cluster.submit(new, name="three", from_checkpoint=tmp_path / "saved")
        cluster.kill_worker("count")
        spout.feed(["a"])
        cluster.run_until_idle()
        assert cluster.state("count") == {"a": 11}


def test_a_savepoint_keeps_the_version_of_each_state_and_the_next_code_migrates_it(
    tmp_path: Path,
) -> None:
    class Old(Count):
        state_version = 2

    class New(StatefulBolt):
        state_version = 3

        def migrate_state(self, state: Any, version: int) -> None:
            assert version == 2
            for key, value in state.items():
                state.delete(key)
                state.put(f"{key}!", value * 10)

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.state.add(f"{tup[0]}!", 1)

    spout = FeederSpout()
    with LocalCluster() as cluster:
        cluster.submit(chain(spout, Old()), name="one")
        spout.feed(["a"])
        cluster.run_until_idle()
        cluster.savepoint(tmp_path / "saved")
        cluster.kill("one", 0)
        assert read_checkpoint(tmp_path / "saved").parts["bolt"].state_version == 2
        cluster.submit(chain(spout, New()), name="two", from_checkpoint=tmp_path / "saved")
        spout.feed(["a"])
        cluster.run_until_idle()
        assert cluster.state("bolt") == {"a!": 11}


def test_a_lazy_state_with_values_that_equal_nothing_is_saved(tmp_path: Path) -> None:
    class Odd(StatefulBolt):
        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            self.state.put(tup[0], float("nan"))

    spout = FeederSpout()
    with LocalCluster() as cluster:
        cluster.submit(chain(spout, Odd()), {"topology.state.backend": "lazy"}, name="one")
        spout.feed(["a"])
        cluster.run_until_idle()
        cluster.savepoint(tmp_path / "saved")
        cluster.kill("one", 0)
        cluster.submit(chain(spout, Odd()), name="two", from_checkpoint=tmp_path / "saved")
        assert str(cluster.state("bolt")) == "{'a': nan}"


class Shelf(TransactionalSink):
    """Shows rows in a shared list by commit; an epoch lasts two seconds."""

    flush_secs = 2

    def __init__(self, shown: Shared[list[Any]]) -> None:
        self.shown = shown

    def begin(self, epoch: int) -> None:
        self.rows: list[Any] = []

    def write(self, tup: Tuple) -> None:
        self.rows.append(tup[0])

    def prepare(self, epoch: int) -> Any:
        return [self.rows]

    def commit(self, epoch: int, prepared: Any) -> None:
        self.shown.value.append((epoch, *prepared[0]))


@pytest.mark.parametrize("rows_before", [0, 3])
def test_a_savepoint_waits_for_the_rows_of_a_sink_and_the_next_run_counts_its_epochs_anew(
    rows_before: int, tmp_path: Path
) -> None:
    spout, shown = FeederSpout(), list[Any]()
    builder = TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("shelf", Shelf(Shared(shown))).shuffle_grouping("spout")
    with LocalCluster() as cluster:
        cluster.submit(builder.build(), name="one")
        for n in range(rows_before):
            spout.feed([n])
            cluster.advance(3)
        spout.feed(["last"])
        cluster.advance(1)
        topology = cluster.topology()
        source = SavepointSource(topology.info_by_task, LocalReader(topology.store))
        result = source.write(tmp_path / "no", "one")
        assert result == "sink 'shelf' (task 2) has rows that are not in its target yet"
        cluster.savepoint(tmp_path / "saved")
        before = [*((n + 1, n) for n in range(rows_before)), (rows_before + 1, "last")]
        assert shown == before
        cluster.kill("one", 0)
        cluster.submit(builder.build(), name="two", from_checkpoint=tmp_path / "saved")
        spout.feed(["new"])
        cluster.advance(3)
        assert shown == [*before, (1, "new")]


def test_a_state_frame_has_the_committed_state_of_every_task(tmp_path: Path) -> None:
    spout = FeederSpout(["line"])
    with ran(
        word_count(spout, 2, count=Words()), spout, ["a b a c"], {"topology.workers": 2}
    ) as cluster:
        topology = cluster.topology()
        reader = LocalReader(topology.store)
        source = SavepointSource(topology.info_by_task, reader)
        table = state_table(source.stored("count"))
        result = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        assert result == {"a": 2, "b": 1, "c": 1}
        assert {topology.component_by_task[task] for task in table["task"].to_pylist()} == {"count"}
        frame: Any = state_frame(source.stored("count"))
        columns = list(getattr(frame, "column_names", None) or frame.columns)
        assert columns == ["task", "key", "value"]


def test_values_without_a_common_type_are_tagged_text_and_tuples_are_lists() -> None:
    kept = StoredTask.of([{"s": [["a", 1], ["b", "x"], ["c", None]]}])
    result = [read_value(cell) for cell in state_table([(1, kept)])["value"].to_pylist()]
    assert result == [1, "x", None]
    kept = StoredTask.of([{"s": [[("u", 1), 2.5]]}, {"s": [[("v", 2), 3.5]], "d": [["u", 1]]}])
    table = state_table([(7, kept)])
    assert [read_value(cell) for cell in table["key"].to_pylist()] == [["v", 2]]
    assert table["value"].to_pylist() == [3.5]


def test_a_hand_over_counts_only_while_nothing_was_emitted_after_it() -> None:
    assert StoredTask.of([{"o": 1, "h": [1]}]).handed == [1]
    assert StoredTask.of([{"h": [None]}]).handed == [None]
    assert StoredTask.of([{"h": [1]}, {"o": 2}]).handed is None
    assert StoredTask.of([{"h": [1]}, {"o": 2}, {"h": [2]}, {"s": []}]).handed == [2]
