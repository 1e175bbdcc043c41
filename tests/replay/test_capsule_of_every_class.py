"""Every public class of a component goes from a capsule to a pytest file that fails, and passes
with fixed code.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter

from sparkstorm import api, connectors
from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    Bolt,
    Duration,
    Effects,
    FoldingBolt,
    JoinBolt,
    Spout,
    Stateful,
    TimedBolt,
    Topology,
    TopologyBuilder,
    TransactionalSink,
    Tuple,
    WindowedBolt,
)
from sparkstorm.common.errors import RecordingError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.topology import WINDOW_STREAM
from sparkstorm.extensions.recording.capsule_files import ENDING, write_capsule
from sparkstorm.extensions.recording.capsule_tests import text_of_test
from sparkstorm.extensions.recording.stepping.stepper import Stepper
from sparkstorm.replay import open_capsule
from sparkstorm.testing import FeederSpout, LocalCluster

BOLTS = (BasicBolt, Bolt, WindowedBolt, TimedBolt, TransactionalSink)
FIELDS = ("key", "ts", "value")
ROW = ("a", 12_000, 5)


def classes(module: ModuleType) -> dict[str, type]:
    named = {name: getattr(module, name) for name in module.__all__}
    found = {name: kind for name, kind in named.items() if inspect.isclass(kind)}
    return {
        name: kind for name, kind in found.items() if issubclass(kind, (Spout, Stateful, *BOLTS))
    }


COMPONENTS = classes(api) | classes(connectors)


class Rows(DataSource):
    """A data source of Spark's that is neither read nor written here."""

    def schema(self) -> str:
        return "key string, ts bigint, value bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        raise AssertionError("read")

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return None  # type: ignore[return-value]


NOWHERE, COLUMNS = "localhost:1", "key string, ts bigint, value bigint"
ARGUMENTS: dict[str, Callable[[Path], tuple[Any, ...]]] = {
    "DeltaSink": lambda folder: (folder / "delta", COLUMNS),
    "FileLines": lambda folder: ([(str(folder), 0)],),
    "FileSink": lambda folder: (folder / "files", "parquet", COLUMNS),
    "Files": lambda folder: (str(folder / "*.txt"),),
    "HttpSink": lambda _: (f"http://{NOWHERE}/x",),
    "IcebergSink": lambda _: ("a.b", COLUMNS),
    "JoinBolt": lambda _: ("rows", "key"),
    "KafkaSink": lambda _: (NOWHERE, "topic"),
    "KafkaSource": lambda _: (NOWHERE, "topic"),
    "RedisSink": lambda _: (f"redis://{NOWHERE}", "stream"),
    "RedisSource": lambda _: (f"redis://{NOWHERE}", "stream", FIELDS),
    "SparkFrame": lambda _: (f"redis://{NOWHERE}", "stream", FIELDS),
    "SparkSink": lambda _: (Rows,),
    "SparkSource": lambda _: (Rows,),
    "SqlSink": lambda _: ("sqlite:///nowhere.db", "rows"),
    "SqlSource": lambda _: ("sqlite:///nowhere.db", "rows", FIELDS),
    "Webhook": lambda _: (0, FIELDS),
}


def arguments(kind: type, folder: Path) -> tuple[Any, ...]:
    """Return what the class's constructor needs."""
    return ARGUMENTS[kind.__name__](folder) if kind.__name__ in ARGUMENTS else ()


class Code:
    """Version of the user's code: faulty, or fixed."""

    is_faulty = True


def meet_fault() -> None:
    """Divide by zero while the code is faulty: the first call in each method that an input
    meets.
    """
    if Code.is_faulty:
        raise ZeroDivisionError


def failing(kind: type, folder: Path) -> Any:
    """Return an instance of a subclass whose method for an input fails while the code is faulty."""

    def takes_row(self: Any, tup: Tuple, *_: Any) -> None:
        meet_fault()
        if kind in SHIPPED:
            getattr(kind, "write" if issubclass(kind, TransactionalSink) else "execute")(
                self, tup, *_
            )

    def takes_window(self: Any, window: Any, collector: BasicOutputCollector) -> None:
        meet_fault()

    def pair(self: Any, tup: Tuple) -> tuple[Any, Any]:
        takes_row(self, tup)
        return tup["key"], 1

    def takes_batch(self: Any, batch: pa.RecordBatch, *_: Any) -> None:
        meet_fault()

    def is_called(self: Any, *_: Any) -> Any:
        raise AssertionError("a phase that needs a live worker")

    async def process(self: Any, tup: Tuple, *_: Any) -> None:
        meet_fault()

    names: dict[type, dict[str, Any]] = {
        api.AsyncBolt: {"process": process},
        TransactionalSink: {
            "write": takes_row,
            "prepare": is_called,
            "commit": is_called,
            "recover": is_called,
        },
        FoldingBolt: {"execute": takes_window, "initial": is_called, "fold": is_called},
        WindowedBolt: {"execute": takes_window},
        api.CombiningBolt: {"pair": pair, "combine": is_called},
        api.ColumnBolt: {"execute_batch": takes_batch},
        object: {"execute": takes_row},
    }
    methods = next(found for base, found in names.items() if issubclass(kind, base))
    own: Any = type("Own", (kind,), methods)
    made = own(*arguments(kind, folder))
    if isinstance(made, JoinBolt):
        made = made.join("others", "key").select("rows:value as one")
    if isinstance(made, WindowedBolt):
        made = made.with_tumbling_window(Duration.seconds(10)).with_timestamp_field("ts")
    return made


SHIPPED = frozenset(classes(connectors).values())


