"""Evidence of a replay: how far rows were out of order, from what each partition reports."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.metric_values import MetricKind, MetricValue
from sparkstorm.common.windowing.watermarks import SourceClock
from sparkstorm.replay.evidence import Evidence, RowTimes

OUTPUT = ("source", "default", "bolt")
PARTITIONS = st.lists(st.lists(st.integers(0, 60), max_size=8), min_size=1, max_size=5)


def evidence_of(partitions: list[list[int]]) -> Evidence:
    evidence = Evidence()
    for number, times in reversed(list(enumerate(partitions))):
        clock = SourceClock(3, 0)
        for at_ms in times:
            clock.is_late(at_ms)
        if times:
            evidence.add_times(OUTPUT, number, RowTimes.of(clock, 0))
    return evidence


@given(PARTITIONS)
def test_partitions_in_their_order_are_measured_as_one_sequence(
    partitions: list[list[int]],
) -> None:
    whole = [at_ms for times in partitions for at_ms in times]
    evidence = evidence_of(partitions)
    result = evidence.behind_in_sequence(OUTPUT)
    assert result == max((max(whole[: n + 1]) - at for n, at in enumerate(whole)), default=0)
    assert evidence.span(OUTPUT) == (max(whole) - min(whole) if whole else 0)
    each = [max(times[: n + 1]) - at for times in partitions for n, at in enumerate(times)]
    assert evidence.behind_in_partitions(OUTPUT) == max(each, default=0)


def test_a_partition_that_ran_twice_counts_once() -> None:
    evidence, other = Evidence(), Evidence()
    for each in (evidence, other):
        each.add_counts("bolt", 1, {"executed": 1})
        each.add_counts("bolt", 1, {"executed": 2, "late": 1})
        each.add_times(OUTPUT, 1, RowTimes(5, 9, 2))
    evidence.merge(pickle.loads(pickle.dumps(other)))
    other.add_counts("bolt", 2, {"executed": 4})
    evidence.merge(other)
    assert evidence.counts == {"bolt": {"executed": 7, "late": 1}}
    assert evidence.times == {OUTPUT: {1: RowTimes(5, 9, 2)}}


def test_evidence_is_the_same_after_its_way_through_a_chunk() -> None:
    evidence = Evidence()
    evidence.add_counts("bolt", 1, {"executed": 1})
    evidence.add_counts("bolt", 1 << 24, {"executed": 2, "late": 1})
    found = MetricValue(MetricKind.HISTOGRAM)
    found.add(0.5)
    evidence.add_metrics("bolt", 1, {"seconds": found})
    evidence.add_times(OUTPUT, 1, RowTimes(5, 9, 2))
    evidence.add_times(OUTPUT, 0, RowTimes())
    codec = Codec()
    assert Evidence.of_list(codec.unpack(codec.pack(evidence.as_list()))) == evidence
