"""Gray upgrades on Spark, Redis and ZooKeeper under load; counts exact in all.

Shadows, three batches of four workers, a rollback by hand, one by itself; then the topology master,
a slot and the driver are killed in the middle of an upgrade.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkstorm.client import TopologyHandle, connect
from sparkstorm.common.errors import RecordingError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.upgrade import UpgradeState
from sparkstorm.extensions.recording.stepping.recorded import recorded
from sparkstorm.extensions.upgrade.state import GrayUpgradeState
from sparkstorm.testing.servers.processes import slot_of
from tests.system.test_standing_cluster import LINES, Terminals, versions_of_exact_counts

pytestmark = [pytest.mark.system, pytest.mark.nightly]
CODE = """
from sparkstorm.api import TopologyBuilder
from sparkstorm.connectors import find_files
from tests.system.gated_count import Count, GatedLines, Split


class SplitBy(Split):
    seen = 0

    def execute(self, tup, collector):
        self.seen += 1
        if FAILS_EVERY and self.seen % FAILS_EVERY == 0:
            raise ValueError("this code does not like every line")
        super().execute(tup, collector)
        if ODD_EVERY and self.seen % ODD_EVERY == 0:
            collector.emit(("odd",))


class CountBy(Count):
    def execute(self, tup, collector):
        super().execute(tup, collector)
        self.state.add("$VERSION", 1)


def build(input, gate):
    builder = TopologyBuilder()
    builder.set_spout("lines", GatedLines(find_files(input), gate, rest_s=0.005))
    builder.set_bolt("split", SplitBy(), parallelism=4).shuffle_grouping("lines")
    builder.set_bolt("count", CountBy(), parallelism=4).fields_grouping("split", "word")
    return builder.build()
