"""Every example on the data that it makes, against a plain loop over the same data."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkstorm.common.config import merge
from sparkstorm.driver.job_file import make_topology, read_job_file
from sparkstorm.notebook.topology_graph import graph_of, picture
from sparkstorm.replay import replay_locally
from sparkstorm.testing import complete_topology

FOLDER = Path(__file__).parents[1] / "examples"
MAKES_DATA = {"access_logs", "changes", "clicks", "fraud", "iot", "iot_stats", "payments"}
CHECKED = MAKES_DATA | {"orders", "shout"}


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
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == CHECKED | {"test_shout"}


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


@pytest.mark.parametrize("name", sorted(MAKES_DATA))
def test_the_job_of_an_example_reads_what_its_file_has_made(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    made = sum(len(file.read_text().splitlines()) for file in tmp_path.rglob("*.*l*"))
    # The tutorial has a module of this name too, and its test may have run in this process.
    monkeypatch.delitem(sys.modules, name, raising=False)
    topology, modules = make_topology(read_job_file(str(FOLDER / f"{name}.yaml")))
    done = complete_topology(topology)
    for module in modules:
        monkeypatch.delitem(sys.modules, module)
    assert made >= 3000 and done.dead_letters == []
    assert made == sum(len(done[spout.id]) for spout in topology.spouts)


def test_the_test_of_readmes_example_passes_where_it_lies() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "examples/test_shout.py"],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("orders", monkeypatch)
    done = complete_topology(module.build(rows_per_second=1000, rows=2500))
    wanted: Counter[str] = Counter()
    alerts: Counter[str] = Counter()
    for number in range(2500):
        customer, amount = module.text_of(number).split(":")
        if amount:
            wanted[customer] += int(amount)
            alerts[customer] += int(amount) >= module.LARGE
    assert done.state("sum") == wanted and done.state("alerts") == +alerts
    assert len(done.dead_letters) == 2


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
        times = sorted(time_ms for name, _, time_ms in clicks if name == user)
        begin = 0
        for index in range(1, len(times) + 1):
            if index == len(times) or times[index] - times[index - 1] >= module.GAP_S * 1000:
                wanted.append((user, index - begin, times[begin], times[index - 1]))
                begin = index
    assert len(wanted) > 20 and sorted(done["sessions"]) == sorted(wanted)


def test_fraud(monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("fraud", monkeypatch)
    payments, phones = module.make(90)
    done = complete_topology(module.build(), {"payments": payments, "phones": phones})
    ids: dict[str, set[int]] = {}
    for number, card, _, country, time_ms in payments:
        window = time_ms // (module.WINDOW_S * 1000)
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
        len(set(blocked)) == module.MOST and set(blocked) <= ids[card]
        for card, blocked in done["block"]
    )


def test_payments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    module = example("payments", monkeypatch)
    module.main()
    done = complete_topology(module.build())
    orders, payments = module.rows()
    paid_by_order = {order: (paid, method, at_ms) for order, paid, method, at_ms in payments}
    with closing(sqlite3.connect("shop.db")) as db:
        country_by_user = dict(db.execute("SELECT name, country FROM users"))
        table = sorted(db.execute("SELECT * FROM paid_orders"))
    wanted = []
    for order, user, amount, at_ms in orders:
        paid, method, paid_ms = paid_by_order.get(order, (None, None, None))
        score = 0.0 if paid is None else 0.5 - abs(1 - paid / amount)
        country = country_by_user.get(user)
        wanted.append((order, user, amount, at_ms, paid, method, paid_ms, country, score))
    assert table == sorted(wanted)
    files = pa.concat_tables(map(pq.read_table, sorted(Path("by_day").rglob("*.parquet"))))
    assert sorted(row["order_id"] for row in files.to_pylist()) == sorted(row[0] for row in wanted)
    assert len({path.parent.name for path in Path("by_day").rglob("*.parquet")}) > 5
    odd = {row[0] for row in wanted if row[-1] < module.ODD}
    assert odd and {order for order, _, _ in done["alerts"]} == odd
    sources = {"orders": orders, "payments": payments}
    assert sorted(replay_locally(module.build(), sources)["score"]) == sorted(wanted)


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
    for op, number, name, price, _, time_ms in once:
        versions[number] += 1
        wanted.append((number, versions[number], op, name, price, time_ms))
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


def test_iot_stats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = example("iot_stats", monkeypatch)
    messages = module.make(700)
    done = complete_topology(module.build(folder=str(tmp_path / "charts")), {"messages": messages})
    values: dict[tuple[str, str], list[tuple[int, float]]] = {}
    senders: dict[tuple[str, int], set[str]] = {}
    for sensor, time_ms, *row in messages:
        for kind, value in zip(module.KINDS, row, strict=True):
            if value is not None:
                values.setdefault((kind, sensor), []).append((time_ms, value))
                senders.setdefault((kind, time_ms // 60_000), set()).add(sensor)
    wanted = []
    for (kind, sensor), readings in values.items():
        for last in range(module.BLOCK, len(readings) + 1, module.BLOCK):
            block = [value for _, value in readings[last - module.BLOCK : last]]
            wanted.append((kind, "average", sensor, readings[last - 1][0], sum(block) / len(block)))
        # as RIoTBench has it: error and gain follow from the noises alone, the same for all sensors
        estimate = readings[0][1]
        error = 1.0
        filtered = []
        for _, value in readings:
            gain = (error + module.PROCESS_NOISE) / (
                error + module.PROCESS_NOISE + module.SENSOR_NOISE
            )
            error = gain * module.SENSOR_NOISE
            estimate = (1 - gain) * estimate + gain * value
            filtered.append(estimate)
        for last in range(module.TRAIN, len(readings) + 1):
            slope, begin = np.polyfit(range(module.TRAIN), filtered[last - module.TRAIN : last], 1)
            value = begin + slope * module.TRAIN
            wanted.append((kind, "prediction", sensor, readings[last - 1][0], value))
    found_points = sorted([*done["average"], *done["predict"]])
    assert [point[:4] for point in found_points] == [point[:4] for point in sorted(wanted)]
    assert len(wanted) > 500
    result = [point[4] for point in found_points]
    assert result == pytest.approx([point[4] for point in sorted(wanted)])
    # an estimate: two and a half standard errors
    about = {(kind, time_ms // 60_000): value for kind, _, _, time_ms, value in done["distinct"]}
    assert about.keys() == senders.keys() and len(about) == len(done["distinct"]) >= 9
    assert all(abs(about[key] / len(senders[key]) - 1) < 0.4 for key in about)
    drawn: Counter[tuple[str, str, int]] = Counter()
    lines: dict[tuple[str, str, int], set[str]] = {}
    for kind, statistic, sensor, time_ms, _ in [*wanted, *done["distinct"]]:
        drawn[kind, statistic, time_ms // 300_000] += 1
        lines.setdefault((kind, statistic, time_ms // 300_000), set()).add(sensor)
    shown = sorted((kind, statistic, points) for kind, statistic, points, _ in done["charts"])
    assert shown == sorted(
        (kind, statistic, points) for (kind, statistic, _), points in drawn.items()
    )
    elements = sum(len(ElementTree.fromstring(svg)) for *_, svg in done["charts"])
    assert elements == sum(map(len, lines.values()))
    [file] = (tmp_path / "charts").glob("*.jsonl")
    published = [tuple(json.loads(line).values()) for line in file.read_text().splitlines()]
    assert sorted(published) == sorted(done["charts"])
