"""Checks what a notebook shows of values: read from a simulated cluster, escaped, without
scripts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib import import_module
from typing import Any

import pytest
from IPython.core.formatters import HTMLFormatter

from sparkstorm.api import TopologyBuilder
from sparkstorm.common.errors import NotAliveError
from sparkstorm.common.model.assignment import ExecutorId, WorkerSlot
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Cause, Failure, FailureGroup, FailureKind
from sparkstorm.common.model.requests import RebalancePlan
from sparkstorm.control_plane.insight.culprits import Culprit, Fault
from sparkstorm.control_plane.insight.health import Health
from sparkstorm.notebook.displays import BY_TYPE, live, register, sparkline, view_html
from sparkstorm.testing import FeederSpout
from tests.insight.watched import Split, Watched, watched

HOSTILE = "<script>alert(1)</script>&"


class Reader(HTMLParser):
    """Texts and tags of a piece of HTML; every tag that is opened must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        assert tag != "script" and not any(name.startswith("on") for name, _ in attrs)
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(value: object) -> Reader:
    """Return what IPython's own formatter makes of a value."""
    formatter = HTMLFormatter()
    register(formatter)
    html = formatter(value)
    assert html is not None
    return Reader(html)


@pytest.fixture(scope="module")
def run() -> Iterator[Watched]:
    with watched() as made:
        made.feed(100)
        made.feed(1, "bad word")
        yield made


def test_every_type_that_is_named_is_there() -> None:
    for module, name in BY_TYPE:
        assert isinstance(getattr(import_module(module), name), type)


def test_a_topology_is_its_graph_and_a_row_for_each_component() -> None:
    builder = TopologyBuilder()
    builder.set_spout("lines", FeederSpout(["line"]))
    builder.set_bolt("split", Split(), 3).shuffle_grouping("lines")
    found = shown(builder.build())
    assert {"svg", "table"} <= {*found.tags}
    assert "lines (shuffle)" in found.texts
    assert "bolt ×3" in found.texts


def test_a_running_topology_is_its_health_its_load_and_its_counts(run: Watched) -> None:
    view = run.sampler.topology("words")
    found = shown(view)
    assert f" {view.sentence}" in found.texts and {"101", "202", "205"} <= {*found.texts}
    idle, busy = (
        replace(
            view,
            components={
                **view.components,
                "count": replace(count, windows={**count.windows, "1m": replace(one, busy=each)}),
            },
        )
        for count in [view.components["count"]]
        for one in [count.windows["1m"]]
        for each in (0.0, 0.9)
    )
    assert 'fill-opacity="0.54"' in view_html(busy) and 'fill-opacity="0.54"' not in view_html(idle)
    assert "90%" in shown(busy).texts
    assert " it is away" in shown(replace(view, problem="it is away", is_well=False)).texts


def test_rates_are_lines_once_they_were_read_three_times(run: Watched) -> None:
    view = run.sampler.topology("words")
    assert "polyline" in view_html(view, {"pending": [1, None, 2, 3]})
    assert "polyline" not in view_html(view, {"pending": [1, 2, None]})
    assert 'points="0.0,23.0 60.0,12.0 120.0,1.0"' in sparkline([0.0, 5.0, 10.0])
    assert "0.0,23.0 " in sparkline([0.0, 0.0])


def test_a_cluster_and_a_simulated_one_are_their_topologies_and_hosts(run: Watched) -> None:
    view = run.sampler.cluster()
    for found in (shown(view), shown(run.cluster)):
        assert found.tags.count("table") == 2 and "words" in found.texts and "ACTIVE" in found.texts
    ill = replace(view, problems={"scheduler": (HOSTILE,)})
    assert f" scheduler: {HOSTILE}" in shown(ill).texts


def test_a_plan_names_what_moves_begins_ends_and_finds_no_slot() -> None:
    one, two = WorkerSlot("node-1", 6700), WorkerSlot("node-2", 6700)
    before = {ExecutorId(1, 1): one, ExecutorId(2, 3): one, ExecutorId(4, 4): one}
    plan = RebalancePlan(
        "w-1-1",
        before,
        {ExecutorId(1, 1): one, ExecutorId(2, 2): two, ExecutorId(4, 4): two},
        (ExecutorId(3, 3),),
        2,
        4,
    )
    found = shown(plan)
    assert " plan for w-1-1: 1 to 2 workers, 1 executor stays" in found.texts
    result = [text for text in found.texts if text in ("moves", "begins", "ends", "finds no slot")]
    assert result == ["begins", "moves", "ends", "finds no slot"]


def test_failures_and_letters_show_their_text_and_nothing_of_it_is_markup() -> None:
    failure = Failure(
        FailureKind.RAISED, HOSTILE, "count", 2, "host", "node-1:6700", 1_000, f"File {HOSTILE}"
    )
    letter = DeadLetter(failure, "lines", 1, "default", ("word",), (HOSTILE,), 4)
    for value in (failure, FailureGroup(Cause("count", HOSTILE, "a.py:1"), 3, failure), letter):
        found = shown(value)
        assert HOSTILE in found.texts
        assert f"File {HOSTILE}" in found.texts
        assert "traceback" in found.texts
    assert repr(HOSTILE) in shown(letter).texts
    assert any("given up after 4 tries" in each for each in shown(letter).texts)


def test_a_health_record_is_its_sentence_and_what_is_at_fault() -> None:
    culprits = (Culprit(Fault.SLOW, "count", "count is 99% busy"),)
    found = shown(Health("w", "w does not run well", culprits, (), (), None, {}, 1, 1, ()))
    assert " w does not run well" in found.texts
    assert "count is 99% busy" in found.texts
    assert "slow" in found.texts


class Counted:
    """A value that is shown three times, and is gone then."""

    looks = 0

    def html(self) -> str:
        self.looks += 1
        if self.looks > 3:
            raise NotAliveError("words-1 is <gone>")
        return f"<p>{self.looks}</p>"


class Place:
    """Where IPython shows a value again."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def update(self, html: Any) -> None:
        self.shown.append(html.data)


def test_a_value_is_shown_again_in_its_place_until_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, pauses = Place(), list[float]()

    def display(html: Any, *, display_id: bool) -> Place:
        place.update(html)
        return place

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setitem(BY_TYPE, (Counted.__module__, "Counted"), Counted.html)
    live(Counted(), seconds=10, every=2.5, pause=pauses.append)
    assert place.shown[:3] == ["<p>1</p>", "<p>2</p>", "<p>3</p>"]
    assert "words-1 is &lt;gone&gt;" in place.shown[3]
    assert len(place.shown) == 4 and pauses == [2.5] * 3

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    place.shown.clear()
    live(Counted(), pause=interrupt)
    assert place.shown == ["<p>1</p>"]