"""
NOT_BESIDE = {  # by a module: the sentence with which an upgrade to it is refused
    "gone": "the code does not open in a fresh process",
    "many": "component 'split' has 5 tasks in the new code, 4 run",
    "wide": "component 'split', stream 'default': the new code declares (word, more), (word) runs",
    "long": "the new code adds component 'end'",
}
JOB = """
name: words
topology: {module}:build
arguments: {{input: [{folder}/lines.txt], gate: {folder}/gate}}
results: {{component: count}}
topology.workers: 4
topology.acker.executors: 2
topology.max.spout.pending: 200
topology.max.retries: 100
topology.retry.backoff.ms: 10
topology.upgrade.rollback.min.executed: 300
topology.record.components: [split]
topology.record.directory: {folder}/recordings
"""

MASTERED = "topology.master.single.worker: true\ntopology.scheduler: jstorm\n"


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    made = Terminals(tmp_path)
    for module, version, fails, odd in (
        ("one", "v1", 0, 0),
        ("two", "v2", 0, 0),
        ("bad", "v3", 50, 0),
        ("odd", "v4", 0, 100),
    ):
        text = (
            CODE.replace("VERSION", version)
            .replace("FAILS_EVERY", str(fails))
            .replace("ODD_EVERY", str(odd))
        )
        (tmp_path / f"{module}.py").write_text(text)
        (tmp_path / f"{module}.yaml").write_text(JOB.format(module=module, folder=tmp_path))
    good = (tmp_path / "two.py").read_text()
    gone = "class Gone:\n    def __reduce__(self):\n        return __import__, ('a_module_that_is_nowhere',)\n\n\n"
    for module, text in {
        "gone": gone
        + good.replace(
            "    seen = 0\n", "    def __init__(self):\n        self.gone, self.seen = Gone(), 0\n"
        ),
        "many": good.replace("SplitBy(), parallelism=4", "SplitBy(), parallelism=5"),
        "wide": good.replace("    seen = 0\n", "    outputs = ('word', 'more')\n    seen = 0\n"),
        "long": good.replace(
            "    return builder",
            "    builder.set_bolt('end', CountBy()).shuffle_grouping('split')\n    return builder",
        ),
    }.items():
        (tmp_path / f"{module}.py").write_text(text)
        (tmp_path / f"{module}.yaml").write_text(JOB.format(module=module, folder=tmp_path))
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.terminate()
            made.process.wait(900)


def shadowed(terminals: Terminals, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a verb of upgrades in a Python with pyspark: that is where the replay's steps are."""
    environment = {**os.environ, "SPARKSTORM_CLUSTER": str(terminals.connection)}
    command = [sys.executable, "-m", "sparkstorm.cli", "upgrade", *arguments]
    return subprocess.run(
        command,
        cwd=terminals.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def recording_of(terminals: Terminals, least: int) -> Path:
    """Wait until a task has recorded so many tuples and return its folder."""
    found: list[Path] = []

    def is_long() -> bool:
        for folder in sorted((terminals.folder / "recordings").rglob("task-*")):
            # nothing there yet, or a segment that is packed now
            with contextlib.suppress(RecordingError, FileNotFoundError):
                if sum(len(part.tuples) for part in recorded(folder)) >= least:
                    found.append(folder)
                    return True
        return False

    terminals.wait(is_long, "a recording")
    return found[0]


def processes(terminals: Terminals, handle: TopologyHandle) -> dict[WorkerSlot, int]:
    """Wait for the heartbeats of all workers and return their process ids."""
    found: dict[WorkerSlot, int] = {}

    def all_beat() -> bool:
        found.clear()
        found.update(
            (WorkerSlot(each.node, each.port), each.pid) for each in handle.beats() if each.pid
        )
        return found.keys() >= set(handle.slots())

    terminals.wait(all_beat, "all heartbeats")
    return found


def wait_for_work(terminals: Terminals, handle: TopologyHandle) -> None:
    """Wait until 100 more trees are acked."""
    before = handle.progress().acked
    terminals.wait(lambda: handle.progress().acked > before + 100, "more work")


def require_exact_end(
    terminals: Terminals, handle: TopologyHandle, gate: str, versions: set[str]
) -> None:
    """Open the gate, follow the topology to its end and check its counts, to which each of these
    versions has added.
    """
    (terminals.folder / gate).touch()
    status, out, err = terminals.run("follow", handle.name)
    assert status == 0, out + err
    assert versions == versions_of_exact_counts(handle, terminals.folder)


def test_three_batches_a_rollback_by_hand_and_one_by_itself(terminals: Terminals) -> None:
    (terminals.folder / "lines.txt").write_text("\n".join(LINES) + "\n")
    terminals.wait(
        lambda: "Ctrl-C stops the cluster" in terminals.output.read_text(), "the cluster"
    )
    assert terminals.run("submit", "one.yaml", "--detach")[0] == 0
    with connect(terminals.connection) as cluster:
        handle = cluster.topology("words")
        wait_for_work(terminals, handle)
        require_shadows_that_show_odd_code(terminals, handle)
        wait_for_work(terminals, handle)
        require_code_that_cannot_run_beside_refused(terminals, handle)
        upgrade_in_three_batches(terminals, handle)
        wait_for_work(terminals, handle)
        roll_back_by_hand(terminals, handle)
        wait_for_work(terminals, handle)
        require_failing_code_rolled_back(terminals, handle)
        wait_for_work(terminals, handle)
        require_exact_end(terminals, handle, "gate", {"$v1", "$v2", "$v3"})
        assert handle.progress().parked == 0
        assert terminals.run("kill", "words", "--wait", "0")[0] == 0
    deaths_in_an_upgrade(terminals)
    assert terminals.stop() == 0


def require_shadows_that_show_odd_code(terminals: Terminals, handle: TopologyHandle) -> None:
    """An upgrade to code that emits more does not begin: neither after a recording's shadow nor
    after a live one.
    """
    recording = recording_of(terminals, 300)
    odd = shadowed(
        terminals, "start", "odd.yaml", "--num", "1", "--shadow", str(recording), "--tuples", "200"
    )
    assert (
        odd.returncode == 1
        and "tuples come out differently with the new code; first split#" in odd.stderr
    ), odd
    assert handle.status() == "ACTIVE"

    status, out, err = terminals.run(
        "upgrade", "start", "odd.yaml", "--num", "1", "--live-shadow", "split", "--tuples", "100000"
    )
    assert status == 1 and "come out differently in the shadow of split#" in out, out + err
    assert (
        "; the first:\n  split#" in out and ": emitted: {'default': [['" in out and "['odd']" in out
    ), out
    assert handle.status() == "ACTIVE"


def require_code_that_cannot_run_beside_refused(
    terminals: Terminals, handle: TopologyHandle
) -> None:
    for module, words in NOT_BESIDE.items():
        status, out, err = terminals.run("upgrade", "start", f"{module}.yaml", "--num", "1")
        assert status == 1 and words in err and "Traceback" not in err and not out, (
            module,
            out,
            err,
        )
    assert handle.status() == "ACTIVE"


def upgrade_in_three_batches(terminals: Terminals, handle: TopologyHandle) -> None:
    """Upgrade one, two and one of four workers; kill an upgraded one in between."""
    first = terminals.json(
        "upgrade", "start", "two.yaml", "--num", "1", "--live-shadow", "split", "--tuples", "400"
    )
    assert (first["status"], len(first["upgraded"]), len(first["remaining"])) == (
        "UPGRADING",
        1,
        3,
    ), first
    wait_for_work(terminals, handle)
    upgraded = WorkerSlot.parse(first["upgraded"][0])
    # it comes back with the new code
    os.kill(processes(terminals, handle)[upgraded], signal.SIGKILL)
    second = terminals.json("upgrade", "continue", "words", "--num", "2")
    assert set(first["upgraded"]) < set(second["upgraded"]) and len(second["remaining"]) == 1, (
        second
    )
    status, _, err = terminals.run("upgrade", "start", "two.yaml", "--num", "1")
    assert status == 1 and "a gray upgrade of words is in progress" in err
    wait_for_work(terminals, handle)
    third = terminals.json("upgrade", "continue", "words", "--num", "1")
    assert (third["status"], third["stage"], third["other_code"]) == ("ACTIVE", "NONE", []), third


def roll_back_by_hand(terminals: Terminals, handle: TopologyHandle) -> None:
    """Upgrade two workers that are named, and take them back by a request."""
    named = sorted(map(str, handle.slots()))[:2]
    again = terminals.json("upgrade", "start", "one.yaml", "--workers", *named)
    assert again["upgraded"] == named and again["other_code"] == named, again
    wait_for_work(terminals, handle)
    back = terminals.json("upgrade", "rollback", "words")
    assert (back["status"], back["stage"], back["other_code"]) == ("ACTIVE", "NONE", []), back
    assert "asked for by a request" in back["last_rollback"]["text"]


def require_failing_code_rolled_back(terminals: Terminals, handle: TopologyHandle) -> None:
    """Code that fails one tuple in fifty is taken back by Nimbus."""
    assert (
        terminals.run(
            "upgrade", "start", "bad.yaml", "--component", "split", "--num", "2", "--no-wait"
        )[0]
        == 0
    )
    terminals.wait(
        lambda: "'split' fails" in handle.upgrade.status().last_rollback.text,
        "the rollback",
    )
    terminals.wait(lambda: handle.status() == "ACTIVE", "its end")
    status, out, _ = terminals.run("upgrade", "status", "words")
    assert (
        status == 0
        and "no gray upgrade is under way" in out
        and "of its tuples in upgraded workers" in out
    ), out


BAD = 5
"""Number of the upgrade, of ten, whose code fails one tuple in ten."""


def test_ten_upgrades_in_a_row_with_a_topology_master_and_one_bad_in_the_middle(
    terminals: Terminals,
) -> None:
    (terminals.folder / "lines.txt").write_text("\n".join(LINES) + "\n")
    for n in range(11):
        code = (
            CODE.replace("VERSION", f"u{n}")
            .replace("FAILS_EVERY", "10" if n == BAD else "0")
            .replace("ODD_EVERY", "0")
        )
        (terminals.folder / f"u{n}.py").write_text(code)
        job = JOB.format(module=f"u{n}", folder=terminals.folder).replace(
            "topology.workers: 4", "topology.workers: 3"
        )
        (terminals.folder / f"u{n}.yaml").write_text(job + MASTERED)
    terminals.wait(
        lambda: "Ctrl-C stops the cluster" in terminals.output.read_text(), "the cluster"
    )
    assert terminals.run("submit", "u10.yaml", "--detach")[0] == 0
    with connect(terminals.connection) as cluster:
        handle = cluster.topology("words")
        wait_for_work(terminals, handle)
        for n in range(10):
            if n == BAD:
                assert (
                    terminals.run(
                        "upgrade",
                        "start",
                        f"u{n}.yaml",
                        "--component",
                        "split",
                        "--num",
                        "1",
                        "--no-wait",
                    )[0]
                    == 0
                )
                terminals.wait(
                    lambda: handle.upgrade.status().last_rollback is not None, "the rollback"
                )
                terminals.wait(lambda: handle.status() == "ACTIVE", "its end")
            else:
                status, out, err = terminals.run("upgrade", "start", f"u{n}.yaml", "--num", "9")
                assert status == 0 and "the gray upgrade is complete: all " in out, (n, out, err)
            wait_for_work(terminals, handle)
            assert GrayUpgradeState(cluster.state).upgrade_state(
                handle.topology_id
            ) == UpgradeState(None), n
        (error,) = handle.errors("__topology_master")
        assert "component 'split' fails" in error.text
        assert "% of its tuples in upgraded workers, 0.00 % in the others" in error.text
        require_exact_end(terminals, handle, "gate", {f"$u{n}" for n in range(11)})
        assert handle.progress().parked == 0
    assert terminals.stop() == 0


def deaths_in_an_upgrade(terminals: Terminals) -> None:
    """Upgrade a topology with a topology master; kill the master, a slot that upgrades its worker,
    and the driver.
    """
    for module in ("one", "two"):
        job = JOB.format(module=module, folder=terminals.folder).replace(
            "name: words", "name: mastered"
        )
        job = job.replace("/gate}", "/gate-m}").replace(
            "topology.workers: 4", "topology.workers: 3"
        )
        (terminals.folder / f"m-{module}.yaml").write_text(job + MASTERED)
    assert terminals.run("submit", "m-one.yaml", "--detach")[0] == 0
    with connect(terminals.connection) as cluster:
        handle = cluster.topology("mastered")
        wait_for_work(terminals, handle)
        kill_the_master_in_the_first_batch(terminals, handle)
        wait_for_work(terminals, handle)
        kill_a_slot_in_the_second_batch(terminals, handle)
        wait_for_work(terminals, handle)
        assert terminals.run("upgrade", "continue", "mastered", "--num", "9", "--no-wait")[0] == 0
        terminals.process.kill()
        terminals.process.wait(900)
    times = terminals.output.read_text().count("Ctrl-C stops the cluster")
    terminals.start_cluster()
    terminals.wait(
        lambda: terminals.output.read_text().count("Ctrl-C stops the cluster") > times,
        "the next driver",
    )
    with connect(terminals.connection) as cluster:
        handle = cluster.topology("mastered")

        def is_over() -> bool:
            found = handle.upgrade.status()
            if found.status == "UPGRADING" and found.is_resting and found.remaining:
                # of a worker that was placed anew meanwhile
                terminals.run("upgrade", "continue", "mastered", "--num", "9")
            return found.status == "ACTIVE" and not found.other_code

        terminals.wait(is_over, "the end of the upgrade")
        require_exact_end(terminals, handle, "gate-m", {"$v1", "$v2"})


def kill_the_master_in_the_first_batch(terminals: Terminals, handle: TopologyHandle) -> None:
    (master,) = set(handle.slots()) - set(handle.upgrade.status().remaining)
    slots = slot_processes(terminals, handle)
    assert terminals.run("upgrade", "start", "m-two.yaml", "--num", "1", "--no-wait")[0] == 0
    os.kill(slots[master], signal.SIGKILL)
    terminals.wait(
        lambda: rests_with(handle, 1),
        "the first batch after the death of the topology master's slot",
    )


def kill_a_slot_in_the_second_batch(terminals: Terminals, handle: TopologyHandle) -> None:
    slots, first = slot_processes(terminals, handle), set(handle.upgrade.status().upgraded)
    batch: set[WorkerSlot] = set()

    def has_begun() -> bool:
        found = handle.upgrade.status()
        batch.update({*found.upgrading, *found.upgraded} - first)
        return bool(batch)

    assert terminals.run("upgrade", "continue", "mastered", "--num", "1", "--no-wait")[0] == 0
    terminals.wait(has_begun, "the second batch")
    os.kill(slots[batch.pop()], signal.SIGKILL)
    terminals.wait(lambda: rests_with(handle, 2), "the second batch after the death of its slot")


def slot_processes(terminals: Terminals, handle: TopologyHandle) -> dict[WorkerSlot, int]:
    """Return the process ids of all slots; not in an upgrade: a worker that is being replaced has
    no heartbeat.
    """
    return {slot: slot_of(pid) for slot, pid in processes(terminals, handle).items()}


def rests_with(handle: TopologyHandle, number: int) -> bool:
    """Return whether an upgrade rests between two batches with so many upgraded workers."""
    found = handle.upgrade.status()
    return not found.upgrading and len(found.upgraded) == number and found.status == "UPGRADING"
