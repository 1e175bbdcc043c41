"""A cluster held by one process, and topologies submitted, rebalanced, updated and killed by others
without Spark or Java.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.cli import main
from sparkstorm.client import ClusterClient, TopologyHandle, connect
from sparkstorm.extensions.embedded import RedisServer, ZooKeeperServer
from tests.client.bare import ended, sparkstorm
from tests.system.gated_count import expected_counts
from tests.waiting import limit_here
from tests.web.listening import running
from tests.web.test_metrics import parse

pytestmark = pytest.mark.system
LIMIT_S = 400.0
OF_CODE = frozenset({"submit", "update", "capsule"})
WORDS = """
from sparkstorm.api import TopologyBuilder
from sparkstorm.connectors import find_files
from tests.system.gated_count import Count, GatedLines, Split


class CountBy(Count):
    def prepare(self, conf, context):
        print("counting in version VERSION", flush=True)

    def execute(self, tup, collector):
        super().execute(tup, collector)
        self.state.add("$VERSION", 1)


def build(input, gate):
    builder = TopologyBuilder()
    builder.set_spout("lines", GatedLines(find_files(input), gate, rest_s=0.01))
    builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("lines")
    builder.set_bolt("count", CountBy(), parallelism=2).fields_grouping("split", "word")
    return builder.build()
"""
JOB = """
name: {name}
topology: {module}:build
arguments: {{input: [{folder}/lines.txt], gate: {folder}/gate-{name}}}
results: {{component: count}}
topology.workers: 1
topology.max.spout.pending: 200
"""
NUMBERS = """
from pathlib import Path

from sparkstorm.api import ReplayableSpout, TopologyBuilder, bolt


class Numbers(ReplayableSpout):
    outputs = ("n",)

    def __init__(self, gate):
        self.gate = gate

    def open(self, conf, context, collector):
        self.collector, self.next = collector, 0

    def next_tuple(self):
        if self.next < 200 or (self.next < 400 and Path(self.gate).exists()):
            self.collector.emit((self.next,), message_id=self.next)
            self.next += 1

    def is_exhausted(self):
        return self.next >= 400

    def snapshot(self):
        return self.next

    def restore(self, position):
        self.next = position


@bolt("n")
def check(tup):
    weight = 1 / (tup['n'] - 13)
    yield tup["n"]


@bolt(key="n")
def count(tup, state):
    state.add(tup["n"] % 7)


def build(gate):
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(gate))
    builder.set_bolt("check", check, inputs="numbers")
    builder.set_bolt("count", count, inputs="check")
    return builder.build()
"""
LACKING = """
import sys

sys.path.append({packages!r})  # a folder of this name holds what is installed, and does not travel; hosts do not have it
import only_here

{words}

CountBy.helper = only_here.helper
"""
LINES = [f"every {n % 7} word {n % 13} of line {n % 101}" for n in range(500)]
EVERY_WORD = frozenset(word for line in LINES for word in line.split())


class Terminals:
    """A folder, the process that holds the cluster, and commands of others."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        self.folder, self.options = folder, options
        self.connection = folder / "storm-local" / "cluster" / "connection.json"
        (folder / "lines.txt").write_text("\n".join(LINES) + "\n")
        for module, version in (("first", "v1"), ("second", "v2")):
            (folder / f"{module}.py").write_text(WORDS.replace("VERSION", version))
        for file, name, module in (
            ("alpha", "alpha", "first"),
            ("beta", "beta", "first"),
            ("beta-new", "beta", "second"),
        ):
            (folder / f"{file}.yaml").write_text(
                JOB.format(name=name, module=module, folder=folder)
            )
        self.output = folder / "cluster.log"
        self.start_cluster()

    def start_cluster(self) -> None:
        """Start the process that holds the cluster, again after its death."""
        command = [
            sys.executable,
            "-m",
            "sparkstorm.cli",
            "cluster",
            "--master",
            "local[5]",
            "-c",
            "sparkstorm.slots.per.supervisor=2",
            *self.options,
        ]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=output)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return sparkstorm(*arguments, folder=self.folder, cluster=self.connection)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command: in its own process where it imports the job's code, else in this one."""
        if arguments[0] in OF_CODE:
            return ended(self.start(*arguments))
        if "--cluster" not in arguments:
            arguments = (*arguments, "--cluster", str(self.connection))
        out, err = io.StringIO(), io.StringIO()
        with chdir(self.folder), redirect_stdout(out), redirect_stderr(err):
            status = main(arguments)
        return status, out.getvalue(), err.getvalue()

    def json(self, *arguments: str) -> Any:
        status, out, err = self.run(*arguments, "--json")
        most = arguments[0] == "status"  # 1: the topology is not well, as after a death
        assert status <= most, f"{arguments}: {err}{self.output.read_text()}"
        return json.loads(out)

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, (
                f"{what} did not come about:\n{self.output.read_text()}"
            )
            assert self.process.poll() is None, self.output.read_text()
            time.sleep(0.05)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(900)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    made = Terminals(tmp_path)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.terminate()
            made.process.wait(900)


