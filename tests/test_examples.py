"""Every example on the data that it makes, against a plain loop over the same data."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.testing import complete_topology

FOLDER = Path(__file__).parents[1] / "examples"
CHECKED = {"access_logs", "clicks", "fraud", "iot"}


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_every_example_has_a_test_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == CHECKED


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
    events = module.make(300)
    done = complete_topology(module.build(), {"events": events})
    wanted = [
        (card, at)
        for card, kind, at in events
        if kind == "payment" and not any(c == card and k == "login" and 0 <= at - t < 60_000 for c, k, t in events)
    ]
    assert wanted and sorted(done["alarms"]) == sorted(wanted)


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
