"""Sinks whose topology's store has forgotten epochs that the target has: no new epoch is taken for
a done one.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from sparkstorm.api import TopologyBuilder, TopologyContext, TransactionalSink
from sparkstorm.connectors import DeltaSink, FileSink, IcebergSink, RedisSink, SqlSink
from sparkstorm.control_plane.cluster import paths
from sparkstorm.data_plane.transport.local import LocalStore
from sparkstorm.data_plane.worker.tasks.store_witness import held_by_targets
from sparkstorm.data_plane.worker.worker import Worker
from sparkstorm.extensions.embedded import RedisServer
from sparkstorm.testing import LocalCluster, Shared
from tests.topologies import Log

SCHEMA = "n bigint"
CONF = {
    "topology.workers": 1,
    "topology.epoch.rows": 2,
    "topology.message.timeout.secs": 3600,
    "topology.store.loss": "continue",
}
Read = Callable[[], list[int]]
_numbers = count(1)


@pytest.fixture(scope="module", autouse=True)
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Threads of the libraries, which the first call of a process starts and nothing ends."""
    from deltalake import DeltaTable
    from pyiceberg.utils.concurrent import ExecutorFactory

    DeltaTable.create(
        str(tmp_path_factory.mktemp("delta")), pa.schema([("n", pa.int64())])
    ).to_pyarrow_table()
    list(
        ExecutorFactory.get_or_create().map(
            lambda n: time.sleep(0.05), range(100 if (os.cpu_count() or 1) > 8 else 20)
        )
    )


def sql(folder: Path, _: Any) -> tuple[TransactionalSink, Read]:
    engine = sa.create_engine(f"sqlite:///{folder}/out.db", poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text("create table numbers (n integer)"))

    def read() -> list[int]:
        with engine.connect() as connection:
            return [row[0] for row in connection.execute(sa.text("select n from numbers"))]

    return SqlSink(f"sqlite:///{folder}/out.db", "numbers"), read


def files(folder: Path, _: Any) -> tuple[TransactionalSink, Read]:
    def read() -> list[int]:
        return [
            n
            for path in folder.glob("out/*.parquet")
            for n in pq.read_table(path).column("n").to_pylist()
        ]

    return FileSink(folder / "out", "parquet", SCHEMA, flush_secs=0, target_bytes=1), read


def delta(folder: Path, _: Any) -> tuple[TransactionalSink, Read]:
    from deltalake import DeltaTable

    def read() -> list[int]:
        return [
            int(n)
            for n in pa.table(DeltaTable(str(folder / "t")).to_pyarrow_table())
            .column("n")
            .to_pylist()
        ]

    return DeltaSink(folder / "t", SCHEMA, flush_secs=0, compact_files=1000), read


def iceberg(folder: Path, _: Any) -> tuple[TransactionalSink, Read]:
    from pyiceberg.catalog import load_catalog

    (folder / "warehouse").mkdir()
    own = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }

    def read() -> list[int]:
        return [
            int(n)
            for n in load_catalog("default", **own)
            .load_table("db.t")
            .scan()
            .to_arrow()
            .column("n")
            .to_pylist()
        ]

    return IcebergSink("db.t", SCHEMA, properties=own, flush_secs=0, compact_files=1000), read


def streams(_: Path, server: RedisServer) -> tuple[TransactionalSink, Read]:
    name = f"forgotten-epochs-{next(_numbers)}"

    def read() -> list[int]:
        with server.client() as client:
            return [int(fields[b"n"]) for _, fields in client.xrange(name)]

    url = f"redis://{server.host}:{server.port}"
    return RedisSink(url, name, password_env="FORGOTTEN"), read


def close(worker: Worker | None) -> None:
    """Close the connections of a worker, as the end of its process does."""
    assert worker is not None
    worker.close()


TARGETS = [sql, files, delta, iceberg, pytest.param(streams, marks=pytest.mark.system)]


@pytest.fixture(params=TARGETS, ids=lambda make: make.__name__)
def target(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[TransactionalSink, Read]:
    server = request.getfixturevalue("redis_server") if request.param is streams else None
    if server is not None:
        monkeypatch.setenv("FORGOTTEN", server.password)
    made: tuple[TransactionalSink, Read] = request.param(tmp_path, server)
    return made


@pytest.mark.sampled
@pytest.mark.parametrize("is_emptied", [True, False], ids=["emptied", "older copy"])
def test_rows_are_written_although_the_target_is_newer_than_the_store(
    target: tuple[TransactionalSink, Read], is_emptied: bool
) -> None:
    errors = write_beyond_a_lost_store(*target, is_emptied)
    assert any("the target has epochs up to" in error for error in errors)


def test_a_sink_that_was_only_opened_says_what_the_target_has(
    target: tuple[TransactionalSink, Read],
) -> None:
    sink, read = target
    new = deepcopy(sink)
    new.open({}, TopologyContext("other-1-1", 1, "sink", {1: "sink"}, (1,), {}, lambda: 0))
    assert new.last_epoch() == 0
    new.cleanup()
    log, builder = list[int](), TopologyBuilder()
    builder.set_spout("log", Log(Shared(log), "n"))
    builder.set_bolt("sink", sink, inputs="log")
    with LocalCluster(1, 1, seed=4, is_lively=True) as cluster:
        cluster.submit(builder.build(), CONF)
        for _ in range(4):
            log.append(len(log))
            cluster.advance(0.1)
        (slot,) = cluster.slots
        worker = slot.worker
        assert worker is not None
        (last,) = (bolt.runner.bolt.last_epoch() for bolt in worker.task_set.bolts.values())
        before = read()
        assert held_by_targets(worker.parts.plan, lambda: 0).endswith(f": epoch {last:,}") and last
        assert read() == before
        close(worker)


def write_beyond_a_lost_store(sink: TransactionalSink, read: Read, is_emptied: bool) -> list[str]:
    """Put the store back behind the target, check what is written after that, and return the run's
    errors.

    The target is the only witness of the loss.
    """
    log, builder = list[int](), TopologyBuilder()
    builder.set_spout("log", Log(Shared(log), "n"))
    builder.set_bolt("sink", sink, inputs="log")
    with LocalCluster(1, 1, seed=4, is_lively=True) as cluster:
        topology_id = cluster.submit(builder.build(), CONF)
        store = cluster.topology().store
        copy = LocalStore(topology_id=topology_id).checkpoint()

        def write(count: int) -> None:
            for _ in range(count):
                log.append(len(log))
                cluster.advance(0.1)

        write(4)
        if not is_emptied:
            copy = store.checkpoint()
        write(8)
        first = read()
        assert sorted(first) == log
        (slot,) = cluster.slots
        close(slot.worker)
        slot.die()
        store.restore(copy)
        # no witness is left but the target
        cluster.storm_state.store.delete(paths.store_mark(topology_id))
        slot.start()
        cluster.advance(5)
        write(8)
        close(slot.worker)
        again = log[:12] if is_emptied else log[4:12]
        assert Counter(read()) == Counter(log) + Counter(again)
        return [error.text for error in cluster.errors]
