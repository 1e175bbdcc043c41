"""The example over archives: the numbers of a plain loop, live with workers that die, and late
files where they belong.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.windows_jars import DAY_MS, LAG_DAYS, build, files_of, oldest_first, spark_jars
from sparkstorm.testing import LocalCluster


def make_jars(folder: Path) -> list[str]:
    """Three archives: one of one day, one of many days out of order, one with much older files."""
    contents = {
        "a.jar": [(f"A{n}.class", (2020, 1, 1, 0, n, 0)) for n in range(5)],
        "b.jar": [
            (f"B{n}.{'class' if n % 2 else 'xml'}", (2020, 2, n * 7 % 28 + 1, 12, 0, 0))
            for n in range(40)
        ],
        "c.jar": [(f"C{n}", (2019 if n % 3 else 2020, 3, n % 28 + 1, 0, 0, 0)) for n in range(30)],
    }
    for name, files in contents.items():
        with zipfile.ZipFile(folder / name, "w") as archive:
            for file, moment in files:
                archive.writestr(zipfile.ZipInfo(file, moment), b"x" * 10)
    return [str(folder / name) for name in contents]


def plain(jars: list[str]) -> Counter[str]:
    """The same by a loop."""
    found: Counter[str] = Counter()
    newest = 0
    for jar in oldest_first(jars):
        for kind, at_ms, _ in files_of(jar):
            if at_ms < newest - LAG_DAYS * DAY_MS:
                found[f"late {kind}"] += 1
            else:
                found[f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d} {kind}"] += 1
            newest = max(newest, at_ms)
    return found


def live(folder: str, workers: int, kills: int = 0) -> dict[Any, Any]:
    with LocalCluster() as cluster:
        cluster.submit(
            build([folder]), {"topology.workers": workers, "topology.max.spout.pending": 20}
        )
        for number in range(kills):
            cluster.advance(ms=5)
            cluster.kill_worker(number % workers)
        cluster.run_until_idle()
        assert cluster.dead_letters == []
        return cluster.state("table")


@pytest.mark.parametrize(("workers", "kills"), [(1, 0), (2, 3), (4, 8)])
def test_the_example_gives_the_numbers_of_a_plain_loop(
    tmp_path: Path, workers: int, kills: int
) -> None:
    wanted = plain(make_jars(tmp_path))
    assert sum(count for key, count in wanted.items() if key.startswith("late")) == 20
    assert live(str(tmp_path), workers, kills) == wanted


@pytest.mark.slow
def test_it_does_so_on_some_of_sparks_own_jars(tmp_path: Path) -> None:
    jars = sorted(spark_jars().glob("j*.jar"))
    assert len(jars) > 5
    for jar in jars:
        (tmp_path / jar.name).symlink_to(jar)
    wanted = plain([str(path) for path in sorted(tmp_path.iterdir())])
    assert any(key.startswith("late") for key in wanted)
    assert live(str(tmp_path), 2) == wanted