def look_inside(terminals: Terminals, worker: str) -> None:
    """Show open messages, one message, traces and stacks of a topology that works."""
    messages = terminals.json("journey", "beta")["open"]
    assert {each["component"] for each in messages} <= {"lines"}
    root = messages[0]["root"] if messages else "0123456789abcdef"
    assert terminals.json("journey", "beta", root)["root"] == root

    def traced() -> set[str]:
        found = terminals.json("journey", "beta", "--trace", "4")["traces"]
        return {event["component"] for trace in found for event in trace["events"]}

    # again where the machine gave the worker no time for a whole message
    terminals.wait(lambda: traced() == {"lines", "split", "count"}, "a message at every bolt")
    status, out, err = terminals.run("stacks", "beta", worker, "--seconds", "2", "--folded")
    assert status == 0 and "MainThread;" in out and "(worker/loop.py" in out, out + err


def test_three_terminals(terminals: Terminals) -> None:
    run = terminals.run
    terminals.wait(
        lambda: "Ctrl-C stops the cluster" in terminals.output.read_text(), "the cluster"
    )
    submit_two_at_once(terminals)
    with connect(terminals.connection) as cluster:
        alpha, beta = cluster.topology("alpha"), cluster.topology("beta")
        terminals.wait(
            lambda: alpha.progress().acked > 20 and beta.progress().acked > 20, "the work of both"
        )
        rebalance_as_planned(terminals, alpha)

        updated = terminals.json("update", "beta-new.yaml")
        assert updated["replaces"] == beta.topology_id
        beta = cluster.topology("beta")
        require_code_that_no_host_opens_refused(terminals, cluster)
        before = {handle: handle.progress().acked for handle in (alpha, beta)}
        terminals.wait(
            lambda: all(handle.progress().acked > acked + 20 for handle, acked in before.items()),
            "more work",
        )
        require_samples_of_words(terminals)
        look_inside(terminals, str(next(iter(beta.slots()))))
        for handle in (alpha, beta):
            (terminals.folder / f"gate-{handle.name}").touch()
            status, _, err = run("follow", handle.name)
            assert status == 0, err
        assert versions_of_exact_counts(alpha, terminals.folder) == {"$v1"}
        assert versions_of_exact_counts(beta, terminals.folder) == {"$v1", "$v2"}
        assert run("logs", "beta")[1].count("counting in version v2") == 2
        require_equal_figures(terminals, alpha)

        require_a_viewer_that_may_not_kill(terminals)
        assert run("kill", "alpha", "--wait", "0")[0] == 0
        terminals.wait(lambda: cluster.find("alpha") is None, "the end of alpha")
        assert [each["name"] for each in terminals.json("list")["topologies"]] == ["beta"]
        require_a_failed_tuple_and_a_savepoint_gone_on_with(terminals, cluster)
        # takes the run up, collects its results and ends it
        status, _, err = run("submit", "beta.yaml")
        assert status == 1 and "is taken by" in err and "second:build" in err, err
        status, out, err = run("submit", "beta-new.yaml")
        assert status == 0 and "going on with unfinished run" in out and "results are in" in out, (
            out + err
        )
        assert cluster.topologies() == []
    assert terminals.stop() == 0
    assert terminals.output.read_text().endswith("stopped\n")


