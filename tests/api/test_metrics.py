"""Metrics of user code by themselves: what they take, and by which names."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.api.metrics import MOST_METRICS, SAMPLED_MS, TaskMetrics
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.values.metric_values import (
    HIGHEST,
    LOWEST,
    MetricKind,
    MetricValue,
    merged,
    quantile,
    value_bound,
    value_bucket,
)


def test_unbound_metrics_count_at_once() -> None:
    metrics = TaskMetrics("split")
    metrics.counter("rows").inc()
    metrics.counter("rows").inc(4)
    metrics.meter("calls").mark(2)
    metrics.gauge("depth").set(3)
    metrics.gauge("depth").set(2.5)
    for value in (0.5, 8, 8):
        metrics.histogram("size").update(value)
    assert {name: (str(each.kind), each.value) for name, each in metrics.values.items()} == {
        "rows": ("counter", 5),
        "calls": ("counter", 2),
        "depth": ("gauge", 2.5),
        "size": ("histogram", 16.5),
    }
    assert metrics.values["size"].count == 3
    assert quantile(metrics.values["size"].buckets, 0.5) == 8.0


@given(st.floats(1e-11, 1e17))
def test_a_bucket_holds_values_at_most_9_percent_below_its_bound(value: float) -> None:
    bound = value_bound(value_bucket(value))
    assert value * 0.999999 <= bound <= value * 1.0906


@pytest.mark.parametrize(
    ("value", "bucket"), [(0, LOWEST), (-1, LOWEST), (1e-300, LOWEST), (1, 0), (1e300, HIGHEST)]
)
def test_values_beyond_the_buckets_are_in_the_outermost(value: float, bucket: int) -> None:
    assert value_bucket(value) == bucket


@pytest.mark.parametrize("amount", [-1, 1.5, True, "1", None, 2**63])
def test_a_counter_grows_by_whole_numbers(amount: object) -> None:
    metrics = TaskMetrics("split")
    with pytest.raises(ValueError, match="grows by a whole number"):
        metrics.counter("rows").inc(amount)  # type: ignore[arg-type]
    assert metrics.values["rows"].value == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", None, 1j])
def test_a_gauge_and_a_histogram_take_finite_numbers(value: object) -> None:
    metrics = TaskMetrics("split")
    for update in (metrics.gauge("depth").set, metrics.histogram("size").update):
        with pytest.raises(ValueError, match="finite number"):
            update(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "1st", "a b", "a" * 301, 'x"} 1', "a\nb", "ü", 7])
def test_a_name_that_is_none_is_refused(name: object) -> None:
    with pytest.raises(InvalidConfigError, match=r"component 'split': metric .* a name has"):
        TaskMetrics("split").counter(name)  # type: ignore[arg-type]


def test_a_name_has_one_kind_and_a_task_a_bounded_number_of_names() -> None:
    metrics = TaskMetrics("split")
    metrics.counter("rows")
    with pytest.raises(InvalidConfigError, match="'rows' is a counter already, not a gauge"):
        metrics.gauge("rows")
    for number in range(MOST_METRICS - 1):
        metrics.counter(f"n{number}")
    with pytest.raises(InvalidConfigError, match="at most 64 metrics"):
        metrics.counter("one_more")
    assert metrics.counter("n3") is not None


def test_new_code_may_give_a_name_another_kind() -> None:
    metrics = TaskMetrics("split", {"rows": MetricValue(MetricKind.GAUGE, 7)})
    metrics.counter("rows").inc()
    assert metrics.values["rows"] == MetricValue(MetricKind.COUNTER, 1)


def test_changes_by_other_threads_wait_for_the_task() -> None:
    metrics = TaskMetrics("split", thread=threading.get_ident)
    taken = list[tuple[MetricValue, float]]()
    metrics.bind(lambda value, amount: taken.append((value, amount)))
    counter = metrics.counter("rows")
    counter.inc()
    thread = threading.Thread(target=counter.inc, args=(5,))
    thread.start()
    thread.join()
    assert taken == [(metrics.values["rows"], 1)] and metrics.values["rows"].value == 0
    assert metrics.take_others() == 1 and metrics.values["rows"].value == 5


class CountMetric:
    """As ported from Storm."""

    def __init__(self) -> None:
        self.count = 0

    def get_value_and_reset(self) -> int:
        found, self.count = self.count, 0
        return found


def test_functions_are_asked_once_in_a_period_and_no_more_once_they_raise() -> None:
    metrics, errors, asked = TaskMetrics("split"), list[BaseException](), list[int]()
    storms = CountMetric()

    def depth() -> int:
        asked.append(1)
        if len(asked) > 2:
            raise OSError("gone")
        return len(asked)

    metrics.sample_by("depth", depth)
    metrics.sample_by("by", lambda: {"a": 1, "b": None})
    metrics.sample_by("storms", storms.get_value_and_reset, 5_000)
    storms.count = 4
    assert metrics.sample(10_000, errors.append) == 3
    assert metrics.sample(10_000 + SAMPLED_MS - 1, errors.append) == 0 and len(asked) == 1
    storms.count = 9
    for second in range(1, 5):
        metrics.sample(10_000 + second * SAMPLED_MS, errors.append)
    assert len(asked) == 3 and [str(each) for each in errors] == ["gone"]
    result = {name: each.value for name, each in metrics.values.items()}
    assert result == {"depth": 2, "by": 0, "by.a": 1, "storms": 4}


def test_records_are_added_up_and_gauges_are_the_newest() -> None:
    one = {
        "rows": MetricValue(MetricKind.COUNTER, 3),
        "size": MetricValue(MetricKind.HISTOGRAM, 5, 2, {1: 2}),
    }
    two = {
        "rows": MetricValue(MetricKind.COUNTER, 4),
        "size": MetricValue(MetricKind.HISTOGRAM, 1, 1, {1: 1}),
    }
    gauges = [
        {"depth": MetricValue(MetricKind.GAUGE, 9)},
        {"depth": MetricValue(MetricKind.GAUGE, 2)},
    ]
    found = merged([one, two, *gauges])
    assert found["rows"].value == 7
    assert found["size"] == MetricValue(MetricKind.HISTOGRAM, 6, 3, {1: 3})
    assert found["depth"].value == 2
    assert one["size"].buckets == {1: 2}
    assert MetricValue.of_list(found["size"].as_list()) == found["size"]
    for parts in (
        ["sum", 1, 0, {}],
        ["counter", "1", 0, {}],
        ["counter", 1, None, {}],
        ["histogram", 1, 1, {"1": 1}],
        [1],
    ):
        with pytest.raises((ValueError, AttributeError)):
            MetricValue.of_list(parts)
