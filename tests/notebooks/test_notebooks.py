"""Tells that the notebooks run from top to bottom on an embedded cluster and show what they
promise. They are stored with their outputs (`python -m tests.notebooks`).
"""

import asyncio
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest
from nbclient import NotebookClient

_read: Any = nbformat.read  # has no types
FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


_MOST_BYTES = 250_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_its_outputs(path: Path) -> None:
    notebook = _read(path, 4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert notebook.cells[0].cell_type == "markdown"
    assert any(cell.outputs for cell in cells)
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < _MOST_BYTES
    assert str(FOLDER.parent) not in text and "/tmp/" not in text and "Traceback" not in text


def run(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Outputs of a notebook's cells; a cell that raises fails the test with its traceback."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    notebook = _read(FOLDER / f"{name}.ipynb", 4)
    client = NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    )
    # `execute` keeps its event loop, and that loop's sockets, for the next call
    asyncio.run(client.async_execute())
    return [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]


@pytest.mark.sampled
@pytest.mark.system
@pytest.mark.filterwarnings("default")  # what Jupyter's libraries warn of is not ours
def test_live_assignments_shows_a_rebalance_and_a_lost_supervisor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    outputs = run("live_assignments", monkeypatch)
    assert list(tmp_path.glob("sparkstorm-*")) == []
    pictures = [
        output.data["image/svg+xml"]
        for output in outputs
        if "image/svg+xml" in output.get("data", {})
    ]
    first, rebalanced, survived, line = ["".join(picture) for picture in pictures]
    for picture in pictures:
        ElementTree.fromstring("".join(picture))
    assert line.count(": version ") >= 3 and line.count("words, RUNNING") >= 9
    assert (first.count("(moved)"), first.count(">gone<")) == (0, 0)
    assert first.count("<title>RUNNING") == 3
    assert rebalanced.count("(moved)") == 7, (
        "of nine executors that are new or elsewhere, two have the tasks that were there"
    )
    assert rebalanced.count("<title>RUNNING") == 6
    assert survived.count(">gone<") == 1
    assert 0 < survived.count("(moved)") < 9
    assert survived.count("<title>RUNNING") == 6
    tables = [
        output.data["text/plain"] for output in outputs if "text/html" in output.get("data", {})
    ]
    said = "".join(
        output.text
        for output in outputs
        if output.output_type == "stream" and output.name == "stdout"
    )
    executed, parked = re.search(r"([\d,]+) tuples executed, ([\d,]+) parked", said).groups()  # type: ignore[union-attr]
    assert int(executed.replace(",", "")) > 1000 and parked == "0"
    titles = ["topologies", "supervisors", "slots", "executors", "tasks", "tree below /", "moved"]
    assert [table.splitlines()[0] for table in tables][:7] == titles
    assert len(tables[6].splitlines()[2:]) == 7


@pytest.mark.sampled
def test_compare_schedulers_shows_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = run("compare_schedulers", monkeypatch)
    maps, costs, sweep, loss, difference = (
        "".join(output.data["image/svg+xml"])
        for output in outputs
        if "image/svg+xml" in output.get("data", {})
    )
    for picture in (maps, costs, sweep, loss, difference):
        ElementTree.fromstring(picture)
    assert maps.count("<svg") == 13 and 'stroke-width="3"' in maps  # six maps in their places
    assert "crossing nodes" in sweep and "removed" in difference


@pytest.mark.sampled
def test_placement_by_traffic_shows_before_plan_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = run("placement_by_traffic", monkeypatch)
    before, plan, after, crossing, events = (
        "".join(output.data["image/svg+xml"])
        for output in outputs
        if "image/svg+xml" in output.get("data", {})
    )
    for picture in (before, plan, after, crossing, events):
        ElementTree.fromstring(picture)
    moves = int(re.search(r"the plan: (\d+) executors move", plan).group(1))  # type: ignore[union-attr]
    assert moves > 0 and "moved here" in plan and before != after
    sent = re.findall(r">([\d.]+e\+\d+)<", crossing)
    # between workers, then between nodes, of default, resource-aware and traffic
    assert len(sent) == 6 and float(sent[5]) < float(sent[4]) < float(sent[3])
    tables = htmls_of(outputs)
    assert "of its traffic is with executors of" in tables[1] and "lost node-00002" in tables[3]
    assert "% measured" in tables[4]


def htmls_of(outputs: list[Any]) -> list[str]:
    return [
        "".join(output.data["text/html"])
        for output in outputs
        if "text/html" in output.get("data", {})
    ]


def said_by(outputs: list[Any]) -> str:
    return "".join(
        output.text
        for output in outputs
        if output.output_type == "stream" and output.name == "stdout"
    )


@pytest.mark.sampled
@pytest.mark.filterwarnings("default")
def test_first_stream_counts_each_word_once_though_a_worker_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = run("first_stream", monkeypatch)
    graph, cluster, running = htmls_of(outputs)
    assert "<svg" in graph and "by word" in graph and "words" in cluster and "ACTIVE" in cluster
    assert "500 lines, 1000 words, 500 trees acked" in said_by(outputs)
    assert "words is done" in running and ">1000</td>" in running


@pytest.mark.sampled
@pytest.mark.filterwarnings("default")
def test_failing_tuple_shows_the_cause_and_that_the_corrected_bolt_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = run("failing_tuple", monkeypatch)
    cause, letter = htmls_of(outputs)
    for html in (cause, letter):
        assert "invalid literal for int()" in html and "<details>" in html
    assert "&#x27;free&#x27;" in letter and "given up after" in letter
    assert "old:  ValueError" in said_by(outputs) and "new:  None" in said_by(outputs)


@pytest.mark.sampled
@pytest.mark.filterwarnings("default")
def test_history_to_live_has_no_gap_and_no_duplicate_at_the_seam(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = run("history_to_live", monkeypatch)
    graph, *_, comparison = htmls_of(outputs)
    assert "<svg" in graph and "by user" in graph
    assert "150 lines read live, difference 0" in said_by(outputs)
    tables = [
        output.data["text/plain"]
        for output in outputs
        if "history and live" in output.get("data", {}).get("text/plain", "")
    ]
    rows = [line.split() for line in tables[0].splitlines()[2:]]
    assert len(rows) == 7
    assert all(int(row[1]) + int(row[2]) == int(row[3]) and row[4] == "0" for row in rows)
    assert "history, then live" in comparison


@pytest.mark.sampled
@pytest.mark.filterwarnings("default")
def test_windows_and_late_data_are_the_same_live_and_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = run("windows_and_late_data", monkeypatch)
    said = said_by(outputs)
    assert "2 of 11 rows are late: [('bob', 8000), ('bob', 13000)]" in said
    assert "windows: 6 live, 6 replayed, 6 of them the same, 2 late" in said
    assert "sessions: 4 live, 4 replayed, 4 of them the same, 2 late" in said
    (picture,) = (
        "".join(output.data["image/svg+xml"])
        for output in outputs
        if "image/svg+xml" in output.get("data", {})
    )
    ElementTree.fromstring(picture)
    # 11 rows, two of them late, and the legend has one of each kind
    assert picture.count("<circle") == 13 and picture.count("#d55e00") == 3
    tables = [
        output.data["text/plain"]
        for output in outputs
        if "sums of" in output.get("data", {}).get("text/plain", "")
    ]
    assert next(line.split() for line in tables[0].splitlines()[2:]) == ["ann", "0", "10"]
    assert [line.split() for line in tables[1].splitlines()[2:]][-1] == ["bob", "4", "12"]


@pytest.mark.sampled
@pytest.mark.filterwarnings("default")
def test_what_is_it_doing_finds_the_task_with_most_of_the_work_and_cures_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = run("what_is_it_doing", monkeypatch)
    assert "orders is done" in htmls_of(outputs)[0] and "<svg" in htmls_of(outputs)[0]
    tables = [
        output.data["text/plain"]
        for output in outputs
        if "tasks of count" in output.get("data", {}).get("text/plain", "")
    ]
    shares = [
        sorted(int(line.split()[-1].rstrip("%")) for line in table.splitlines()[2:])
        for table in tables
    ]
    assert shares[:2] == [[2, 2, 2, 92]] * 2 and shares[2][-1] <= 92 // 2
    assert "the same totals: True" in said_by(outputs)
    shown = htmls_of(outputs)[-1]  # of `live`: one output, as it was shown last
    assert "topologies" in shown and "orders is done" in shown and len(htmls_of(outputs)) == 5