_FIGURES = ("emitted", "executed", "acked", "failed", "parked")


def require_equal_figures(terminals: Terminals, handle: TopologyHandle) -> None:
    """See the counts of a drained topology, as its commits have them, in the page, both REST
    interfaces, the metrics and the command line.
    """
    counts = handle.counts().values()
    stored = {
        name: {
            key: sum(getattr(each, key) for each in counts if each.component == name)
            for key in _FIGURES
        }
        for name in ("lines", "split", "count")
    }
    # it is drained: nothing is under way between two figures
    assert stored["lines"]["acked"] == stored["lines"]["emitted"] > len(LINES)
    assert stored["count"]["executed"] == stored["split"]["emitted"]

    def of(components: Any) -> Any:
        return {name: {key: components[name]["counts"][key] for key in _FIGURES} for name in stored}

    with running(terminals.connection) as at, closing(at.open_page("alpha")) as page:
        assert of(page.next()[1]["topology"]["components"]) == stored
        ours = json.loads(at.get("/api/sparkstorm/v1/topology/alpha")[1])
        storm = json.loads(at.get(f"/api/v1/topology/{handle.topology_id}")[1])
        metrics = parse(at.get("/metrics")[1].decode())
        samples = {
            (each.name, each.labels["component"]): each.value
            for family in metrics
            for each in family.samples
            if each.labels.get("topology") == "alpha" and "component" in each.labels
        }
    assert of(ours["components"]) == stored
    assert of(terminals.json("status", "alpha")["components"]) == stored
    rows = {row["spoutId"]: row for row in storm["spouts"]}
    rows |= {row["boltId"]: row for row in storm["bolts"]}
    for name, figures in stored.items():
        for key, value in figures.items():
            assert rows[name].get(key, value) == value, (name, key)
            is_input = name == "lines" and key in ("acked", "failed")  # of a spout they are trees
            metric = {"acked": "trees_completed", "failed": "trees_failed"}.get(key, "")
            metric = metric if is_input else f"tuples_{key}"
            found = samples.get((f"sparkstorm_{metric}_total", name), 0)
            assert found == value, (name, key)
    assert {"emitted", "acked", "failed"} <= rows["lines"].keys()
    assert {"emitted", "executed", "acked", "failed"} <= rows["count"].keys()


def submit_two_at_once(terminals: Terminals) -> None:
    """Submit two topologies from two terminals at the same time."""
    submits = [
        terminals.start("submit", f"{name}.yaml", "--detach", "--json")
        for name in ("alpha", "beta")
    ]
    for process in submits:
        status, out, err = ended(process)
        assert (status, json.loads(out)["status"]) == (0, 0), err
    listed = terminals.json("list")
    result = [(each["name"], each["status"], each["workers"]) for each in listed["topologies"]]
    assert result == [("alpha", "ACTIVE", 1), ("beta", "ACTIVE", 1)]


def rebalance_as_planned(terminals: Terminals, alpha: TopologyHandle) -> None:
    """Ask for the plan of a second worker, then carry it out: the same executors move."""
    plan = terminals.json("rebalance", "alpha", "--workers", "2", "--plan-only")
    assert plan["move"] and plan["stay"] and not plan["unplaced"] and len(alpha.slots()) == 1
    done = terminals.json("rebalance", "alpha", "--workers", "2", "--wait", "0", "--yes")
    result = [each["executor"] for each in done["move"]]
    assert result == [each["executor"] for each in plan["move"]]
    assert len(alpha.slots()) == 2


