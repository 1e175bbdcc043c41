"""Every example on the data that it makes, against a plain loop over the same data."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from sparkstorm.config import merge
from sparkstorm.notebook.topology_graph import graph_of, picture
from sparkstorm.testing import complete_topology

FOLDER = Path(__file__).parents[1] / "examples"
CHECKED = {"access_logs", "changes", "clicks", "fraud", "iot"}


@pytest.fixture(scope="module", autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The threads of delta-rs, which the first call of a process starts and nothing ends."""
    deltalake.DeltaTable.create(
        str(tmp_path_factory.mktemp("delta")), pa.schema([("n", pa.int64())])
    ).to_pyarrow_table()


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_every_example_has_a_test_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == CHECKED


@pytest.mark.parametrize("name", sorted(CHECKED))
def test_the_picture_of_an_example_shows_it(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "access.log").touch()
    drawn = picture(graph_of(example(name, monkeypatch).build(), merge({})), name).text
    picture_of_it = FOLDER / f"{name}.svg"
    if "SPARKSTORM_DRAW" in os.environ:
        picture_of_it.write_text(f"{drawn}\n", encoding="utf-8")
    assert picture_of_it.read_text(encoding="utf-8") == f"{drawn}\n", (
        "SPARKSTORM_DRAW=1 python -m pytest tests/test_examples.py"
    )


def test_access_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = example("access_logs", monkeypatch)
    lines = module.make(300)
    (tmp_path / "access.log").write_text("\n".join(lines) + "\n")
    done = complete_topology(module.build([str(tmp_path / "access.log")]))
    statuses: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    bad = []
    for line in lines:
        words = line.split()
        if len(words) < 10:
            bad.append((line,))
            continue
        statuses[words[8]] += 1
        sizes[words[6]] += int(words[9])
    assert (done.state("by_status"), done.state("by_path")) == (statuses, sizes)
    assert bad and sorted(done.values("parse", "bad")) == sorted(bad)


def test_clicks(monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("clicks", monkeypatch)
    clicks = module.make(300)
    done = complete_topology(module.build(), {"clicks": clicks})
    wanted = []
    for user in {user for user, _, _ in clicks}:
        times = sorted(at for name, _, at in clicks if name == user)
        begin = 0
        for place in range(1, len(times) + 1):
            if place == len(times) or times[place] - times[place - 1] >= module.GAP_S * 1000:
                wanted.append((user, place - begin, times[begin], times[place - 1]))
                begin = place
    assert len(wanted) > 20 and sorted(done["sessions"]) == sorted(wanted)


def test_fraud(monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("fraud", monkeypatch)
    payments, phones = module.make(90)
    done = complete_topology(module.build(), {"payments": payments, "phones": phones})
    ids: dict[str, set[int]] = {}
    for number, card, _, country, at in payments:
        window = at // (module.WINDOW_S * 1000)
        seen = {
            where
            for name, where, when in phones
            if name == card and when // (module.WINDOW_S * 1000) == window
        }
        if seen - {country}:
            ids.setdefault(card, set()).add(number)
    wanted = {card for card, numbers in ids.items() if len(numbers) >= module.MOST}
    assert 3 < len(wanted) < 12 and sorted(card for card, _ in done["block"]) == sorted(wanted)
    assert all(
        len(set(found)) == module.MOST and set(found) <= ids[card] for card, found in done["block"]
    )


def test_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = example("changes", monkeypatch)
    changes = module.make(300)
    complete_topology(module.build(table=str(tmp_path / "products")), {"changes": changes})
    rows = pa.table(deltalake.DeltaTable(tmp_path / "products").to_pyarrow_table()).to_pylist()
    once = dict.fromkeys(changes)
    assert len(once) < len(changes) and len(rows) == len(once)
    versions: Counter[int] = Counter()
    database: dict[int, tuple[str, float]] = {}
    wanted = []
    for op, number, name, price, _, at in once:
        versions[number] += 1
        wanted.append((number, versions[number], op, name, price, at))
        if op == "d":
            del database[number]
        else:
            database[number] = (name, price)
    assert sorted(tuple(row.values()) for row in rows) == sorted(wanted)
    assert module.current(rows) == database and len(database) > 10


def test_iot(monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("iot", monkeypatch)
    readings = module.make(300)
    done = complete_topology(module.build(), {"readings": readings})
    last: dict[int, float] = {}
    wanted = []
    for sensor, number, celsius in dict.fromkeys(readings):
        if celsius is None or -40 <= celsius <= 60:
            last[sensor] = last.get(sensor) if celsius is None else celsius  # type: ignore[assignment]
            if last[sensor] is not None:
                wanted.append((sensor, f"site {sensor % 3}", number, last[sensor]))
    assert wanted and sorted(done["annotate"]) == sorted(wanted)