class Plain(BasicBolt):
    """Fails while the code is faulty."""

    effects = Effects.RUN

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        meet_fault()


def source(kind: type, folder: Path) -> Any:
    if kind in SHIPPED:
        more = {"key": "key"} if kind is connectors.SqlSource else {}
        shipped: Any = kind
        return shipped(*arguments(kind, folder), **more)
    own: Any = type("Own", (kind,), {"outputs": FIELDS})
    return own()


def topology(kind: type, folder: Path) -> Topology:
    """Return a topology with the class as the component 'it', next to a bolt and a shipped sink."""
    builder = TopologyBuilder()
    builder.set_spout("others", FeederSpout(FIELDS))
    if issubclass(kind, Spout):
        builder.set_spout("it", source(kind, folder))
        builder.set_bolt("plain", Plain()).shuffle_grouping("it")
    else:
        builder.set_spout("rows", FeederSpout(FIELDS))
        declarer = builder.set_bolt("it", failing(kind, folder)).global_grouping("rows")
        if issubclass(kind, JoinBolt):
            declarer.global_grouping("others")
    builder.set_bolt(
        "beside", connectors.FileSink(folder / "beside", "parquet", COLUMNS)
    ).global_grouping("others")
    return builder.build()


def letter_of(kind: type, built: Topology) -> DeadLetter:
    """Return what a run parks of an input of the class."""
    is_spout, is_window = issubclass(kind, Spout), issubclass(kind, WindowedBolt)
    failure = Failure(
        FailureKind.RAISED,
        "ZeroDivisionError: integer division or modulo by zero",
        "plain" if is_spout else "it",
        2,
    )
    sender = "it" if is_spout else "rows"
    if is_window:
        content = {
            "tuples": [["rows", 1, "default", list(ROW)]],
            "new": [0],
            "expired": [],
            "value": 0,
            "is_update": False,
        }
        window = content | {"watermark_ms": 20_000}
        return DeadLetter(
            failure,
            "it",
            2,
            WINDOW_STREAM,
            ("key", "start", "end"),
            ([], 10_000, 20_000),
            4,
            window=window,
        )
    fields = built.components[sender].streams["default"].fields
    values = ROW if fields == FIELDS else tuple(range(len(fields)))
    return DeadLetter(failure, sender, 1, "default", fields, values, 4, state=())


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The user's module, whose function builds the topology."""
    module = ModuleType("built_by_a_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Code, "is_faulty", True)
    return module


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_every_component_goes_from_a_capsule_to_a_test_and_to_mended_code(
    name: str, user_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = COMPONENTS[name]
    if name == "Stateful":
        kind = type("Own", (BasicBolt, Stateful), {})
    user_module.build = lambda: topology(kind, tmp_path)
    capsule = tmp_path / f"one{ENDING}"
    write_capsule(capsule, letter_of(kind, user_module.build()))
    letter = open_capsule(capsule).letter
    names: dict[str, Any] = {"__file__": str(tmp_path / "test_one.py")}
    exec(
        text_of_test(
            capsule, letter, tmp_path / "test_one.py", {"topology.builder": "built_by_a_user:build"}
        ),
        names,
    )
    (run,) = [value for key, value in names.items() if key.startswith("test_")]
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run()
    monkeypatch.setattr(Code, "is_faulty", False)
    run()
    gc.collect()  # the event loop of a stepped AsyncBolt goes with its task


def test_a_row_that_a_sink_cannot_write_fails_again_and_passes_with_another_schema(
    tmp_path: Path,
) -> None:
    spout = FeederSpout(FIELDS)

    def build(schema: str) -> Topology:
        builder = TopologyBuilder()
        builder.set_spout("rows", spout)
        builder.set_bolt(
            "parquet", connectors.FileSink(tmp_path / "out", "parquet", schema)
        ).global_grouping("rows")
        return builder.build()

    with LocalCluster() as cluster:
        cluster.submit(build(COLUMNS), {"topology.max.retries": 0})
        spout.feed(["a", 1, "no number"])
        cluster.run_until_idle()
        (letter,) = cluster.dead_letters
    files = sorted((tmp_path / "out").rglob("*"))
    capsule = tmp_path / f"one{ENDING}"
    write_capsule(capsule, letter)
    step = open_capsule(capsule).step(build(COLUMNS))
    assert step.failure is not None
    assert step.failure.text == letter.reason
    assert "'no number'" in letter.reason
    assert open_capsule(capsule).step(build("key string, ts bigint, value string")).failure is None
    assert sorted((tmp_path / "out").rglob("*")) == files, "a step writes nothing"


def test_a_row_that_the_target_of_a_sink_refused_is_named_as_one(tmp_path: Path) -> None:
    built = topology(connectors.SqlSink, tmp_path)
    failure = Failure(FailureKind.FAILED, "UNIQUE constraint failed: rows.key", "it", 2)
    capsule = tmp_path / f"one{ENDING}"
    write_capsule(capsule, DeadLetter(failure, "rows", 1, "default", FIELDS, ROW, 1))
    sentence = r"the target of component 'it' refused this row .UNIQUE.*dead-letters replay"
    with pytest.raises(RecordingError, match=sentence):
        open_capsule(capsule).step(built)


@pytest.mark.parametrize("version", ["faulty", "mended"])
def test_a_shadow_of_a_topology_with_a_sink_steps_through_its_bolts(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Code, "is_faulty", version == "faulty")
    steps = Stepper(topology(BasicBolt, tmp_path), "it", cells=())
    _, reason, _, _ = steps.outcome(ROW, "rows")
    assert (reason is None) == (version == "mended")