def require_samples_of_words(terminals: Terminals) -> None:
    status, out, err = terminals.run("tail", "beta", "split", "-n", "3", "--json")
    samples = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and len(samples) == 3, out + err
    assert all(
        each["values"].keys() == {"word"} and each["values"]["word"] in EVERY_WORD
        for each in samples
    ), out


def require_a_viewer_that_may_not_kill(terminals: Terminals) -> None:
    viewer = str(terminals.connection.with_name("connection-read-only.json"))
    assert "alpha" in terminals.run("list", "--cluster", viewer)[1]
    status, _, err = terminals.run("kill", "alpha", "--cluster", viewer)
    assert status == 1
    assert (
        err
        == "this connection may only read: use the cluster's connection.json to change something\n"
    )


def require_code_that_no_host_opens_refused(terminals: Terminals, cluster: ClusterClient) -> None:
    """A submission and an update that import a module which the host lacks are refused before
    anything is changed.
    """
    packages = terminals.folder / "site-packages"
    packages.mkdir()
    (packages / "only_here.py").write_text("def helper(self):\n    pass\n")
    (terminals.folder / "lacking.py").write_text(
        LACKING.format(packages=str(packages), words=WORDS.replace("VERSION", "v3"))
    )
    before = [each.topology_id for each in cluster.topologies()]
    for name, verb in (("gone", "submit"), ("beta", "update")):
        (terminals.folder / "lacking.yaml").write_text(
            JOB.format(name=name, module="lacking", folder=terminals.folder)
        )
        status, out, err = terminals.run(
            verb, "lacking.yaml", *(["--detach"] if verb == "submit" else [])
        )
        assert status == 1 and "the topology cannot run on host " in err, out + err
        assert (
            "module 'only_here' is neither installed on host " in err and "Traceback" not in err
        ), err
    assert [each.topology_id for each in cluster.topologies()] == before
    assert not list((terminals.folder / "storm-local" / "logs").glob("gone-*"))


def require_a_failed_tuple_and_a_savepoint_gone_on_with(
    terminals: Terminals, cluster: ClusterClient
) -> None:
    """A tuple fails in a run and becomes a test; a savepoint is gone on with."""
    folder = terminals.folder
    (folder / "third.py").write_text(NUMBERS)
    (folder / "gamma.yaml").write_text(f"""
name: gamma
topology: third:build
arguments: {{gate: {folder}/gate-gamma}}
topology.max.retries: 1
""")
    assert terminals.run("submit", "gamma.yaml", "--detach")[0] == 0
    gamma = cluster.topology("gamma")
    terminals.wait(
        lambda: gamma.progress().acked == 199 and gamma.dead_letters.count() == 1,
        "the work before the gate",
    )
    require_the_failure_shown(terminals)
    write_its_test(terminals, gamma)
    require_a_savepoint_gone_on_with(terminals, cluster, gamma)


def require_the_failure_shown(terminals: Terminals) -> None:
    """The failure of the tuple is listed with its place, its tries and its traceback."""
    (found,) = terminals.json("failures", "gamma")
    line = 1 + NUMBERS.splitlines().index("    weight = 1 / (tup['n'] - 13)")
    assert found["text"] == f"check: ZeroDivisionError (third.py, line {line})"
    assert found["count"] == 2
    assert "in check\n  weight = 1 / (tup['n'] - 13)" in found["newest"]["traceback"]
    assert found["newest"]["waited_ms"].keys() >= {"tree", "retries"}
    assert len(found["newest"]["code_version"]) == 64


def write_its_test(terminals: Terminals, gamma: TopologyHandle) -> None:
    """Write the dead letter as a test."""
    (id,) = gamma.dead_letters.read()
    words = ("--to", "gamma.capsule.json", "--pytest", "test_gamma.py")
    status, out, err = terminals.run("capsule", "gamma", id, *words)
    assert status == 0, out + err
    assert "gamma.capsule.json" in (terminals.folder / "test_gamma.py").read_text()


