"""Tells what Nimbus knows of a topology without its code."""

import pytest

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.outline import outline_of
from sparkstorm.common.model.records import decode_record, encode_record
from sparkstorm.common.model.topology import Component, Grouping, Stream, Subscription, Topology

BOLT = Component(
    "split",
    "bolt",
    object(),
    2,
    3,
    {"topology.tasks": 3},
    inputs=(Subscription("lines", "default", Grouping("shuffle")),),
)
TOPOLOGY = Topology(
    {
        "lines": Component("lines", "spout", object(), 1, streams={"default": Stream(("line",))}),
        "split": BOLT,
    }
)


def test_an_outline_has_the_systems_components_and_every_task() -> None:
    outline = outline_of(TOPOLOGY, {"topology.workers": 2})
    assert {name: part.kind for name, part in outline.components.items()} == {
        "__acker": "system", "lines": "spout", "split": "bolt",
    }  # fmt: skip
    result = outline.component_by_task
    assert result == {1: "__acker", 2: "__acker", 3: "lines", 4: "split", 5: "split", 6: "split"}
    assert outline.executors_by_component == {"__acker": 2, "lines": 1, "split": 2}
    kinds = {task: info.kind for task, info in outline.task_infos().items()}
    assert kinds == {1: "bolt", 2: "bolt", 3: "spout", 4: "bolt", 5: "bolt", 6: "bolt"}
    assert [(one.component, one.grouping) for one in outline.components["split"].inputs] == [
        ("lines", "shuffle")
    ]


def test_an_outline_is_a_record_without_the_users_objects() -> None:
    outline = outline_of(TOPOLOGY, {"topology.workers": 2})
    assert decode_record(type(outline), encode_record(outline), "/outlines/t") == outline


def test_a_topology_without_tasks_is_refused_in_the_seeds_words() -> None:
    with pytest.raises(InvalidTopologyError, match="Failed to generate TaskIDs map"):
        outline_of(Topology({}), {"topology.workers": 1, "topology.acker.executors": 0})
