"""The worked example of docs/connectors.md: sessions live into Parquet and a table, and the same
from history by replay.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparkstorm.replay import EventTime, replay_locally
from sparkstorm.testing import LocalCluster

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_sessions_are_the_same_live_in_parquet_in_the_table_and_from_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "jobs"))
    monkeypatch.chdir(tmp_path)
    job: Any = import_module("access_logs")
    job.main("logs", 400)
    topology = job.build("logs/*.jsonl", str(tmp_path / "out"), f"sqlite:///{tmp_path}/sessions.db")
    with LocalCluster() as cluster:
        cluster.submit(topology, {"topology.workers": 2})
        cluster.run_until(lambda: cluster.counts("enrich").executed == 400, 60)
        cluster.kill_worker("sessions")
        cluster.run_until_idle()
        assert cluster.dead_letters == [] and cluster.counts("sessions").late > 3
        cluster.kill("test", 0)
    parquet = [
        tuple(row.values())
        for path in (tmp_path / "out").glob("*.parquet")
        for row in pq.read_table(path).to_pylist()
    ]
    with sqlite3.connect("sessions.db") as database:
        table = list(database.execute("SELECT * FROM sessions"))
    database.close()
    rows = [
        tuple(json.loads(line).values())
        for line in Path("logs/access.jsonl").read_text().splitlines()
    ]
    replayed = replay_locally(
        topology, {"logs": rows}, event_time=EventTime("at_ms", in_order=False)
    )
    assert (
        Counter(parquet)
        == Counter(table)
        == Counter(replayed["table!input"])
        == Counter(replayed["flat"])
    )
    assert len(parquet) > 40 and sum(row[2] for row in parquet) < 400
