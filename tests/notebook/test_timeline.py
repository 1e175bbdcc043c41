"""The timeline of slots: bars of workers, marks of versions, gaps of slots that nobody offers."""

from xml.etree import ElementTree

from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.notebook.timeline import Moment, timeline

A = WorkerSlot("a", 6700)
B = WorkerSlot("b", 6700)
BOTH = frozenset({A, B})


def test_a_bar_lasts_while_a_worker_is_the_same_and_a_version_has_one_mark() -> None:
    picture = timeline(
        [
            Moment(0, {A: ("words", "")}, BOTH, {"words": 1}),
            Moment(1_000, {A: ("words", "RUNNING")}, BOTH, {"words": 1}),
            Moment(2_000, {A: ("words", "RUNNING")}, BOTH, {"words": 1}),
            Moment(3_000, {B: ("words", "RUNNING")}, frozenset({B}), {"words": 2}),
            Moment(4_000, {B: ("words", "RUNNING")}, frozenset({B}), {"words": 2}),
        ],
        "moved",
    ).text
    ElementTree.fromstring(picture)
    assert picture.count("a:6700: words, no heartbeat") == 1
    assert picture.count("a:6700: words, RUNNING") == 1
    assert picture.count("b:6700: words, RUNNING") == 1
    assert picture.count("version 1 of") == 1 and picture.count("version 2 of") == 1
    assert picture.count('stroke="#c9c9c9"/></') == 0 and "moved" in picture
    widths = [float(part.split('"')[0]) for part in picture.split(' width="')[3:]]
    assert max(widths) == 310.0, "two of four seconds of 620 points"


def test_no_look_is_an_empty_picture() -> None:
    ElementTree.fromstring(timeline([]).text)
