"""Pictures of a scene and of a difference: every port, whose it is, and what became of each
executor; names do no harm.
"""

import math
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

from sparkstorm.extensions.laboratory import Scene, generate
from sparkstorm.notebook.bars import bars
from sparkstorm.notebook.scene_map import compare_maps, difference_map, scene_map
from sparkstorm.notebook.svg import Svg

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn: Svg) -> list[str]:
    root = ElementTree.fromstring(drawn.text)
    assert (root.get("width"), root.get("height")) == (str(drawn.width), str(drawn.height))
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def tips(drawn: Svg) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(drawn.text).iter(f"{SVG}title")]


def placed() -> Scene:
    return generate(num_nodes=4, num_topologies=2, executors_each=12, workers_each=3).scheduled(
        "default"
    )


def test_a_scene_shows_every_port_with_its_topologys_colour_and_number_of_executors() -> None:
    scene = replace(placed(), dead_ports={"node-00003": (6703,)}, blacklisted_hosts=("host-00002",))
    drawn = scene_map(scene, "now")
    words = texts(drawn)
    assert words[0] == "now" and words.count("6700") == 4 and words.count("4") == 6
    assert "dead" in words and "dead port" in words and "host-00002, blacklisted" in words
    assert "topology-00001 on node-00001:6701: 4 executors" in tips(drawn)
    # three workers and the legend
    assert drawn.text.count('fill="#0072b2"') == drawn.text.count('fill="#e69f00"') == 4


def test_a_difference_tells_what_was_kept_moved_added_and_removed() -> None:
    before = placed()
    after = before.without("node-00001").scheduled("default")
    found = tips(difference_map(before, after))
    assert "node-00001:6700: 4 moved away" in found and "node-00000:6700: 4 kept" in found
    assert sum("moved here" in each for each in found) >= 1
    empty = replace(before, assignments={})
    assert sum("added" in each for each in tips(difference_map(empty, before))) == 6
    assert sum("removed" in each for each in tips(difference_map(before, empty))) == 6
    words = texts(difference_map(before, after))
    assert "gone" in words
    result = words[-6:-1]
    assert result == ["kept", "moved here", "added", "moved away", "removed"]


def test_names_are_escaped_and_large_scenes_are_cut() -> None:
    scene = generate(120, 1, 3, 1, slots_per_node=40)
    odd = replace(
        scene, supervisors=(replace(scene.supervisors[0], host="<b>&"), *scene.supervisors[1:])
    )
    words = texts(scene_map(odd, "<i>"))
    assert words[0] == "<i>" and "<b>&" in words
    assert "… and 20 supervisors more" in words and "+16" in words


def test_maps_of_schedulers_mark_what_differs_from_the_first() -> None:
    scene = generate(8, 3, 18, 4, seed=7)
    alike = compare_maps(scene, ["default", "even"]).text
    apart = compare_maps(scene, ["default", "resource-aware"], columns=1)
    assert 'stroke-width="3"' not in alike and 'stroke-width="3"' in apart.text
    assert apart.height > apart.width / 2 and apart.text.count("<svg") == 5


def test_bars_have_a_number_or_a_dash_for_each_row() -> None:
    for none in (None, math.nan, math.inf):
        rows: list[dict[str, Any]] = [{"name": "one", "cost": 2.0}, {"name": "two", "cost": none}]
        drawn = bars(rows, "name", ["cost"], "costs").text
        assert drawn.count("<rect") == 2 and ">2</text>" in drawn and ">-</text>" in drawn
