"""The audit of edges and the health of a topology, from made records: the culprit named is the one
that was planted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.common.clock import SimClock
from sparkstorm.common.model.assignment import Assignment, ExecutorId, TopologyBase, WorkerSlot
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.values.metric_values import MetricKind, MetricValue
from sparkstorm.control_plane.insight.audit import EdgeAudit, audit
from sparkstorm.control_plane.insight.culprits import Culprit, Fault, culprits
from sparkstorm.control_plane.insight.health import Life, examine, sentence
from sparkstorm.control_plane.insight.loads import StoreSnapshot, loads
from sparkstorm.control_plane.insight.reading import TopologyReading
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.data_plane.transport.local_reader import LocalReader
from sparkstorm.data_plane.transport.progress import (
    EdgeCounts,
    Progress,
    TaskCounts,
    latency_bucket,
    merge,
    under_way,
)
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.worker.building import Pass

EDGE = ("lines", "default", "count")


def record(now_ms: int, **more: Any) -> Progress:
    """Return a worker's record after so many milliseconds in which all is well; `more` by task
    ("count_2") adds to it.
    """
    counts = {1: TaskCounts("lines", 1), 2: TaskCounts("count", 1), 3: TaskCounts("count", 1)}
    for task, each in counts.items():
        each.executed, each.busy_us = now_ms, 300 * now_ms
        for name, per_ms in more.get(f"{each.component}_{task}", {}).items():
            setattr(each, name, int(per_ms * now_ms))
    return Progress(counts, now_ms=now_ms)


def faults(**more: Any) -> list[tuple[Fault, str]]:
    found = examine("words", record_look(1000, more), record_look(11_000, more), 1, 1)
    return [(each.fault, each.component) for each in found.culprits]


def test_a_topology_that_is_well_keeps_up() -> None:
    found = loads({"node-1:6700": record(1000)}, {"node-1:6700": record(11_000)})
    assert culprits(found) == ()
    text = "words keeps up: 3.0 k tuples/s, p99 34 ms; slowest part lines, 30% busy on node-1:6700"
    assert sentence("words", found, 34.2, ()) == text


def ackers(at_ms: int, busy: int) -> Progress:
    """Return the record of all well, with an acker that is so many per mille of its time busy."""
    made = record(at_ms)
    made.counts_by_task[9] = TaskCounts("__acker", 1, executed=at_ms, busy_us=busy * at_ms)
    return made


def test_an_acker_is_called_slow_only_where_it_is_the_limit_and_then_in_words() -> None:
    found = loads({"n:1": ackers(1000, 500)}, {"n:1": ackers(11_000, 500)})
    assert sentence("words", found, None, culprits(found)).endswith(
        "slowest part lines, 30% busy on n:1"
    )
    found = loads({"n:1": ackers(1000, 900)}, {"n:1": ackers(11_000, 900)})
    assert sentence("words", found, None, culprits(found)) == (
        "words runs at its limit: an acker is 90% busy on n:1 (task 9); "
        "topology.acker.executors says how many there are; 3.0 k tuples/s"
    )


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ({"count_2": {"busy_us": 900}}, [(Fault.SLOW, "count")]),
        ({"count_2": {"failed": 0.02}}, [(Fault.FAILING, "count")]),
        (
            {"lines_1": {"executed": 0, "acked": 1, "failed": 0.02}},
            [(Fault.FAILING, "lines")],
        ),
        ({"lines_1": {"executed": 0, "acked": 1, "failed": 0.005}}, []),
        ({"lines_1": {"executed": 0, "failed": 0.001}}, [(Fault.FAILING, "lines")]),
        ({"count_3": {"late": 0.0001}}, [(Fault.LATE, "count")]),
        ({"count_3": {"parked": 0.0001}}, [(Fault.PARKED, "count")]),
        ({"count_3": {"parked": 0.0001, "replayed": 0.0001}}, []),
        ({"lines_1": {"bad": 0.0001}}, [(Fault.BAD, "lines")]),
        (
            {"count_2": {"failed": 0.1, "parked": 0.1, "late": 0.1, "bad": 0.1}},
            [
                (each, "count")
                for each in (
                    Fault.PARKED,
                    Fault.BAD,
                    Fault.LATE,
                    Fault.FAILING,
                )
            ],
        ),
        (
            {"count_2": {"busy_us": 950, "executed": 9}, "count_3": {"executed": 0.1}},
            [(Fault.SLOW, "count"), (Fault.SKEWED, "count")],
        ),
        ({"lines_1": {"inactive_us": 900}}, [(Fault.HELD_BACK, "lines")]),
        (
            {"lines_1": {"pending_us": 700}, "count_2": {"busy_us": 990}},
            [(Fault.SLOW, "count"), (Fault.HELD_BACK, "lines")],
        ),
    ],
)
def test_the_culprit_named_is_the_one_planted(planted: Any, named: Any) -> None:
    assert faults(**planted) == named


def test_what_holds_a_spout_back_is_named() -> None:
    planted = {"lines_1": {"backlog_us": 700}, "count_2": {"busy_us": 990}}
    before, after = {"n:1": record(1000, **planted)}, {"n:1": record(2000, **planted)}
    found = culprits(loads(before, after))
    assert found[-1].sentence == "lines is held back 70% of the time (backlog), behind count"
    result = sentence("words", (), None, found)
    assert result == "words runs at its limit: count is 99% busy on n:1 (task 2); 0 tuples/s"


def waited(
    at_ms: int, pending: int, oldest_ms: int, more: Any = None, **gauges: int
) -> StoreSnapshot:
    """Return a look at open trees, of which the oldest row waits for a task of `count`."""
    made = record(at_ms, **(more or {}))
    made.counts_by_task[1].pending = pending
    for name, value in gauges.items():
        setattr(made.counts_by_task[2], name, value)
    return StoreSnapshot({"n:1": made}, {1: 0, 3: 10}, {3: oldest_ms} if oldest_ms else {})


HELD: Any = {"lines_1": {"inactive_us": 900}}


def record_look(at_ms: int, more: Any = None) -> StoreSnapshot:
    return StoreSnapshot({"n:1": record(at_ms, **(more or {}))}, {})


def sentence_of(before: StoreSnapshot, after: StoreSnapshot) -> str:
    return examine("words", before, after, 1, 1).sentence


def test_open_trees_that_wait_long_are_named_with_where_they_wait() -> None:
    found = examine("words", waited(1000, 400_000, 369_000), waited(3000, 423_000, 370_000), 1, 1)
    assert not found.is_well
    assert [(each.fault, each.component) for each in found.culprits] == [(Fault.WAITING, "count")]
    assert found.sentence == (
        "words does not run well: 423,000 open trees wait for count, up to 370 s; 3.0 k tuples/s (last 2 s)"
    )


def test_trees_that_ended_late_are_named_while_others_are_open() -> None:
    before, after = waited(1000, 400, 0), waited(3000, 423, 0)
    after.progress["n:1"].latency_buckets = {latency_bucket(370_000): 50}
    text = "words does not run well: trees took up to 371 s; rows wait for count; 3.0 k tuples/s, p99 371 s (last 2 s)"
    assert sentence_of(before, after) == text
    # where most bytes wait
    assert "lines" in sentence_of(before, StoreSnapshot(after.progress, {1: 9, 2: 5}))
    # else the busiest, of equal ones the first
    assert "lines" in sentence_of(before, StoreSnapshot(after.progress, {}))
    after.progress["n:1"].counts_by_task[1].pending = 0
    assert sentence_of(before, StoreSnapshot(after.progress, {})).startswith("words keeps up")


@pytest.mark.parametrize(("now_ms", "is_named"), [(9_999, False), (10_000, True)])
def test_a_wait_is_named_when_it_is_long(now_ms: int, is_named: bool) -> None:
    text = sentence_of(waited(1000, 10, 0), waited(3000, 12, now_ms))
    assert ("12 open trees wait for count" in text) is is_named, text


@pytest.mark.parametrize(
    ("pending", "now_ms", "text"),
    [
        (3, 13_000, "3 open trees wait for count, up to 10 s; no worker has committed anything"),
        (0, 13_000, "10 bytes wait for count, up to 10 s; no worker has committed anything"),
        (3, 12_999, None),
    ],
)
def test_workers_that_commit_nothing_while_rows_wait_are_named(
    pending: int, now_ms: int, text: str | None
) -> None:
    after = replace(waited(3000, pending, 0), now_ms=now_ms)
    found = examine("words", waited(1000, 0, 0), after, 1, 1)
    assert found.is_well is (text is None)
    assert text is None or text in found.sentence


def test_inputs_that_code_holds_on_purpose_are_no_wait() -> None:
    assert sentence_of(waited(1000, 10, 60_000), waited(3000, 10, 62_000, held=5)).startswith(
        "words keeps up"
    )
    assert "open trees wait" in sentence_of(
        waited(1000, 10, 60_000), waited(3000, 10, 62_000, held=4)
    )


def test_a_task_that_has_moved_is_at_its_newest_owner() -> None:
    before = {"a:1": record(1000), "b:1": record(1000)}
    after = {"a:1": record(2000), "b:1": record(2000)}
    after["a:1"].counts_by_task[2].token = 2
    assert {load.task: load.slot for load in loads(before, after) if load.task == 2} == {2: "a:1"}


def test_a_worker_without_a_newer_record_is_left_out() -> None:
    assert loads({"a:1": record(1000)}, {"a:1": record(1000), "b:1": record(1000)}) == ()


@pytest.mark.parametrize(
    ("flow", "backlog", "fault"),
    [
        (EdgeCounts(10, 10), {}, ""),
        (EdgeCounts(10, 7), {3: 100}, ""),
        (EdgeCounts(10, 7), {1: 100, 9: 5}, "3 rows were sent and not consumed, and nothing waits"),
        (EdgeCounts(1007, 2010), {2: 100}, "1,003 rows more were consumed than sent"),
        (EdgeCounts(8, 7), {}, "1 row was sent and not consumed, and nothing waits"),
    ],
)
def test_rows_that_are_nowhere_are_a_fault_of_their_edge(
    flow: EdgeCounts, backlog: dict[int, int], fault: str
) -> None:
    merged = record(1)
    merged.edges[EDGE] = flow
    found = audit(merged, backlog)
    assert found == (EdgeAudit(*EDGE, flow.sent, flow.consumed, fault),)
    assert found[0].waiting == flow.sent - flow.consumed
    assert [each.component for each in culprits((), found)] == (["count"] if fault else [])


@pytest.mark.parametrize(
    ("consumed", "fault"), [(3, ""), (5, ""), (6, "1 row more was consumed than sent")]
)
def test_rows_that_waited_for_the_topology_before_are_no_surplus(consumed: int, fault: str) -> None:
    before = record(1)
    before.edges[EDGE] = EdgeCounts(10, 7)
    inherited = under_way([before])
    assert audit(inherited, {3: 100})[0].fault == ""
    now = record(2)
    now.edges[EDGE] = EdgeCounts(2, consumed)
    assert audit(merge([inherited, now]), {3: 100})[0].fault == fault


def look(now_ms: int, flow: EdgeCounts | None = None, **more: Any) -> StoreSnapshot:
    made = record(now_ms, **more)
    made.latency_buckets = {
        latency_bucket(30): now_ms,
        latency_bucket(9000): 50 if now_ms < 2000 else 51,
    }
    made.edges[EDGE] = flow or EdgeCounts(5, 5)
    return StoreSnapshot({"n:1": made}, {})


def test_a_health_record_is_of_the_time_between_its_looks() -> None:
    found = examine("words", look(1000), look(3000), 1, 1)
    assert found.is_well and found.culprits == () and len(found.loads) == 3
    assert found.p99_ms is not None and 29 < found.p99_ms < 35  # over all time it is 9 s
    assert found.sentence.startswith("words keeps up: 3.0 k tuples/s, p99 31 ms")


@pytest.mark.parametrize("fault", Fault)
def test_faults_that_cost_tuples_are_not_well_and_those_that_limit_the_rate_are(
    fault: Fault,
) -> None:
    found = replace(
        examine("words", look(1000), look(3000), 1, 1),
        culprits=(Culprit(fault, "count", "count is so"),),
    )
    assert found.is_well is (fault in {Fault.SLOW, Fault.SKEWED, Fault.HELD_BACK})


@pytest.mark.parametrize(
    ("wanted", "given", "problems", "text"),
    [
        (3, 2, (), "it has 2 of the 3 workers that it wants"),
        (2, 2, ("too few slots",), "too few slots"),
        (3, 2, ("too few slots",), "it has 2 of the 3 workers that it wants"),
        (3, 0, (), "it has no workers"),
    ],
)
def test_missing_workers_and_problems_are_faults(
    wanted: int, given: int, problems: tuple[str, ...], text: str
) -> None:
    found = examine("words", look(1000), look(3000), wanted, given, problems)
    whole = f"words does not run well: {text}; 3.0 k tuples/s, p99 31 ms (last 2 s)"
    assert (found.sentence, found.is_well, found.problems) == (whole, False, problems)


def test_a_scheduler_that_decides_the_number_of_workers_is_no_fault() -> None:
    assert examine("words", look(1000), look(3000), None, 1).is_well


def alive(status: str, **more: Any) -> Life:
    return Life(TopologyStatus(status), **more)


def still(at_ms: int, pending: int = 0) -> StoreSnapshot:
    """Return a look at a topology whose counts do not grow; its worker commits."""
    made = record(1000)
    made.now_ms, made.counts_by_task[1].pending = at_ms, pending
    return StoreSnapshot({"n:1": made}, {})


SAME, LATER = (still(1000), still(1000)), (still(1000), still(3000))
RESTING = "is deactivated: its spouts emit nothing until it is activated"
ILL = "does not run well: "
PAUSED = "bolt 'count' is paused: most of its inputs fail"
LIVES: list[tuple[Life, int, tuple[StoreSnapshot, StoreSnapshot], str]] = [
    (alive("INACTIVE"), 1, LATER, RESTING),
    # its spouts rest and its trees wait for them: neither is a fault
    (
        alive("INACTIVE"),
        1,
        (waited(1000, 12, 60_000, HELD), waited(3000, 12, 62_000, HELD)),
        f"{RESTING}; 12 trees are open",
    ),
    (
        alive("INACTIVE", paused=PAUSED),
        1,
        SAME,
        f"{ILL}it was deactivated, since {PAUSED} (last 0 s)",
    ),
    (alive("INACTIVE"), 0, SAME, f"{ILL}it has no workers (last 0 s)"),
    (alive("KILLED"), 0, (still(1000), still(1000, 1)), "is being killed; 1 tree is open"),
    (alive("REBALANCING"), 0, SAME, "is being rebalanced"),
    (
        alive("UPGRADING"),
        1,
        (record_look(1000), record_look(3000)),
        "keeps up: 3.0 k tuples/s; slowest part lines, 30% busy on n:1 (last 2 s); an upgrade is under way",
    ),
    (
        alive("ACTIVE", is_drained=True),
        1,
        LATER,
        "is done: its sources have emitted everything, and nothing is under way",
    ),
    (alive("ACTIVE"), 0, SAME, f"{ILL}it has no workers (last 0 s)"),
    (alive("ACTIVE", starting=1), 1, SAME, "starts: 1 of 1 worker does not run yet"),
    (
        alive("ACTIVE"),
        1,
        (StoreSnapshot({}, {}), StoreSnapshot({}, {})),
        "starts: no worker has committed anything yet",
    ),
    (alive("ACTIVE"), 1, SAME, "has nothing to do: no tuple was emitted or executed (last 0 s)"),
    (alive("ACTIVE"), 1, LATER, "has nothing to do: no tuple was emitted or executed (last 2 s)"),
    (
        alive("ACTIVE"),
        1,
        (record_look(1000, HELD), record_look(3000, HELD)),
        "runs at its limit: lines was inactive 90% of the time; 3.0 k tuples/s (last 2 s)",
    ),
]


@pytest.mark.parametrize(("life", "given", "looks", "text"), LIVES)
def test_the_sentence_says_where_a_topology_is_in_its_life(
    life: Life, given: int, looks: tuple[StoreSnapshot, StoreSnapshot], text: str
) -> None:
    found = examine("words", *looks, None, given, (), life)
    assert found.sentence == f"words {text}"
    assert found.is_well is not text.startswith(ILL)


@pytest.mark.parametrize(("slot", "starting"), [("n:1", 0), ("n:2", 1)])
def test_a_worker_that_has_committed_is_none_that_does_not_run_yet(
    slot: str, starting: int
) -> None:
    """Its heartbeat is missing: it died, or has not been read."""
    places = {ExecutorId(1, 1): WorkerSlot.parse(slot)}
    outline = TopologyOutline({}, {}, {})
    base = TopologyBase("words-1-1", "words", 0, TopologyStatus.ACTIVE, 1, {}, "", "")
    reading = TopologyReading(base, outline, Assignment("words-1-1", 1, "", "", {}, places))
    assert reading.health(waited(3000, 3, 0), 3000).life.starting == starting


def test_missing_workers_are_said_before_the_wait_for_them_and_after_what_is_lost() -> None:
    planted: Any = {"count_2": {"failed": 0.1}}
    text = examine("words", look(1000), look(3000), 1, 1, ("Redis is nearly full",)).sentence
    assert text.startswith("words does not run well: Redis is nearly full; 3.0 k tuples/s")
    waits = waited(1000, 10, 60_000), waited(3000, 12, 62_000)
    assert examine("words", *waits, 2, 0).sentence.startswith(
        "words does not run well: it has no workers; "
    )
    assert "Redis is full" in examine("words", *waits, 1, 1, ("Redis is full",)).sentence
    assert "12 open trees wait" in examine("words", *waits, 1, 1).sentence
    failing = examine("words", look(1000, **planted), look(3000, **planted), 2, 1)
    assert failing.sentence.startswith("words does not run well: count: 200 of 4,000 executions")


def test_counts_are_of_all_owners_of_a_task_and_of_the_time_between_the_looks() -> None:
    late: Any = {"count_2": {"late": 0.1}}
    before = {"n:1": record(1000, **late), "n:2": record(1000)}
    after = {"n:1": record(3000, **late), "n:2": record(3000)}
    after["n:2"].counts_by_task[2].token = 2  # it has moved since
    after["n:1"].edges["lines", "default", "count"] = EdgeCounts(behind_ms=800, behind_task=1)
    after["n:2"].edges["lines", "default", "count"] = EdgeCounts(behind_ms=3200, behind_task=4)
    after["n:2"].edges["lines", "default", "other"] = EdgeCounts(behind_ms=9900, behind_task=5)
    found = examine("words", StoreSnapshot(before, {}), StoreSnapshot(after, {}), 1, 1)
    assert found.counts["count"].late == 200 and found.counts["count"].executed == 8000
    behind = "task 4 of lines sends rows up to 3,200 ms behind its newest one"
    assert f"too late for its windows ({behind}); " in found.sentence
    own = {f"behind_ms.orders/{n}": MetricValue(MetricKind.GAUGE, n * 10) for n in range(3)}
    after["n:2"].metrics_by_task[4] = own
    found = examine("words", StoreSnapshot(before, {}), StoreSnapshot(after, {}), 1, 1)
    assert f"({behind}, within partition orders/2 up to 20 ms); " in found.sentence
    assert "count: 200 of 8,000 inputs came too late for its windows" in found.sentence
    assert "give the bolts before it one task each" in found.sentence


def kept(started_ms: int, *times_ms: int) -> tuple[Progress, ...]:
    return tuple(replace(record(each), started_ms=started_ms) for each in times_ms)


@pytest.mark.parametrize(
    ("time_ms", "executed"),
    [
        (0, 0),  # before its first commit
        (59_000, 0),
        (60_000, 60_000),
        (130_000, 120_000),  # it committed nothing in between
        (500_000, 500_000),
        (700_000, 500_000),  # nothing since
    ],
)
def test_one_look_knows_what_the_counts_were_before(time_ms: int, executed: int) -> None:
    *earlier, now = kept(1_000, 60_000, 120_000, 400_000, 500_000)
    others = kept(7, 100_000)  # of another store
    look = StoreSnapshot({"n:1": now}, {}, earlier={"n:1": [*others, *earlier]}, now_ms=800_000)
    before = look.before(time_ms).merged
    counts = before.counts_by_task.get(2)
    assert (counts.executed if counts else 0) == executed and before.now_ms >= time_ms - 60_000


def test_a_row_that_is_lost_is_named_before_what_is_slow() -> None:
    planted: Any = {"count_2": {"busy_us": 950}}
    found = examine("words", look(1000, **planted), look(3000, EdgeCounts(5, 4), **planted), 1, 1)
    assert [each.fault for each in found.culprits] == [Fault.LEAKING, Fault.SLOW]
    assert found.sentence.startswith(
        "words does not run well: lines/default to count: 1 row was sent and not consumed"
    )


class Slow(BasicBolt):
    """Takes 9 ms of simulated time for an input."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        clocks[-1].advance(9)


