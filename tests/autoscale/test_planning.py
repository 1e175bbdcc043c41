"""Plans of executors and workers from true rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.extensions.autoscale.model import Bounds, ComponentPlan, Plan, Source, TopologyLoad
from sparkstorm.extensions.autoscale.planning import due, is_behind, plan, wanted_rates
from tests.autoscale.loads import applied, chain, component

BOUNDS = Bounds()
HOUR_MS = 3_600_000


def part_of(found: Plan, name: str) -> ComponentPlan:
    return next(part for part in found.components if part.id == name)


def executors(found: Plan) -> dict[str, int]:
    return {part.id: part.wanted for part in found.components}


def with_part(load: TopologyLoad, name: str, **changes: object) -> TopologyLoad:
    parts = tuple(
        replace(part, **changes) if part.id == name else part  # type: ignore[arg-type]
        for part in load.components
    )
    return replace(load, components=parts)


def test_executors_follow_from_rows_by_useful_time() -> None:
    """1,000 rows arrive, 400 go through; a row takes 1 ms of split and 2 ms of count."""
    found = plan(chain(1000, 400), BOUNDS)
    assert executors(found) == {"lines": 1, "split": 2, "count": 4}
    assert part_of(found, "split").true_rate == pytest.approx(1000)
    assert part_of(found, "count").wanted_per_s == pytest.approx(1000)
    # 0.1 + 1 + 2 cores, 60 % of a core for each
    assert found.wanted_workers == 6
    result = part_of(found, "count").why
    assert result == "1,000 rows/s wanted, an executor does 500 rows/s, at 60%: 4 executors"


def test_a_plan_above_its_division_gives_the_load_of_one_fewer() -> None:
    found = plan(chain(470, costs=(0.0, 0.0, 0.0032), tasks=4), BOUNDS)
    rates = "470 rows/s wanted, an executor does 312 rows/s, at 60%"
    reason = "since of 3 one would have 2 of 4 tasks, 75%"
    assert part_of(found, "count").why == f"{rates}: 4 executors, {reason}"
    cores = "1.5 cores at the wanted rates, 60% of a core for each worker"
    assert (found.wanted_workers, found.why) == (4, f"{cores}; of 3 the fullest would have 75%")


def test_a_component_of_one_executor_is_not_told_that_fewer_would_be_too_few() -> None:
    found = part_of(plan(chain(10), BOUNDS), "split")
    assert found.why == "10 rows/s wanted, an executor does 1,000 rows/s: 1% of 1 executor"


def test_a_backlog_is_read_in_the_catch_up_time_next_to_what_arrives() -> None:
    load = chain(1000, backlog=60_000)
    assert wanted_rates(load.components, 600)["count"] == pytest.approx(1100)
    assert wanted_rates(load.components, 60)["count"] == pytest.approx(2000)


def test_rows_that_wait_within_belong_to_the_wanted_rate_of_what_they_wait_for() -> None:
    load = with_part(chain(100), "split", waiting=6000.0)
    rates = wanted_rates(load.components, 600)
    assert (rates["lines"], rates["split"], rates["count"]) == pytest.approx((100, 110, 110))


def test_edges_multiply_rows_by_their_measured_ratios() -> None:
    rates = wanted_rates(chain(300, 100, ratios=(5.0, 0.2)).components, 600)
    assert rates == pytest.approx({"lines": 300, "split": 1500, "count": 300})


def test_a_cycle_and_an_unknown_sender_count_with_their_present_rates() -> None:
    parts = (
        component("source", 100, 0.001, source=Source(200)),
        component("a", 110, 0.001, inputs={"source": 100, "b": 10, "gone": 1}),
        component("b", 10, 0.001, inputs={"a": 10}),
    )
    rates = wanted_rates(parts, 600)
    assert rates["a"] == pytest.approx(211)
    assert rates["b"] == pytest.approx(10 * 211 / 110)


def test_tasks_stay_whole_so_three_executors_do_no_more_than_two_for_four_tasks() -> None:
    """1.44 cores of four tasks: of three executors one would have 72 %."""
    parts = (
        component("source", 480, 0.0001, tasks=4, source=Source(480)),
        component("compute", 480, 0.003, 1, 4, {"source": 480}),
    )
    found = plan(TopologyLoad(parts, 1, 64, 0.0, 10**8), BOUNDS)
    assert executors(found) == {"source": 1, "compute": 4}
    assert found.wanted_workers == 4  # of three, one would have two of them


def test_an_executor_with_more_tasks_is_above_the_band_though_the_mean_is_not() -> None:
    load = component("compute", 400, 0.005, 3, 4, {"source": 400}, workers=3)
    parts = (component("source", 400, 0.0001, tasks=4, source=Source(400)), load)
    found = plan(TopologyLoad(parts, 3, 64, 0.0, 10**8), BOUNDS)
    assert part_of(found, "compute").wanted == 4  # of three, one is 100 % busy, the mean 67 %


def test_within_the_band_nothing_changes() -> None:
    found = plan(chain(600, executors=(1, 1, 2), workers=3), BOUNDS)
    assert not found.is_change
    assert part_of(found, "split").why.endswith("60% of 1 executor is within 40% to 80%")


def test_a_component_near_the_end_of_the_band_grows_with_others_but_not_alone() -> None:
    """Four plans followed a step of the load, two of them from the error of a measurement."""
    costs = (0.0001, 0.0015, 0.002)  # split is 75 % busy
    alone = plan(chain(500, costs=costs, executors=(1, 1, 2), workers=3), BOUNDS)
    assert executors(alone) == {"lines": 1, "split": 1, "count": 2}
    with_count = plan(chain(500, costs=costs, workers=3), BOUNDS)
    assert executors(with_count) == {"lines": 1, "split": 2, "count": 2}


def test_a_component_below_the_band_gets_fewer() -> None:
    found = plan(chain(100, executors=(1, 4, 4), workers=4), BOUNDS)
    assert executors(found) == {"lines": 1, "split": 1, "count": 1}
    assert found.wanted_workers == 1


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (chain(100, executors=(1, 4, 4), workers=4, backlog=50_000), "lines is behind"),
        (
            with_part(
                chain(100, executors=(1, 4, 4), workers=4),
                "count",
                tasks=component("count", 450, 0.002, 1).tasks,
            ),
            "an executor of count is 90% busy",
        ),
    ],
)
def test_nothing_shrinks_while_a_source_is_behind_or_an_operator_above_its_band(
    load: TopologyLoad, why: str
) -> None:
    found = plan(load, BOUNDS)
    assert part_of(found, "split").wanted == 4
    assert part_of(found, "split").why.endswith(f"it keeps 4, since {why}")
    assert found.wanted_workers >= 4


def test_a_source_at_its_end_leaves_everything_as_it_is() -> None:
    load = chain(0, 0, executors=(1, 4, 4), workers=4)
    found = plan(with_part(load, "lines", source=Source(0, is_exhausted=True)), BOUNDS)
    assert not found.is_change
    assert part_of(found, "lines").why == "its source is at its end"


def test_a_bottleneck_behind_a_source_at_its_end_holds_nothing_back() -> None:
    """Its key was hot in the minutes that were measured; no row is wanted of it any more."""
    load = chain(500, 500, executors=(1, 1, 2), tasks=4)
    hot = component(
        "count", 500, 0.0025, 2, 4, {"split": 500}, shares=(0.7, 0.1, 0.1, 0.1), is_keyed=True
    )
    ended = with_part(load, "lines", source=Source(0, is_exhausted=True))
    found = plan(with_part(ended, "count", tasks=hot.tasks), BOUNDS)
    assert "a hot key" in part_of(found, "count").bottleneck
    assert not found.is_change


def test_a_component_that_did_nothing_keeps_its_executors() -> None:
    found = plan(chain(100, ratios=(0.0, 1.0), executors=(1, 2, 3), workers=2), BOUNDS)
    assert part_of(found, "split").wanted == 2
    assert part_of(found, "split").why == "it has executed nothing that could be measured"


def test_a_keyed_component_stays_within_its_tasks_which_is_said() -> None:
    found = plan(chain(4000, 1000, tasks=4), BOUNDS)
    count = part_of(found, "count")
    assert count.wanted == 4
    assert count.bottleneck == (
        "count has 4 tasks, which hold its keys: submit it with a greater topology.tasks"
    )
    # 2,000 rows/s get through its four tasks: what comes before it needs no more than that
    assert part_of(found, "split").wanted == 4
    assert part_of(found, "split").wanted_per_s == pytest.approx(2000)


def test_a_source_with_one_task_names_its_partitions() -> None:
    load = chain(1000, 400, costs=(0.002, 0.0001, 0.0001), tasks=1)
    lines = part_of(plan(load, BOUNDS), "lines")
    assert (lines.wanted, lines.bottleneck) == (
        1,
        "lines has 1 task, and a partition is read by one: submit it with more tasks, up to its partitions",
    )


def test_a_hot_key_is_named_instead_of_scaled() -> None:
    load = chain(1000, 500, executors=(1, 1, 2), tasks=4)
    hot = component(
        "count", 500, 0.0025, 2, 4, {"split": 500}, shares=(0.7, 0.1, 0.1, 0.1), is_keyed=True
    )
    found = plan(with_part(load, "count", tasks=hot.tasks), BOUNDS)
    assert part_of(found, "count").wanted == 2
    assert part_of(found, "count").bottleneck == (
        "count: task 0 has 70% of the rows, a hot key that no other executor can take: "
        "combine rows before it, or split the key"
    )
    assert part_of(found, "split").wanted == 1  # 570 rows/s get through


def test_the_same_share_of_a_bolt_without_keys_is_scaled() -> None:
    load = chain(1000, 500, executors=(1, 1, 2), tasks=4)
    uneven = component("count", 500, 0.0025, 2, 4, shares=(0.7, 0.1, 0.1, 0.1))
    found = plan(with_part(load, "count", tasks=uneven.tasks, is_keyed=False), BOUNDS)
    assert part_of(found, "count").wanted == 4


def test_a_sink_that_is_not_busy_while_rows_wait_for_it_is_slow() -> None:
    load = chain(1000, 300, costs=(0.0001, 0.001, 0.0001), backlog=10**6)
    found = plan(with_part(load, "count", waiting=1000.0), BOUNDS)
    result = part_of(found, "count").bottleneck
    assert result == "count is 3% busy while rows wait for it: what it writes or calls is slow"
    assert not found.is_change  # more of split would wait for the sink


def test_a_slow_sink_is_named_however_large_the_backlog_has_become() -> None:
    """With the wanted rate of a backlog of hours it had no time left: 1 worker became 53."""
    load = chain(1000, 300, costs=(0.0001, 0.001, 0.0001), backlog=10**8)
    found = plan(with_part(load, "count", waiting=1000.0), BOUNDS)
    assert part_of(found, "count").bottleneck.startswith("count is 3% busy while rows wait")
    assert not found.is_change


def test_a_sink_that_waits_in_its_code_is_slow_and_another_bolt_of_that_kind_is_scaled() -> None:
    waits = component("count", 300, 0.0032, inputs={"split": 300}, cpu=0.1)
    load = with_part(chain(1000, 300, backlog=3 * 10**5, held=0.5), "count", tasks=waits.tasks)
    named = part_of(plan(load, BOUNDS), "count")
    assert named.bottleneck == "count waits 90% of its time in code: its target is slow"
    assert named.wanted == 1
    asks = component("split", 300, 0.0032, inputs={"lines": 300}, cpu=0.1)
    load = with_part(chain(1000, 300, backlog=3 * 10**5, held=0.5), "split", tasks=asks.tasks)
    assert part_of(plan(load, BOUNDS), "split").wanted == 8


def test_a_source_that_is_neither_busy_nor_held_back_while_behind_is_slow() -> None:
    found = plan(chain(1000, 300, backlog=10**6, costs=(0.0001, 0.0001, 0.0001)), BOUNDS)
    lines = part_of(found, "lines")
    assert lines.bottleneck == "lines is behind, neither busy nor held back: what it reads is slow"


def test_a_source_that_keeps_up_is_not_slow_because_another_one_is() -> None:
    late = chain(1000, 300, backlog=10**6, costs=(0.0001, 0.0001, 0.0001))
    fine = component("other", 100, 0.0001, source=Source(100))
    found = plan(replace(late, components=(*late.components, fine)), BOUNDS)
    assert part_of(found, "lines").bottleneck and not part_of(found, "other").bottleneck


def test_nobody_is_called_slow_in_a_busy_worker() -> None:
    """Two executors share a core: neither is 80 % busy, and yet there is no time left."""
    load = chain(1000, 500, costs=(0.0001, 0.0009, 0.0009), backlog=10**6)
    found = plan(with_part(load, "count", waiting=2000.0), BOUNDS)
    assert not any(part.bottleneck for part in found.components)
    assert found.wanted_workers > 1


def test_a_source_without_a_known_backlog_is_behind_while_it_is_held_back() -> None:
    part = component("lines", 100, 0.001, source=Source(200, held=0.5, knows_backlog=False))
    assert is_behind(part)
    assert not is_behind(replace(part, source=Source(100, held=0.05, knows_backlog=False)))
    assert not is_behind(replace(part, source=Source(100, held=0.5)))


def test_workers_keep_their_limits_and_say_what_is_missing() -> None:
    load = chain(1000, 400)
    assert plan(load, Bounds(max_workers=3)).wanted_workers == 3
    result = plan(load, Bounds(max_workers=3)).shortage
    assert result == "it needs 6 workers, and topology.autoscale.max.workers is 3"
    short = plan(replace(load, slots=2), BOUNDS)
    assert short.wanted_workers == 2
    assert short.shortage.startswith("it needs 6 workers and 2 slots are there for it: start a")
    assert plan(chain(10), Bounds(min_workers=3)).wanted_workers == 3


def test_workers_are_no_more_than_executors_whatever_is_their_least_number() -> None:
    """Workers that no scheduler could fill would be asked for in each grace period."""
    found = plan(chain(100), Bounds(min_workers=5))
    assert found.wanted_workers == 3
    assert found.shortage == "topology.autoscale.min.workers is 5, and it has 3 executors"
    assert not plan(chain(100, workers=4), Bounds(min_workers=5)).is_change


def test_a_topology_over_several_stores_keeps_a_worker_and_executors_for_each() -> None:
    """A rebalance with fewer is refused, with all that it was to make grow."""
    load = chain(10, executors=(4, 4, 4), workers=4)
    assert executors(plan(load, BOUNDS)) == {"lines": 1, "split": 1, "count": 1}
    found = plan(replace(load, cells=3), BOUNDS)
    assert executors(found) == {"lines": 3, "split": 3, "count": 3}
    assert found.wanted_workers == 3


def test_no_worker_has_more_than_the_band_though_the_mean_is_low() -> None:
    """Dealt in turn, the two heavy executors of four would meet in one of two workers."""
    parts = (
        component("a", 100, 0.006, source=Source(100)),
        component("b", 100, 0.0002, inputs={"a": 100}),
        component("c", 100, 0.005, inputs={"b": 100}),
        component("d", 100, 0.0002, inputs={"c": 100}),
    )
    assert plan(TopologyLoad(parts, 1, 9), BOUNDS).wanted_workers == 3


def test_a_plan_in_one_sentence_and_as_a_rebalance() -> None:
    found = plan(chain(1000, 400), BOUNDS)
    assert found.sentence() == "scale workers 1 -> 6, split 1 -> 2, count 1 -> 4"
    options = found.options()
    assert (options.num_workers, options.executors_by_component) == (6, {"split": 2, "count": 4})
    assert plan(applied(chain(1000), found), BOUNDS).sentence() == "it has what it needs"


# -- what is due -----------------------------------------------------------------------------------


def test_nothing_is_due_within_the_grace_time_and_nothing_shrinks_within_an_hour() -> None:
    grow = chain(1000, 400)
    assert due(replace(grow, settled_ms=299_000), BOUNDS, 300_000) is None
    assert due(replace(grow, settled_ms=300_000), BOUNDS, 300_000) is not None
    shrink = chain(100, executors=(1, 4, 4), workers=4)
    assert due(replace(shrink, settled_ms=HOUR_MS - 1), BOUNDS, 300_000) is None
    assert due(replace(shrink, settled_ms=HOUR_MS), BOUNDS, 300_000) is not None


# -- laws ------------------------------------------------------------------------------------------

RATES = st.floats(1.0, 2_000.0)
COSTS = st.tuples(*[st.floats(1e-5, 1e-3)] * 3)
RATIOS = st.tuples(*[st.floats(0.1, 2.0)] * 2)
EXECUTORS = st.tuples(*[st.integers(1, 8)] * 3)
WORKERS = st.integers(1, 8)


@given(RATES, RATES, COSTS, RATIOS, EXECUTORS, WORKERS)
def test_more_rows_never_want_fewer_executors(
    one: float,
    other: float,
    costs: tuple[float, float, float],
    ratios: tuple[float, float],
    numbers: tuple[int, int, int],
    workers: int,
) -> None:
    def planned(arrives: float) -> dict[str, int]:
        # No more tasks than the greatest rate can want, so that none is a limit.
        load = chain(
            arrives, 100, costs=costs, ratios=ratios, executors=numbers, workers=workers, tasks=16
        )
        return executors(plan(load, BOUNDS))

    less, more = planned(min(one, other)), planned(max(one, other))
    assert all(less[name] <= more[name] for name in less)


@given(RATES, COSTS, RATIOS, EXECUTORS, WORKERS)
def test_a_plan_is_stable_in_one_step_for_a_linear_load(
    arrives: float,
    costs: tuple[float, float, float],
    ratios: tuple[float, float],
    numbers: tuple[int, int, int],
    workers: int,
) -> None:
    load = chain(
        arrives, costs=costs, ratios=ratios, executors=numbers, workers=workers, slots=10**6
    )
    after = applied(load, plan(load, BOUNDS))
    again = plan(after, BOUNDS)
    # A first plan may be kept from shrinking by what it makes grow; the next one shrinks that.
    final = plan(applied(after, again), BOUNDS)
    assert not final.is_change
    if not again.is_change:
        return
    assert all(part.wanted <= part.executors for part in again.components)


@given(RATES, RATES, COSTS, EXECUTORS, WORKERS, st.integers(1, 9), st.integers(1, 9))
def test_plans_keep_their_bounds(
    arrives: float,
    read: float,
    costs: tuple[float, float, float],
    numbers: tuple[int, int, int],
    workers: int,
    slots: int,
    most: int,
) -> None:
    load = chain(
        arrives, read, costs=costs, executors=numbers, workers=min(workers, slots), slots=slots
    )
    found = plan(load, Bounds(max_workers=most))
    assert all(1 <= part.wanted <= 8 for part in found.components)
    assert 1 <= found.wanted_workers <= min(slots, most)
    is_busy = any(max(part.executors.values()) > BOUNDS.high for part in load.components)
    if is_busy:
        assert all(part.wanted >= part.executors for part in found.components)
    assert all(part.why for part in found.components)
    assert found.why
