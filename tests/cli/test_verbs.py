"""The verbs over real stores and a Nimbus in this process: no Spark, no slots; supervisors are
records.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import TopologyContext
from sparkstorm.cli import main
from sparkstorm.client import ClusterClient, TopologyHandle, connect
from sparkstorm.client.access import here
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.config import merge
from sparkstorm.common.errors import NimbusUnavailableError
from sparkstorm.common.model.assignment import SupervisorInfo
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.records import encode_record
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.stores.connection import (
    Connection,
    ReadOnlyConnection,
    ZooKeeperEndpoint,
    new_secret,
    read_only_path,
    save_connection,
    signing_key,
)
from sparkstorm.control_plane.blobs.redis import RedisBytesStore
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.nimbus_state import DriverInfo, NimbusInfo
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.control_plane.nimbus.hooks import NimbusHooks
from sparkstorm.control_plane.nimbus.nimbus import Nimbus
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.data_plane.transport.base import Commit
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.transport.progress import EdgeCounts, Progress, TaskCounts
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.driver.nimbus_thread import NimbusThread
from sparkstorm.extensions.embedded import RedisServer, ZooKeeperServer
from sparkstorm.notebook import displays
from sparkstorm.notebook.live import Inspector
from tests import pages
from tests.client.bare import ended, sparkstorm
from tests.nimbus.nimbus_bench import wordcount

pytestmark = pytest.mark.system


class Bench:
    """A cluster without slots: stores, a Nimbus on a thread, two supervisors that are alive for as
    long as a test takes.
    """

    def __init__(self, zookeeper: ZooKeeperServer, redis: RedisServer, folder: Path) -> None:
        user, password = zookeeper.identity
        self.redis = RedisAddress(redis.host, redis.port, redis.password)
        keeper = ZooKeeperEndpoint(zookeeper.hosts, f"/{folder.name}", user, password)
        at = Connection(self.redis, keeper, new_secret())
        self.file = folder / "connection.json"
        save_connection(self.file, at)
        save_connection(read_only_path(self.file), ReadOnlyConnection(self.redis, keeper))
        self.client = redis.client()
        for tombstone in self.client.scan_iter("*:ended"):  # tests of one second share topology ids
            self.client.delete(tombstone)
        self.store = ZooKeeperStateStore(
            ZooKeeperAddress(keeper.hosts, keeper.root, user, password, 10_000)
        )
        self.state = StormState(self.store, signing_key(at.secret))
        conf = merge({"nimbus.monitor.freq.secs": 0.2, "task.cleanup.timeout.sec": 0.2})
        self.state.write_cluster_conf(conf.for_clients())
        clock, wake = SystemClock(), threading.Event()
        for name in ("node-1", "node-2"):
            self.state.register_supervisor(
                SupervisorInfo(name, "host", clock.now_ms(), 0, (6700, 6701))
            )
        self.chunks = RedisBytesStore(Link(redis.address, 10), f"{folder.name}:")
        blobs = BlobStore(self.state, self.chunks, signing_key(at.secret))
        nimbus = Nimbus(
            self.state,
            blobs,
            DefaultScheduler(),
            conf,
            "nimbus of this test",
            NimbusHooks(wake.set),
        )
        self.nimbus = NimbusThread(nimbus, clock, wake)

    def close(self) -> None:
        self.nimbus.stop()
        self.store.close()
        self.client.close()
        self.chunks.close()


@pytest.fixture
def bench(
    zookeeper_server: ZooKeeperServer, redis_server: RedisServer, tmp_path: Path
) -> Iterator[Bench]:
    made = Bench(zookeeper_server, redis_server, tmp_path)
    made.nimbus.start()
    yield made
    made.close()


@pytest.fixture
def cluster(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterClient]:
    monkeypatch.setenv("SPARKSTORM_CLUSTER", str(bench.file))
    with connect() as made:
        yield made


@pytest.fixture
def own_blobs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs of the user that no other test sweeps."""
    prefixed = partial(RedisBytesStore, prefix=f"{bench.file.parent.name}:")
    monkeypatch.setattr(import_module("sparkstorm.client.connect"), "RedisBytesStore", prefixed)


