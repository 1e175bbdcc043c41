"""Local modules of a topology reach Spark's Python workers with the code, and a changed module
replaces the former one.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay import replay
from sparkstorm.replay.job import pack_with_modules
from tests.replay.bolts import Source

TOPOLOGY = """
from sparkstorm.api import BasicBolt, TopologyBuilder
from tests.replay.bolts import Source
import shipped_helper

class Marks(BasicBolt):
    outputs = ("text",)
    def execute(self, tup, collector):
        import shipped_late
        collector.emit((shipped_helper.mark(tup["text"]) + shipped_late.END,))

class Wraps(BasicBolt):
    outputs = ("text",)
    def execute(self, tup, collector):
        from shipped_values import Text
        collector.emit((tup["text"] if isinstance(tup["text"], Text) else Text(tup["text"]),))

class Unwraps(Wraps):
    def execute(self, tup, collector):
        collector.emit((tup["text"].text,))

def build():
    builder = TopologyBuilder()
    builder.set_spout("source", Source("text"))
    builder.set_bolt("marks", Marks(), 2).fields_grouping("source", "text")
    return builder.build()

def build_wrapped():
    builder = TopologyBuilder()
    builder.set_spout("source", Source("text"))
    builder.set_bolt("wraps", Wraps(), 2).fields_grouping("source", "text")
    builder.set_bolt("unwraps", Unwraps(), 2).fields_grouping("wraps", "text")
    return builder.build()
"""
SOURCES = {
    "shipped_topology.py": TOPOLOGY,
    "shipped_helper/__init__.py": "from shipped_helper.inner import mark\n",
    "shipped_helper/inner.py": "def mark(text):\n    return text + '?'\n",
    "shipped_late.py": "END = '.'\n",
    "shipped_values.py": "import dataclasses\n\n@dataclasses.dataclass\nclass Text:\n    text: str\n",
}
REGISTERED = {"topology.serializers": ["shipped_values:Text"]}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A folder of the driver's own modules, importable in this process alone."""
    for name, source in SOURCES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("shipped_")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def built() -> Topology:
    topology: Topology = importlib.import_module("shipped_topology").build()
    return topology


def names_in(code: bytes) -> set[str]:
    return {
        name
        for name in zipfile.ZipFile(io.BytesIO(pickle.loads(code)[0])).namelist()
        if name.startswith("shipped_")
    }


def test_modules_that_a_topology_imports_travel_as_sources(project: Path) -> None:
    assert names_in(pack_with_modules(built(), (), {})) == set(SOURCES)


class Calls(BasicBolt):
    """Calls a function that it was given."""

    outputs = ("text",)

    def __init__(self, function: Any) -> None:
        self.function = function

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((self.function(tup["text"]),))


def test_the_module_of_a_function_in_an_attribute_travels(project: Path) -> None:
    builder = TopologyBuilder()
    builder.set_spout("source", Source("text"))
    builder.set_bolt(
        "calls", Calls(importlib.import_module("shipped_helper").mark)
    ).shuffle_grouping("source")
    result = names_in(pack_with_modules(builder.build(), (), {}))
    assert result == {"shipped_helper/__init__.py", "shipped_helper/inner.py"}


@pytest.mark.system
def test_executors_find_a_registered_class_in_the_modules_of_the_driver(
    spark: SparkSession, project: Path
) -> None:
    """Before the test below: its modules, which a Python worker keeps, hold the class too."""
    frame = spark.createDataFrame([("a",), ("b",)], ["text"])
    topology = importlib.import_module("shipped_topology").build_wrapped()
    results = replay(topology, {"source": frame}, outputs=["unwraps"], conf=REGISTERED)
    assert sorted(row.text for row in results["unwraps"].collect()) == ["a", "b"]


@pytest.mark.system
def test_executors_run_the_modules_of_the_driver_and_later_those_that_it_has_then(
    spark: SparkSession, project: Path
) -> None:
    frame = spark.createDataFrame([("a",), ("b",)], ["text"])
    result = sorted(row.text for row in replay(built(), {"source": frame})["marks"].collect())
    assert result == ["a?.", "b?."]
    (project / "shipped_helper/inner.py").write_text("def mark(text):\n    return text + '!!'\n")
    forget()
    result = sorted(row.text for row in replay(built(), {"source": frame})["marks"].collect())
    assert result == ["a!!.", "b!!."]


def test_a_registered_class_is_of_no_module_that_travels_by_value(project: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"module .shipped_values. .* travels by value"):
        pack_with_modules(built(), ["shipped_values"], REGISTERED)
