"""Checks `sparkstorm top` by Textual's pilot, over a simulated cluster whose time stands still
between two looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from sparkstorm.cli.__main__ import main
from sparkstorm.cli.top import KEYS, Top, component_rows
from sparkstorm.control_plane.insight.records import ClusterReport
from sparkstorm.control_plane.insight.sampler import Sampler
from tests.insight.watched import Watched, watched


def shown(app: Top, part: str) -> str:
    return str(app.query_one(f"#{part}", Static).content)


def rows(app: Top, part: str) -> list[list[str]]:
    """Return the titles and the rows of a table, as texts."""
    table: DataTable[Any] = app.query_one(f"#{part}", DataTable)
    found = [[str(column.label) for column in table.ordered_columns]]
    return found + [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def piloted(app: Top, steps: Callable[[Pilot[None]], Awaitable[None]]) -> None:
    """Run the screen and give it the keys of some steps."""

    async def run() -> None:
        async with app.run_test(size=(120, 30)) as pilot:
            await pilot.pause()
            await steps(pilot)

    asyncio.run(run())


def test_the_screen_has_the_cluster_a_topology_and_the_keys_of_the_page() -> None:
    with watched() as run:
        run.feed(6_000)
        app = Top(run.sampler)

        async def steps(pilot: Pilot[None]) -> None:
            assert shown(app, "sentence").startswith("words is done: ")
            assert rows(app, "parts")[1][:2] == ["words", "ACTIVE"]
            assert rows(app, "parts")[1][6:] == ["2 of 2", "0", "0"]
            assert rows(app, "others") == [
                ["host", "slots", "used", "health"],
                ["host-node1", "4", "1", "ok"],
                ["host-node2", "4", "1", "ok"],
            ]
            await pilot.press("enter")
            assert rows(app, "parts")[0][:4] == ["component", "tasks", "emitted/s", "executed/s"]
            assert [each[0] for each in rows(app, "parts")[1:]] == ["count", "lines", "split"]
            result = [each[:2] for each in rows(app, "others")[1:]]
            assert result == [["node1:6700", "RUNNING"], ["node2:6700", "RUNNING"]]
            await pilot.press(*["right_square_bracket"] * 5)
            assert "[all]" in shown(app, "windows")
            expected = component_rows(run.sampler.topology("words"), "all").rows["count"]
            assert rows(app, "parts")[1][:4] == [*map(str, expected)][:4]
            assert rows(app, "parts")[1][7] == "0"
            await pilot.press("left_square_bracket", "question_mark")
            assert "[24h]" in shown(app, "windows")
            assert all(what in shown(app, "keys") for _, what in KEYS)
            await pilot.press("escape", "g", "c")
            assert shown(app, "keys") == "? keys  q quit" and rows(app, "parts")[0][0] == "topology"
            await pilot.press("q")

        piloted(app, steps)
        assert app.return_code == 0


def test_it_shows_each_new_sample_unless_it_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkstorm.cli.top._EVERY_S", 3_600.0)  # the test looks instead
    with watched() as run:
        samples = 0

        def sample() -> None:
            nonlocal samples
            samples += 1

        app = Top(run.sampler, "words", sample)

        async def steps(pilot: Pilot[None]) -> None:
            assert samples == 0 and shown(app, "sentence").startswith("words is done")
            run.feed(50)
            await looked(pilot)
            assert samples == 1 and shown(app, "sentence").startswith("words is done")
            await pilot.press("space")
            assert shown(app, "note").startswith("paused at ")
            run.feed(50, "a bad word")
            await looked(pilot)
            assert samples == 1 and shown(app, "sentence").startswith("words is done")
            await pilot.press("space")
            await looked(pilot)
            assert shown(app, "sentence").startswith("words does not run well: ")
            run.cluster.kill("words")
            run.pass_seconds(60)
            await looked(pilot)
            assert shown(app, "sentence").endswith("g c shows the cluster")

        async def looked(pilot: Pilot[None]) -> None:
            app._look()
            await app.workers.wait_for_complete()
            await pilot.pause()

        piloted(app, steps)


class Hostile(Sampler):
    """A read model whose names and sentences would draw on a terminal."""

    def cluster(self) -> ClusterReport:
        problems = {"a": ("\\x1b]0;t\\x07",)}
        found = replace(super().cluster(), sentence="[red]x[/red]\\x1b[2J", problems=problems)
        return replace(found, stale_since_ms=1_000, stale_reason="[b")


def test_what_others_write_is_text_and_a_store_that_is_away_is_named() -> None:
    with watched() as run:
        app = Top(hostile(run))

        async def steps(pilot: Pilot[None]) -> None:
            assert shown(app, "sentence") == "[red]x[/red]\\x1b[2J"
            assert shown(app, "note").endswith(": [b\nproblem (a): \\x1b]0;t\\x07")

        piloted(app, steps)


def hostile(run: Watched) -> Sampler:
    made = Hostile(run.cluster.source())
    made.step()
    return made


def test_without_textual_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sparkstorm.cli.top", None)
    assert main(["top"]) == 1
    assert "pip install 'sparkstorm[cli]'" in capsys.readouterr().err