@pytest.fixture
def words(
    bench: Bench, cluster: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TopologyHandle]:
    # the blobs of this test lie below their own prefix, so that no other test sweeps them
    cluster.service._blobs._bytes = bench.chunks
    handle = cluster.submit("words", wordcount(), {"topology.workers": 1})
    yield handle
    handle.delete_data()
    handle.dead_letters.drop()


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Return what a verb writes, to stdout when it does its work and to stderr when not."""
    capsys.readouterr()
    assert main(list(arguments)) == status, capsys.readouterr()
    found = capsys.readouterr()
    assert (found.out if status else "") == ""
    return found.err if status else found.out


def read(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(said(capsys, *arguments, "--json"))


@pytest.mark.usefixtures("cluster")
def test_a_name_that_no_topology_has_gets_one_sentence_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("", ".", "..", "a//b", "../../etc", "two words", "x\x1b[31m\x07", "é" * 3_000):
        for verb in (["status"], ["tasks"], ["errors"], ["kill", "--wait", "0"], ["doctor"]):
            told = said(capsys, *verb, name, status=1)
            assert told.startswith("topology ") and " is not alive; " in told, (verb, name)
            assert told.count("\n") == 1 and told.removesuffix("\n").isprintable(), (verb, name)


def require_listed_and_completed(words: TopologyHandle, capsys: pytest.CaptureFixture[str]) -> None:
    listed = said(capsys, "list").splitlines()
    result = listed[0].split()
    assert result == ["name", "status", "workers", "executors", "tasks", "up", "owner", "id"]
    assert listed[1].split()[:3] == ["words", "ACTIVE", "1"]
    assert listed[1].endswith(words.topology_id)
    assert "words-" in said(capsys, "status", "words")
    assert words.topology_id in said(capsys, "status", words.topology_id)
    assert [*read(capsys, "status", "words")["workers"]] == sorted(map(str, words.slots()))
    assert said(capsys, "__complete", "status", "") == "words\n"
    assert (
        said(capsys, "__complete", "errors", "words", "--component", "") == "count\nlines\nsplit\n"
    )
    assert said(capsys, "__complete", "hosts", "drain", "") == "host\n"


def require_monitored(capsys: pytest.CaptureFixture[str]) -> None:
    header, rates = said(capsys, "monitor", "words", "-i", "0.2", "--lines", "1").splitlines()
    assert header.split()[:2] == ["time", "emitted/s"]
    result = rates.split()[1:]
    assert result == ["0", "0", "0", "0", "0", "-", "-"]
    assert (
        read(capsys, "monitor", "words", "--component", "count", "-i", "0.2", "--lines", "1")[
            "executed"
        ]
        == 0
    )
    assert "no component 'nothing', only" in said(
        capsys, "monitor", "words", "--component", "nothing", status=1
    )


def require_status_and_workers_changed(
    words: TopologyHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "deactivate", "words") == f"{words.topology_id} is inactive\n"
    result = read(capsys, "activate", "words")
    assert result == {"topology_id": words.topology_id, "status": "ACTIVE"}
    before = words.slots()
    plan = said(capsys, "rebalance", "words", "--workers", "2", "--plan-only")
    assert plan.startswith(f"plan for {words.topology_id}: 1 -> 2 workers")
    assert words.slots() == before
    assert "--yes" in said_both(capsys, "rebalance", "words", "--workers", "2")[1]
    assert words.slots() == before
    done = said(capsys, "rebalance", "words", "--workers", "2", "--wait", "0", "--yes")
    assert done.startswith(plan)
    assert done.endswith(f"{words.topology_id} is rebalanced\n")
    assert len(words.slots()) == 2


def require_hosts_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = said(capsys, "hosts").splitlines()
    assert listed[0].split()[:5] == ["host", "rack", "slots", "used", "free"]
    assert listed[1].split()[:5] == ["host", "-", "4", "2", "2"]
    assert listed[1].endswith("node-1, node-2")
    (host,) = read(capsys, "hosts")["hosts"]
    assert [*host["nodes"]] == ["node-1", "node-2"]
    assert len(host["slots"]) == 4
    assert host["slots_used"] == 2
    assert said(capsys, "hosts", "-o", "csv").startswith(
        "host,rack,slots,used,free,uptime_ms,beat_ms,health,nodes\nhost,,4,2,2,"
    )


def require_a_host_excluded_and_drained(
    words: TopologyHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "hosts", "exclude", "host", "--reason", "new disks").startswith(
        "host is excluded: it gets no new workers"
    )
    marked = said(capsys, "hosts").splitlines()
    assert "excluded" in marked[1]
    assert marked[-1].startswith("host excluded ")
    assert marked[-1].endswith(": new disks")
    result = [(each["mark"], each["mark_reason"]) for each in read(capsys, "hosts")["hosts"]]
    assert result == [("excluded", "new disks")]
    assert read(capsys, "hosts", "include", "host") == {"host": "host", "change": "include"}
    assert read(capsys, "hosts")["hosts"][0]["mark"] is None and len(words.slots()) == 2
    assert (
        "host w9 is not one of this cluster's: host" in said_both(capsys, "hosts", "drain", "w9")[1]
    )
    assert "name the host" in said_both(capsys, "hosts", "drain")[1]
    drained = "plan for host: 0 of 2 workers there move; 2 stay until slots elsewhere are free\n"
    assert said(capsys, "hosts", "drain", "host", "--plan-only") == drained
    out, error = said_both(capsys, "hosts", "drain", "host")
    assert out == drained and "--yes" in error and read(capsys, "hosts")["hosts"][0]["mark"] is None
    assert said(capsys, "hosts", "drain", "host", "--yes").startswith(
        f"{drained}host is drained: its workers move"
    )
    assert (
        said(capsys, "hosts")
        .splitlines()[-1]
        .endswith("; 2 workers are still there, until slots elsewhere are free")
    )
    assert read(capsys, "hosts", "include", "host")["change"] == "include"


def test_a_life(
    words: TopologyHandle,
    cluster: ClusterClient,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_listed_and_completed(words, capsys)
    monkeypatch.setattr(displays, "_APART_S", 0.0)
    assert "words is ACTIVE · 1 worker" in displays.handle_html(words)
    assert ">words</td>" in displays.client_html(cluster)
    require_monitored(capsys)
    require_status_and_workers_changed(words, capsys)
    require_hosts_listed(capsys)
    require_a_host_excluded_and_drained(words, capsys)
    slot = str(min(words.slots(), key=str))
    assert f"worker {slot} of words-" in said(capsys, "restart", "words", "--worker", slot)
    assert read(capsys, "restart", "words")["worker"] is None
    assert read(capsys, "log-level", "words", "root=DEBUG:60")["levels"] == {"": "DEBUG"}
    assert read(capsys, "kill", "words", "--wait", "0")["topology_id"] == words.topology_id
    assert wait_gone(cluster) and said(capsys, "list") == "no topology runs here\n"


@pytest.mark.usefixtures("own_blobs")
def test_blobs_are_made_replaced_listed_and_deleted(
    bench: Bench,
    cluster: ClusterClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "rules.txt"
    result = said(capsys, "blob", "list")
    assert result == "the cluster keeps no blob: sparkstorm blob create NAME FILE\n"
    assert (
        "cannot be read: No such file" in said_both(capsys, "blob", "create", "rules", str(file))[1]
    )
    file.write_bytes(b"old")
    assert (
        said(capsys, "blob", "create", "rules", str(file)) == "rules is kept: 3 bytes, version 1\n"
    )
    assert (
        "blob rules is there already" in said_both(capsys, "blob", "create", "rules", str(file))[1]
    )
    file.write_bytes(b"newer")
    result = said(capsys, "blob", "update", "rules", str(file))
    assert result == "rules is replaced: 5 bytes, version 2\n"
    header, line = said(capsys, "blob", "list").splitlines()
    assert header.split() == ["blob", "bytes", "version", "changed", "by"]
    assert line.split()[:3] == ["rules", "5", "2"]
    (listed,) = read(capsys, "blob", "list")["blobs"]
    assert listed["blob"] == "rules"
    assert listed["version"] == 2
    assert cluster.blobs()["rules"].key == listed["key"]
    viewer = str(read_only_path(bench.file))
    assert "may only read" in said_both(capsys, "blob", "delete", "rules", "--cluster", viewer)[1]
    row = said(capsys, "blob", "list", "--cluster", viewer).splitlines()[1]
    assert row.split()[:3] == ["rules", "5", "2"]
    assert said(capsys, "blob", "delete", "rules") == "rules is deleted\n"
    assert (
        "there is no blob rules; there are none" in said_both(capsys, "blob", "delete", "rules")[1]
    )


@pytest.mark.usefixtures("own_blobs")
def test_status_and_doctor_name_the_same_fault(
    bench: Bench,
    words: TopologyHandle,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "words starts: " in said(capsys, "doctor", "words")
    bolt = next(task for task, info in words.tasks().items() if info.component_id == "count")
    transport = RedisTransport(bench.redis, words.topology_id)
    began_ms = SystemClock().now_ms() - 590_000

    def commit(number: int, late: int, earlier: tuple[int, bytes] | None = None) -> bytes:
        counts = TaskCounts("count", 1, executed=1000 * number, late=late)
        record = Progress({bolt: counts}, started_ms=began_ms, now_ms=SystemClock().now_ms())
        data = record.encode()
        made = Commit("node-1:6700", {bolt: 1}, 0, number, progress=data, earlier=earlier)
        transport.commit(made)
        return data

    with contextlib.closing(transport):
        transport.claim("node-1:6700", {bolt: 1})
        before = commit(1, 0)
        assert read(capsys, "doctor", "words")["is_well"]
        commit(2, 7, (0, before))
        sentences = []
        for verb in ("doctor", "status"):
            assert main([verb, "words", "--json"]) == 1
            found = json.loads(capsys.readouterr().out)
            assert [each["fault"] for each in found["culprits"]] == ["late"]
            sentences.append(found["sentence"].partition(";")[0])
            assert main([verb, "words"]) == 1
            assert "late   count      count: 7 of 2,000 inputs" in capsys.readouterr().out
        assert sentences[0] == sentences[1] and "count: 7 of 2,000 inputs came" in sentences[0]


def counted(tasks: dict[int, str], began_ms: int, minutes: int) -> bytes:
    """Counts of a worker after so many minutes: `split` took 1 ms for each of 900 rows per
    second, `count` none.
    """
    rows = 54_000 * minutes
    counts = {
        task: TaskCounts(
            name,
            1,
            emitted=rows if name == "lines" else 0,
            executed=rows // 4 if name == "split" else 0,
            busy_us=250 * rows if name == "split" else 0,
        )
        for task, name in tasks.items()
    }
    edges = {("lines", "default", "split"): EdgeCounts(rows, rows, 1, rows)}
    now_ms = began_ms + 60_000 * minutes
    return Progress(counts, started_ms=began_ms, now_ms=now_ms, edges=edges).encode()


@pytest.mark.usefixtures("own_blobs")
def test_a_plan_of_scale_is_shown_explained_and_carried_out(
    bench: Bench,
    words: TopologyHandle,
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = said(capsys, "scale", "words", status=1)
    assert told.startswith("words cannot be scaled yet: its workers have run for ")

    mode = ("-c", "topology.autoscale=advise")
    said(capsys, "rebalance", "words", "-e", "split=1", *mode, "--wait", "0", "--yes")
    assignment = bench.state.read_assignment(words.topology_id)
    assert assignment is not None
    long_ago_ms = SystemClock().now_ms() - 7_200_000
    starts = dict.fromkeys(assignment.start_ms_by_executor, long_ago_ms)
    changed = replace(assignment, version=assignment.version + 1, start_ms_by_executor=starts)
    bench.state.write_assignment(changed)
    slot = str(min(words.slots()))
    tasks = {task: info.component_id for task, info in words.tasks().items()}
    transport = RedisTransport(bench.redis, words.topology_id)
    with contextlib.closing(transport):
        transport.claim(slot, dict.fromkeys(tasks, 1))
        began_ms = SystemClock().now_ms() - 240_000
        for minute in range(5):
            data = counted(tasks, began_ms, minute)
            before = (minute, counted(tasks, began_ms, minute - 1)) if minute else None
            transport.commit(
                Commit(slot, dict.fromkeys(tasks, 1), 0, minute + 1, progress=data, earlier=before)
            )
    shown = said(capsys, "scale", "words").splitlines()
    assert shown[0].split("  ") == ["component", "rows/s", "rows/s per executor", "busy", "rows/s wanted", "executors"]  # fmt: skip
    # 900 a second, less what the records were old when they were read
    split = shown[3].split()
    assert [split[0], split[2], *split[5:]] == ["split", "1,000", "1", "->", "2"]
    assert " rows/s wanted, an executor does 1,000 rows/s, at 60%: 2 executors" in shown[4]
    assert shown[5].startswith("workers: 1 -> 2: 0.9 cores at the wanted rates")
    assert "count: it has executed nothing" in said(capsys, "scale", "words", "--why")
    main(["status", "words"])
    advice = capsys.readouterr().out.splitlines()[-1]
    assert advice == "autoscale advises: scale workers 1 -> 2, split 1 -> 2"
    plan = read(capsys, "scale", "words")
    assert (plan["workers"], plan["wanted_workers"], plan["is_change"]) == (1, 2, True)
    assert "--yes carries the plan out" in said_both(capsys, "scale", "words", "--apply")[1]
    told = said(capsys, "scale", "words", "--yes", status=1)
    assert told == "--yes carries nothing out without --apply: give both\n"
    assert len(words.slots()) == 1
    done = said(capsys, "scale", "words", "--apply", "--yes")
    assert done.endswith(f"{words.topology_id} is scaled\n")
    assert len(words.slots()) == 2
    base = bench.state.read_base(words.topology_id)
    assert base is not None and base.executors_by_component["split"] == 2


def test_files_of_a_users_own_are_below_the_folder_of_the_submission(
    bench: Bench, cluster: ClusterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.service._blobs._bytes = bench.chunks
    monkeypatch.chdir(tmp_path)
    handle = cluster.submit("words", wordcount(), {"topology.workers": 1})
    monkeypatch.chdir("/")
    conf = cluster.service.conf_of(handle.topology_id)
    context = TopologyContext(handle.topology_id, 1, "a", {1: "a"}, (1,), conf, lambda: 0)
    assert context.path("out/words.txt") == str(tmp_path / "out" / "words.txt")
    assert context.path("/data/x") == "/data/x"
    assert replace(context, conf={}).path("x") == "/x"
    given = {"topology.folder": "/data"}
    assert here(given) == given
    handle.delete_data()


def test_an_inspector_looks_with_and_without_a_with_block(
    bench: Bench, words: TopologyHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_blobs = partial(RedisBytesStore, prefix=f"{bench.file.parent.name}:")
    monkeypatch.setattr("sparkstorm.notebook.live.RedisBytesStore", own_blobs)
    inspector = Inspector.connect(bench.file)
    assert words.topology_id in repr(inspector.look().topologies())
    inspector.close()
    with Inspector.connect(str(bench.file)) as inspector:
        assert words.topology_id in repr(inspector.look().topologies())


def test_a_watched_verb_asks_again_over_one_connection(
    words: TopologyHandle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    opened: list[str | None] = []

    def connect_and_note(file: str | None) -> ClusterClient:
        opened.append(file)
        return connect(file)

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("sparkstorm.cli.cluster_verbs.time.sleep", pause)
    monkeypatch.setattr("sparkstorm.cli.cluster_verbs.connect", connect_and_note)
    assert main(["list", "--watch", "0.5"]) == 130
    assert capsys.readouterr().out.count(words.topology_id) == 3
    assert pauses == [0.5] * 3 and len(opened) == 1


@pytest.mark.usefixtures("own_blobs")
def test_the_python_example_of_the_cluster_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pages.folder_of_examples(tmp_path, monkeypatch):
        module, _ = pages.run(pages.ROOT / "docs" / "cluster.md", monkeypatch)
    handle = vars(module)["handle"]
    assert handle.name == "shout" and "words" not in handle.topology_id


def test_the_drivers_of_the_cluster_are_listed(
    bench: Bench, cluster: ClusterClient, capsys: pytest.CaptureFixture[str]
) -> None:
    def driver(number: int) -> DriverInfo:
        now_ms = SystemClock().now_ms()
        return DriverInfo(
            f"id-{number}",
            "host",
            40 + number,
            "",
            "",
            number=number,
            since_ms=now_ms,
            is_alone=False,
        )

    assert read(capsys, "status")["drivers"] == []
    assert said(capsys, "status") == "no driver is here: start a cluster\n"
    for number in (2, 1):
        bench.state.register_driver(driver(number))
    bench.state.register_supervisor(SupervisorInfo("node-1@2", "host", 0, 0, (6700, 6701, 6702)))
    bench.store.put(paths.LEADER, encode_record(NimbusInfo("x", 1, driver(2))))
    rows = [
        (row["driver"], row["state"], row["pid"], row["slots"], row["nodes"])
        for row in read(capsys, "status")["drivers"]
    ]
    assert rows == [
        (1, "stands by", "41", 4, ["node-1", "node-2"]),
        (2, "leads", "42", 3, ["node-1@2"]),
    ]
    assert said(capsys, "status").splitlines()[2].startswith("     2  leads      host  42 ")


def said_both(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """Return the outcome of a rebalance that is not confirmed: its plan, and that nothing was
    changed.
    """
    capsys.readouterr()
    assert main(list(arguments)) == 1
    found = capsys.readouterr()
    return found.out, found.err


def wait_gone(cluster: ClusterClient) -> bool:
    gone = threading.Event()
    for _ in range(600):
        if not cluster.summaries():
            return True
        gone.wait(0.05)
    return False


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["status", "nobody"], "topology nobody is not alive; there are words"),
        (["kill", "nobody"], "topology nobody is not alive; there are words"),
        (
            ["logs", "words", "--worker", "node-9:1"],
            "has no worker node-9:1 whose log is kept; there are none yet",
        ),
        (["rebalance", "words", "--executors", "nothing=2", "--yes"], "nothing"),
        (["rebalance", "words", "--workers", "0", "--yes"], "0"),
        (["restart", "words", "--worker", "here"], "expected a slot such as"),
        (["restart", "words", "--worker", "node-9:1"], "node-9:1"),
        (["log-level", "words", "root=LOUD"], "expected a level"),
        (["dead-letters", "replay", "words", "--all"], "no dead letters of words are kept"),
        (["submit", "nothing.yaml"], "nothing.yaml"),
        (["update", "nothing.yaml"], "nothing.yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_one_sentence(
    words: TopologyHandle, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    capsys.readouterr()
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1 and "Traceback" not in error


def test_errors_and_logs_are_shown_from_the_stores(
    bench: Bench, words: TopologyHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "errors", "words") == "no errors of words are kept\n"
    bench.state.report_error(
        words.topology_id,
        Failure(FailureKind.SYSTEM, "boom", "count", 3, "host", "node-1:6700", 1_000),
    )
    assert said(capsys, "errors", "words").endswith("count#3 on node-1:6700 (host): boom\n")
    assert read(capsys, "errors", "words", "--component", "count")[0]["text"] == "boom"
    assert read(capsys, "errors", "words", "--component", "split") == []
    for port, line in ((6700, b"one\ntwo\n"), (6701, b"three\n")):
        bench.client.xadd(Keys(words.topology_id).log(f"node-1:{port}"), {"f": line})
    result = said(capsys, "logs", "words", "-n", "1").splitlines()
    assert result == ["node-1:6700  two", "node-1:6701  three"]
    assert said(capsys, "logs", "words", "--worker", "node-1:6700").splitlines() == ["one", "two"]
    result = read(capsys, "logs", "words", "--worker", "node-1:6701")
    assert result == {"worker": "node-1:6701", "line": "three"}


def test_dead_letters_are_listed_shown_replayed_and_dropped(
    bench: Bench, words: TopologyHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    table = words.tasks()
    spout = next(task for task, info in table.items() if info.kind == "spout")
    bolt = next(task for task, info in table.items() if info.component_id == "count")
    letter = DeadLetter(
        Failure(FailureKind.RAISED, "ValueError: no", "count", bolt, time_ms=1),
        table[spout].component_id,
        spout,
        "default",
        ("word",),
        ("storm",),
        4,
    )
    transport = RedisTransport(bench.redis, words.topology_id)
    with contextlib.closing(transport):
        transport.claim("o", {bolt: 1})
        transport.commit(Commit("o", {bolt: 1}, 0, 1, parked=[letter.encode(Codec())] * 3))
    assert f"{words.topology_id}: 3 dead letters" in said(capsys, "dead-letters", "list", "words")
    listed = read(capsys, "dead-letters", "list", "words")
    first, second, third = (
        json.loads(line)["id"]
        for line in said(capsys, "dead-letters", "list", "--lines").splitlines()
    )
    assert listed["count"] == 3
    result = listed["causes"]
    assert result == [{"cause": "count: ValueError", "count": 3, "ids": [first, second, third]}]
    assert "word: 'storm'" in said(capsys, "dead-letters", "show", "words", first)
    assert "keeps no dead letter 9-9" in said(
        capsys, "dead-letters", "show", "words", "9-9", status=1
    )
    found = read(capsys, "dead-letters", "replay", "words", first, "9-9")
    assert (found["replayed"], found["missing"]) == ([first], ["9-9"])
    assert bench.client.xlen(Keys(words.topology_id).stream(bolt)) == 1
    assert "name the dead letters" in said(capsys, "dead-letters", "drop", "words", status=1)
    assert read(capsys, "dead-letters", "drop", "words", second)["dropped"] == 1
    assert "1 dead letter is dropped" in said(capsys, "dead-letters", "drop", "words", "--all")
    assert said(capsys, "dead-letters", "list") == "no dead letters are kept\n" and third


def test_a_viewer_looks_and_is_refused_everything_else(
    bench: Bench,
    words: TopologyHandle,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARKSTORM_CLUSTER", str(read_only_path(bench.file)))
    for arguments in (
        ["list"],
        ["status", "words"],
        ["errors", "words"],
        ["logs", "words"],
        ["dead-letters", "list"],
        ["doctor", "words"],
    ):
        assert main(arguments) == 0
    for arguments in (
        ["kill", "words"],
        ["activate", "words"],
        ["rebalance", "words", "--workers", "2", "--plan-only"],
        ["restart", "words"],
        ["log-level", "words", "root=DEBUG"],
        ["dead-letters", "drop", "words", "--all"],
        ["dead-letters", "replay", "words", "--all"],
    ):
        assert "may only read" in said(capsys, *arguments, status=1)


def test_a_follower_that_is_stopped_says_what_goes_on_and_how_to_get_back(
    bench: Bench, words: TopologyHandle
) -> None:
    process = sparkstorm("follow", "words", folder=bench.file.parent, cluster=bench.file)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(f"following {words.topology_id} (ACTIVE)")
    process.send_signal(signal.SIGINT)
    status, out, err = ended(process)
    assert (status, err) == (130, "")
    assert out.endswith("words goes on in the cluster: sparkstorm follow words follows it again\n")
    assert str(words.status()) == "ACTIVE"


def test_without_a_nimbus_a_request_is_withdrawn_and_said(
    bench: Bench, words: TopologyHandle
) -> None:
    bench.nimbus.stop()
    with connect(bench.file, {"nimbus.request.timeout.secs": 1}) as impatient:
        with pytest.raises(NimbusUnavailableError, match="no Nimbus"):
            impatient.topology("words").deactivate()
        assert str(impatient.topology("words").status()) == "ACTIVE"
