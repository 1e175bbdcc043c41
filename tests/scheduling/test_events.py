"""Sequences of rounds: events happen in their round, and what a scheduler remembers is kept."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.control_plane.scheduling.even import EvenScheduler
from sparkstorm.control_plane.scheduling.records import Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView
from sparkstorm.extensions.laboratory import (
    Back,
    Killed,
    Lost,
    Moment,
    Rates,
    Scene,
    Submitted,
    generate,
    play,
)

NODE = "node-00001"


@pytest.fixture
def scene() -> Scene:
    """Two topologies that `default` has placed on four nodes."""
    made = generate(4, 2, 10, 3, seed=2, shapes=["etl", "star"], cluster="racked")
    return made.scheduled("default")


def changes(moments: list[Moment]) -> list[tuple[float, int, int, int]]:
    keys = ("at_s", "moved", "placed", "unplaced")
    found = [tuple(moment.row[key] for key in keys) for moment in moments]
    return [each for each in found if any(each[1:])]


def test_a_lost_node_is_replaced_and_comes_back_empty(scene: Scene) -> None:
    lost = sum(
        slot.node == NODE for placed in scene.assignments.values() for slot in placed.values()
    )
    moments = play(scene, "default", {15: Lost(NODE), 31: Back(NODE)}, 60)
    assert [moment.at_s for moment in moments] == [0, 10, 20, 30, 40, 50, 60]
    assert changes(moments) == [(20, 0, lost, 0)] and lost > 0
    assert moments[2].row["events"] == f"lost {NODE}" and moments[4].events == (Back(NODE),)
    sizes = [len(moment.scene.supervisors) for moment in moments]
    assert sizes == [4, 4, 3, 3, 4, 4, 4]


def test_the_blacklist_remembers_a_node_that_comes_and_goes(scene: Scene) -> None:
    flapping: dict[float, Any] = {}
    for at in (10, 30, 50):
        flapping |= {at: Lost(NODE), at + 10: Back(NODE)}
    conf = {
        "blacklist.scheduler.tolerance.count": 3,
        "blacklist.scheduler.tolerance.time.secs": 300,
        "blacklist.scheduler.resume.time.secs": 600,
        "nimbus.monitor.freq.secs": 10,
    }
    new = Submitted(generate(4, 3, 8, 4, seed=5, shapes="chain").topologies[2])
    events = flapping | {70: new}
    found = play(scene, "blacklist", events, 100, conf)
    used = {slot.node for slot in found[-1].scene.assignments["topology-00002"].values()}
    assert NODE not in used
    plain = play(scene, "default", events, 100, conf)
    used = {slot.node for slot in plain[-1].scene.assignments["topology-00002"].values()}
    assert NODE in used


def test_a_topology_is_placed_when_it_is_submitted_and_its_slots_are_free_when_it_is_killed(
    scene: Scene,
) -> None:
    new = generate(4, 3, 8, 2, seed=5, shapes="chain").topologies[2]
    moments = play(scene, "default", {10: Submitted(new), 20: Killed("topology-00000")}, 30)
    assert changes(moments) == [(10, 0, len(new.executors), 0)]
    result = [sorted(moment.scene.assignments) for moment in moments[1:3]]
    assert result == [["topology-00000", "topology-00001", new.id], ["topology-00001", new.id]]
    assert moments[2].row["bytes"] < moments[1].row["bytes"]


def test_measurements_follow_a_change_of_rates_over_their_window(scene: Scene) -> None:
    seen: list[float] = []

    class Looking:
        """Notes the rates that it sees."""

        def schedule(self, topologies: Any, _cluster: Any) -> None:
            seen.append(topologies["topology-00000"].measured.flows[0].rows_per_s)

    from sparkstorm.extensions.laboratory.events import _Play

    sequence = _Play(scene, "default", None, "default")
    sequence._scheduler = Looking()  # type: ignore[assignment]
    moments = list(sequence.rounds({100: Rates("topology-00000", 3.0)}, range(0, 600, 100)))
    base = seen[0]
    # the window is of 300 s
    factors = [1, 1, 5 / 3, 7 / 3, 3, 3]
    assert [rate / base for rate in seen] == pytest.approx(factors)
    flows = [moment.scene.topologies[0].measured for moment in moments]
    assert flows[1] is not None and flows[1].flows[0].rows_per_s == pytest.approx(3 * base)


@pytest.mark.slow
def test_plans_of_the_traffic_scheduler_are_kept_and_judged(scene: Scene) -> None:
    conf = {"traffic.scheduler.period.secs": 300, "traffic.scheduler.search.budget": 1000}
    moments = play(scene, "traffic", {}, 700, conf, every_s=50)
    assert moments[0].row["moved"] > 0, "it has stood for an hour"
    assert all(moment.row["moved"] == 0 for moment in moments[1:6])
    first, last = (moments[at].scene.reason_by_topology["topology-00000"] for at in (1, -1))
    assert "not measured yet" in first and "% measured" in last
    assert moments[-1].row["bytes_between_nodes"] < 0.5 * _bytes(scene)


def _bytes(scene: Scene) -> float:
    return float(play(scene, "default", {}, 0)[0].row["bytes_between_nodes"])


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Lost("node-9"), "there is no supervisor 'node-9', only node-00000"),
        (Back(NODE), f"'{NODE}' was not lost: it cannot come back"),
        (Killed("t"), "there is no topology 't', only topology-00000, topology-00001"),
        (Rates("t", 2.0), "there is no topology 't'"),
        (Rates("topology-00000", -1.0), "a factor of 0 or more is needed, not -1.0"),
        (Rates("topology-00000", "2"), "a factor of 0 or more is needed, not '2'"),  # type: ignore[arg-type]
        (Submitted(generate(1, 1, 3, 1).topologies[0]), "already a topology 'topology-00000'"),
        ("lost", "events: 'lost' at 5 s is no Lost, Back, Submitted"),
        ([Lost(NODE), None], "events: None at 5 s is no Lost"),
        (Lost, "at 5 s is no Lost"),
        (Submitted("t"), "Submitted at 5 s is of a TopologyView, not 't'"),  # type: ignore[arg-type]
        (Lost([NODE]), "Lost at 5 s is of an id, not ['node-00001']"),  # type: ignore[arg-type]
        (Back([NODE]), "Back at 5 s is of an id, not ['node"),  # type: ignore[arg-type]
        (Killed(["t"]), "Killed at 5 s is of an id, not ['t']"),  # type: ignore[arg-type]
    ],
)
def test_an_event_that_cannot_be_is_named(scene: Scene, event: Any, text: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        play(scene, "default", {5: event}, 10)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("at_s", "until_s", "every_s", "text"),
    [
        (5, 10, 0, "every_s: a number of seconds is needed, not 0"),
        (5, float("nan"), 10, "until_s: a number of seconds is needed, not nan"),
        (-5, 10, 10, "events: -5 is no second of the sequence"),
        (23, 25, 10, "events: 23 is behind the last round, at 20 s: raise until_s"),
        ("5", 10, 10, "events: '5' is no second of the sequence"),
        (5, "10", 10, "until_s: a number of seconds is needed, not '10'"),
        (5, 10, None, "every_s: a number of seconds is needed, not None"),
        (0.4, 0.3, 0.1, "events: 0.4 is behind the last round, at 0.3 s"),
    ],
)
def test_a_time_that_cannot_be_is_named(
    scene: Scene, at_s: float, until_s: float, every_s: float, text: str
) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        play(scene, "default", {at_s: Lost(NODE)}, until_s, every_s=every_s)
    assert text in str(caught.value)


def test_settings_that_are_none_are_named(scene: Scene) -> None:
    with pytest.raises(InvalidConfigError, match="conf: a mapping of settings is needed, not 'x'"):
        play(scene, "default", {}, 10, "x")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match="conf: a mapping of settings is needed, not 5"):
        scene.scheduled("default", 5)  # type: ignore[arg-type]


def test_events_are_given_by_second(scene: Scene) -> None:
    sentence = r"events: a mapping by second is needed, .* not None"
    with pytest.raises(InvalidConfigError, match=sentence):
        play(scene, "default", None, 10)  # type: ignore[arg-type]


def test_rounds_are_at_exact_multiples_of_their_period(scene: Scene) -> None:
    """0.3 / 0.1 is below 3 as floats."""
    moments = play(scene, "default", {0.3: Lost(NODE)}, until_s=0.3, every_s=0.1)
    assert [moment.at_s for moment in moments] == [0.0, 0.1, 0.2, 0.3]
    assert moments[-1].events == (Lost(NODE),)


class Counting(EvenScheduler):
    """Notes how many executors lack a place before each round."""

    missing: ClassVar[list[int]] = []

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Count, and place them."""
        self.missing.append(sum(cluster.placement(name).num_missing for name in topologies))
        super().schedule(topologies, cluster)


def test_a_requested_rebalance_is_carried_out_once(scene: Scene) -> None:
    Counting.missing.clear()
    asked = scene.rebalanced("topology-00000", reassign=True)
    play(asked, f"{__name__}:Counting", {}, until_s=20)
    assert Counting.missing == [10, 0, 0]


def test_measurements_without_a_window_are_those_of_the_moment(scene: Scene) -> None:
    """A cluster file may leave the window out."""
    bare = tuple(
        replace(each, measured=replace(each.measured, window_ms=0))
        for each in scene.topologies
        if each.measured is not None
    )
    flows = [
        moment.scene.topologies[0].measured
        for moment in play(replace(scene, topologies=bare), "default", {}, until_s=10)
    ]
    assert flows[0] is not None and flows[1] is not None
    assert flows[0].flows == flows[1].flows
