"""Traffic between executors from measurements, and from edges alone."""

from dataclasses import replace

import pytest

from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.control_plane.scheduling.measured.flows import bytes_between, flows_of
from sparkstorm.control_plane.scheduling.measured.measurements import (
    Flow,
    HostLoad,
    Measurements,
    TaskLoad,
)
from sparkstorm.control_plane.scheduling.records import InputView, TopologyView
from tests.scheduling.clusters import component, executors, singles, topology

ONE, TWO, THREE, FOUR = singles(4)


def words(grouping: str = "fields", measured: Measurements | None = None) -> TopologyView:
    """Two spouts and two bolts."""
    count = component("count", [THREE, FOUR])
    count = replace(count, inputs=(InputView("lines", "default", grouping),))
    parts = [component("lines", [ONE, TWO], "spout"), count]
    return replace(topology("t", parts, 2), measured=measured)


def rates(*numbers: tuple[int, float, float]) -> Measurements:
    """1,000 bytes a second, and (task, emitted, executed) a second."""
    tasks = {task: TaskLoad(emitted, executed) for task, emitted, executed in numbers}
    return Measurements((Flow("lines", "default", "count", 100.0, 1000.0),), tasks)


SKEWED = rates((1, 75.0, 0.0), (2, 25.0, 0.0), (3, 0.0, 90.0), (4, 0.0, 10.0))


def between(view: TopologyView) -> list[float]:
    return [bytes_between(view, one, other) for one in (ONE, TWO) for other in (THREE, FOUR)]


@pytest.mark.parametrize(
    ("grouping", "measured", "expected"),
    [
        ("fields", SKEWED, [675.0, 75.0, 225.0, 25.0]),
        ("shuffle", None, [0.25, 0.25, 0.25, 0.25]),
        ("all", SKEWED, [375.0, 375.0, 125.0, 125.0]),
        ("global", SKEWED, [750.0, 0.0, 250.0, 0.0]),
        ("fields", rates((1, 75.0, 0.0), (2, 25.0, 0.0)), [375.0, 375.0, 125.0, 125.0]),
        ("fields", Measurements(), [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_a_flow_is_divided_by_what_was_sent_and_taken_in(
    grouping: str, measured: Measurements | None, expected: list[float]
) -> None:
    assert between(words(grouping, measured)) == pytest.approx(expected)


def test_the_parts_of_a_flow_sum_to_it() -> None:
    assert sum(between(words(measured=SKEWED))) == pytest.approx(1000.0)


def test_executors_after_a_rebalance_have_the_loads_of_their_tasks() -> None:
    both = ExecutorId(3, 4)
    view = words(measured=SKEWED)
    changed = replace(view.component("count"), executors=(both,))
    after = replace(view, components=(view.component("lines"), changed))
    assert bytes_between(after, ONE, both) == pytest.approx(750.0)
    assert SKEWED.load(both).executed_per_s == 100.0


def test_memory_is_summed_where_it_is_known() -> None:
    tasks = {1: TaskLoad(memory_mb=10.0), 2: TaskLoad(memory_mb=20.0), 3: TaskLoad()}
    measured = Measurements(tasks=tasks)
    assert measured.load(ExecutorId(1, 3)).memory_mb == 30.0
    assert measured.load(ExecutorId(3, 4)).memory_mb is None
    assert measured.load(ExecutorId(7, 9)) == TaskLoad()


def test_system_components_have_no_flows() -> None:
    parts = [
        component("lines", executors((1, 1)), "spout"),
        component("__acker", executors((2, 2)), "system", "lines"),
    ]
    assert flows_of(topology("t", parts, 1)) == ()


def test_what_the_hypervisor_took_is_no_capacity() -> None:
    assert HostLoad(8.0, 0.25).cpu == 600.0