def require_a_savepoint_gone_on_with(
    terminals: Terminals, cluster: ClusterClient, gamma: TopologyHandle
) -> None:
    """Kill the topology with a savepoint and submit it from there: its counts are exact in the
    end.
    """
    folder = terminals.folder
    table = gamma.state_frame("count")
    assert (
        sum(table["value"].to_pylist() if hasattr(table, "column_names") else list(table["value"]))
        == 199
    )
    assert terminals.json("savepoint", "gamma", str(folder / "saved"), "--kill")["killed"]
    terminals.wait(lambda: cluster.find("gamma") is None, "the end of gamma")
    (folder / "gate-gamma").touch()
    result = terminals.run("submit", "gamma.yaml", "--detach", "--from", str(folder / "saved"))[0]
    assert result == 0
    again = cluster.topology("gamma")
    terminals.wait(lambda: again.progress().is_drained, "the rest")
    assert dict(again.key_values("count")) == dict(Counter(n % 7 for n in range(400) if n != 13))
    assert terminals.run("kill", "gamma", "--wait", "0")[0] == 0
    terminals.wait(lambda: cluster.find("gamma") is None, "the end of gamma")


def versions_of_exact_counts(handle: TopologyHandle, folder: Path) -> set[str]:
    """Check every count of a topology; return the versions of the code that have counted, each
    tuple by one of them.
    """
    found: Counter[str] = Counter()
    for word, count in handle.key_values("count"):
        found[word] += count
    by_version = {word: found.pop(word) for word in list(found) if word.startswith("$")}
    assert found == expected_counts([folder / "lines.txt"], found)
    assert sum(by_version.values()) == found.total()
    return set(by_version)


@pytest.mark.nightly
def test_a_cluster_goes_on_when_its_zookeeper_was_emptied(
    tmp_path: Path, own_redis: RedisServer, own_zookeeper: ZooKeeperServer
) -> None:
    user, password = own_zookeeper.identity
    settings = {
        "storm.local.dir": "storm-local/cluster",
        "sparkstorm.redis.url": f"redis://:{own_redis.password}@{own_redis.host}:{own_redis.port}",
        "storm.zookeeper.servers": f"[{own_zookeeper.host}]",
        "storm.zookeeper.port": str(own_zookeeper.port),
        "storm.zookeeper.auth.user": user,
        "storm.zookeeper.auth.password": password,
    }
    terminals = Terminals(
        tmp_path, [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    )
    try:
        terminals.wait(
            lambda: "Ctrl-C stops the cluster" in terminals.output.read_text(), "the cluster"
        )
        lost = terminals.json("submit", "alpha.yaml", "--detach")["topology_id"]
        with connect(terminals.connection) as cluster:
            terminals.wait(lambda: cluster.topology("alpha").progress().acked > 20, "work")
        own_zookeeper.stop()
        shutil.rmtree(own_zookeeper.data_dir / "zookeeper-data")
        own_zookeeper.restart()
        began = time.monotonic()
        terminals.wait(
            lambda: "was emptied or put back" in terminals.output.read_text(), "a sentence"
        )
        assert time.monotonic() - began < limit_here(5.0)
        terminals.wait(
            lambda: lost in terminals.json("list")["problems"], "the name of what Redis keeps"
        )
        new = terminals.json("submit", "alpha.yaml", "--detach")["topology_id"]
        assert terminals.json("kill", lost)["topology_id"] == lost
        terminals.wait(
            lambda: lost not in terminals.json("list")["problems"], "the end of what Redis kept"
        )
        assert [each["id"] for each in terminals.json("list")["topologies"]] == [new]
        own_zookeeper.kill()
        terminals.process.send_signal(signal.SIGINT)
        # each request to ZooKeeper waits two seconds: 28 s on a quiet machine
        assert terminals.process.wait(120) == 0
    finally:
        if terminals.process.poll() is None:
            terminals.process.terminate()
            terminals.process.wait(900)
