"""Tells what the picture of a cluster shows: every slot, every executor, what moved, who is gone;
and that names do no harm.
"""

from xml.etree import ElementTree

from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.control_plane.scheduling.records import ComponentView, SupervisorView, TopologyView
from sparkstorm.extensions.laboratory import Scene, generate
from sparkstorm.notebook.slot_map import slot_map
from sparkstorm.notebook.svg import Svg

SVG = "{http://www.w3.org/2000/svg}"


def parse(drawn: Svg) -> ElementTree.Element:
    root = ElementTree.fromstring(drawn.text)
    assert (root.get("width"), root.get("height")) == (str(drawn.width), str(drawn.height))
    return root


def texts(drawn: Svg) -> list[str]:
    return [each.text or "" for each in parse(drawn).iter(f"{SVG}text")]


def tips(drawn: Svg) -> list[str]:
    return [each.text or "" for each in parse(drawn).iter(f"{SVG}title")]


def placed() -> Scene:
    return generate(num_nodes=4, num_topologies=2, executors_each=20, workers_each=3).scheduled(
        "default"
    )


def test_every_slot_and_every_executor_is_there() -> None:
    scene = placed()
    drawn = slot_map(scene, title="now")
    words = texts(drawn)
    assert words[0] == "now" and [each for each in words if each.startswith("node-")] == [
        each.id for each in scene.supervisors
    ]
    assert sum(" · " in each for each in words) == 16
    assert sum(each.endswith("free") for each in words) == 10
    assert len(tips(drawn)) == 40


def test_what_moved_is_marked_and_who_is_gone_stays_in_the_picture() -> None:
    before = placed()
    after = before.without("node-00001").scheduled("default")
    drawn = slot_map(after, before)
    lost = {
        slot
        for rows in before.assignments.values()
        for slot in rows.values()
        if slot.node == "node-00001"
    }
    num_lost = sum(slot in lost for rows in before.assignments.values() for slot in rows.values())
    assert num_lost > 0 and sum(each.endswith("(moved)") for each in tips(drawn)) == num_lost
    assert len(tips(drawn)) == 40 + num_lost
    assert texts(drawn).count("gone") == 1
    assert "moved" in texts(drawn)


def test_workers_assigned_to_a_supervisor_that_is_gone_are_shown_there() -> None:
    before = placed()
    scene = Scene(before.supervisors[1:], before.topologies, before.assignments, {})
    drawn = slot_map(scene)
    assert texts(drawn).count("gone") == 1 and len(tips(drawn)) == 40


def test_heartbeats_are_told_by_dots_with_their_words() -> None:
    scene = placed()
    slots = sorted({slot for rows in scene.assignments.values() for slot in rows.values()})
    drawn = slot_map(
        scene, states={slots[0]: "RUNNING", slots[1]: "FAILED", slots[2]: "WAITING_FOR_BLOB"}
    )
    assert {"RUNNING", "FAILED", "WAITING_FOR_BLOB"} <= set(tips(drawn))
    assert {"running", "failed", "waiting for blob"} <= set(texts(drawn))
    colors = {each.get("fill") for each in parse(drawn).iter(f"{SVG}circle")}
    assert len(colors) == 3


def test_names_cannot_break_the_drawing() -> None:
    nasty = "<script>alert('&\"')</script>"
    parts = (
        ComponentView(nasty, "bolt", (ExecutorId(1, 3),)),
        ComponentView("__acker", "system", (ExecutorId(4, 4),)),
    )
    topology = TopologyView("t-1-1", nasty, parts)
    slot = WorkerSlot(nasty, 1)
    scene = Scene(
        (SupervisorView(nasty, nasty, (1,)),),
        (topology,),
        {"t-1-1": dict.fromkeys(topology.executors, slot)},
        {},
    )
    drawn = slot_map(scene, title=nasty)
    assert "<script" not in drawn.text and nasty in texts(drawn)
    assert "3" in texts(drawn)  # tasks of an executor that has several


def test_long_rows_and_full_slots_are_cut_and_say_so() -> None:
    many = generate(num_nodes=100, num_topologies=1, executors_each=100, workers_each=1).scheduled(
        "default"
    )
    words = texts(slot_map(many))
    assert "+58" in words and "… and 40 supervisors more" in words


def test_an_empty_cluster_has_a_picture_too() -> None:
    assert texts(slot_map(Scene((), (), {}, {}), title="nobody")) == ["nobody"]