clocks: list[SimClock] = []


def test_a_slow_bolt_of_a_running_topology_is_named() -> None:
    spout, builder = FeederSpout(["value"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("pass", Pass()).shuffle_grouping("spout")
    builder.set_bolt("slow", Slow()).shuffle_grouping("pass")
    with LocalCluster() as cluster:
        clocks.append(cluster.simulation.clock)
        cluster.submit(builder.build(), {"topology.workers": 2})
        reader = LocalReader(cluster.topology().store)

        def look() -> StoreSnapshot:
            return StoreSnapshot(
                {owner: Progress.decode(data) for owner, data in reader.progress().items()},
                reader.backlog(),
            )

        for number in range(2000):
            spout.feed([number])
        cluster.advance(seconds=2)
        before = look()
        cluster.advance(seconds=3)
        found = examine("words", before, look(), 2, 2)
    slow = next(each for each in found.culprits if each.fault is Fault.SLOW)
    assert slow.component == "slow" and found.culprits[0] == slow


def test_readers_who_come_later_judge_as_those_who_were_there() -> None:
    spout, builder = FeederSpout(["value"]), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("picky", Picky()).shuffle_grouping("spout")
    with LocalCluster(is_lively=True) as cluster:
        cluster.submit(builder.build(), {"topology.max.retries": 0}, "words")
        watching = Sampler(cluster.source())
        said = []
        for minute in range(14):
            for number in range(10):
                spout.feed([number if minute == 1 else 1])
            cluster.advance(seconds=60)
            watching.step()
            coming = Sampler(cluster.source())
            coming.step()
            assert watching.topology("words").sentence == coming.topology("words").sentence
            said.append((coming.topology("words").sentence, coming.cluster().sentence))
    parked = [n for n, (own, _) in enumerate(said) if "picky: 1 input became a dead letter" in own]
    assert parked == [*range(1, 11)], said  # ten minutes
    assert all(own in of_cluster for own, of_cluster in said)
    assert said[9][0].endswith("(last 10 min)") and said[-1][0].startswith("words is done")


class Picky(BasicBolt):
    """Refuses one number."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup["value"] == 7:
            raise ValueError("seven")
