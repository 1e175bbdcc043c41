"""The main job as its users run it: exact counts, nothing left behind, whatever is killed, and a
stop that can go on.
"""

from __future__ import annotations

import os
import re
import signal
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.testing.servers.processes import is_gone
from tests.system.main_job import ROOT, MainJob, count_words
from tests.system.recovery import (
    CLUSTER_FAULTS,
    FAULTS,
    Stage,
    executor_of,
    make_corpus,
    run_with_faults,
)
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.system
WORDCOUNT = ROOT / "conf" / "wordcount.yaml"
SLOWLY = {"topology.max.spout.pending": 300}  # each pass is short, and the results stay small
# 2,000 lines/s: work at every death; without a rest the word count takes both cores from what
# starts
REST_S = 0.001
FEW_MODULES = "[a-c]*.py"  # 0.6 MB, the last pass over which is to the end
SOME_MODULES = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-h]*.py"))
ENDLESS = """
from endless_keys import KEYS
from sparkstorm.api import Spout, StatefulBolt, TopologyBuilder

class Forever(Spout):
    outputs = ("number",)
    def open(self, conf, context, collector):
        self.collector, self.next = collector, 0
    def next_tuple(self):
        self.collector.emit((self.next % KEYS,), self.next)
        self.next += 1

class Count(StatefulBolt):
    def execute(self, tup, collector):
        self.state.put(tup.values[0], self.state.get(tup.values[0], 0) + 1)

def build():
    builder = TopologyBuilder()
    builder.set_spout("forever", Forever())
    builder.set_bolt("count", Count(), parallelism=2).fields_grouping("forever", "number")
    return builder.build()
"""


HELD = """
from sparkstorm.api import Bolt, Spout, TopologyBuilder

class One(Spout):
    outputs = ("number",)
    def open(self, conf, context, collector):
        self.collector = collector
    def next_tuple(self):
        self.collector.emit((1,), 1)

class Hold(Bolt):
    def prepare(self, conf, context, collector):
        self.held = []
    def execute(self, tup):
        self.held.append(tup)

def build():
    builder = TopologyBuilder()
    builder.set_spout("one", One())
    builder.set_bolt("hold", Hold()).shuffle_grouping("one")
    return builder.build()
"""


def server_pid(run: MainJob, name: str) -> int:
    """Process id of an embedded server, as soon as it runs."""
    file = run.folder / "storm-local" / name / f"{name}.pid"
    run.wait_for(
        lambda: (
            file.exists()
            and file.read_text().strip()
            and not is_gone(int(file.read_text().split()[0]))
        ),
        name,
    )
    return int(file.read_text().split()[0])


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., MainJob]]:
    made: list[MainJob] = []

    def make(
        job_file: Path = WORDCOUNT, inputs: list[Path] | None = None, **settings: Any
    ) -> MainJob:
        plain = {key.replace("_", "."): value for key, value in settings.items()}
        made.append(MainJob(tmp_path / "run", job_file, inputs or [], "local[3]", plain))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def corpus(tmp_path: Path) -> list[Path]:
    """Text, bytes that are no UTF-8, nothing at all, a last line without an end, a line of 300
    kB.
    """
    contents = {
        "text.txt": b"the quick brown fox\njumps over the lazy dog\n" * 2000,
        "latin.txt": b"caf\xe9 \xff\xfe th\xe9\n" * 500,
        "empty.txt": b"",
        "open.txt": "tail without an end \u2603".encode(),
        "long.txt": b"word " * 60_000 + b"\n",
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    return [tmp_path / name for name in contents]


def test_counts_are_exact_progress_is_shown_and_nothing_is_left(
    job: Callable[..., MainJob], corpus: list[Path]
) -> None:
    run = job(inputs=corpus)
    run.start()
    assert run.wait() == 0  # returns when every process is gone
    assert run.counts() == count_words(corpus)
    said = run.output()
    assert " 0 parked" in said and not list(run.folder.glob("results/*/dead-letters.jsonl"))
    assert re.search(
        r"100\.0 % of \S+ [kM] +[\d,]+ tuples/s  pending 0  acked [\d,]+  failed 0  p50 [\d,]+ ms  p99 [\d,]+ ms",
        said,
    )
    assert "keys, " in said and "results are in " in said and "logs are in " in said
    assert "Traceback" not in said
    logs = run.folder / "storm-local" / "logs"
    result = {path.name for path in logs.glob("slot-*.log")}
    assert result == {"slot-node-1-6700.log", "slot-node-2-6700.log"}
    assert not (run.folder / "storm-local" / "redis").exists()


def test_killed_workers_slots_servers_and_drivers_cost_no_count(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", FEW_MODULES)
    taken = run_with_faults(
        tmp_path / "run", corpus, list(FAULTS.items()), "local[3]", SLOWLY, rest_s=REST_S
    )
    print("\n" + "\n".join(f"{name}: {seconds:.3f} s" for name, seconds in taken))
    assert len(taken) == len(FAULTS)


def require_spread(stage: Stage) -> float:
    """Require that each of three workers is on its own executor."""
    workers = stage.job.workers(stage.sight, 3)
    assert len({executor_of(beat.pid) for beat in workers}) == 3
    return 0.0


@pytest.mark.nightly
def test_three_workers_are_on_three_executors_and_a_killed_one_costs_no_count(
    tmp_path: Path,
) -> None:
    settings = {
        **SLOWLY,
        "sparkstorm.supervisors": 3,
        "topology.workers": 3,
        # three executors need more than the minute of the default on a busy machine
        "sparkstorm.slots.start.timeout.ms": round(1000 * LIMIT_S),
    }
    faults = [("spread", require_spread), *CLUSTER_FAULTS.items()]
    corpus, master = make_corpus(tmp_path / "corpus", FEW_MODULES), "local-cluster[3,2,1024]"
    taken = run_with_faults(tmp_path / "run", corpus, faults, master, settings, rest_s=REST_S)
    print("\n" + "\n".join(f"{name}: {seconds:.3f} s" for name, seconds in taken))


@pytest.mark.nightly
def test_an_interrupted_run_drains_and_the_next_one_goes_on_to_exact_counts(
    job: Callable[..., MainJob],
) -> None:
    # most words are in Redis alone
    lazily = {"topology_state_backend": "lazy", "topology_state_cache_keys": 200}
    run = job(inputs=SOME_MODULES, topology_max_spout_pending=100, **lazily)
    run.start()
    sight = run.sight()
    run.wait_for(lambda: sight.done()[0] > 0, "some progress")
    sight.close()
    run.tree()
    # as a terminal does: the launcher, the driver, all of the group
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait() == 130
    assert "stopping: sources rest" in run.output()
    assert "stopped; every tree is settled" in run.output()
    so_far = run.output().partition("results so far:")[2]
    assert "keys, the sum of their values is" in so_far
    duties = run.folder / "storm-local" / "logs" / "slot-node-1-6700.log"
    before = duties.read_text().count("has the duties")
    run.start()
    run.wait_for(
        lambda: duties.read_text().count("has the duties") > before, "the slots of the second run"
    )
    for _ in range(3):  # while the driver looks for the run and activates it
        run.kill(server_pid(run, "redis"))
        time.sleep(0.3)
    assert run.wait() == 0
    assert "going on with unfinished run" in run.output()
    assert run.counts() == count_words(SOME_MODULES)


@pytest.mark.nightly
def test_an_endless_source_runs_until_it_is_told_to_stop(
    job: Callable[..., MainJob], tmp_path: Path
) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    # next to it: it must travel with the topology
    (tmp_path / "endless_keys.py").write_text("KEYS = 100\n")
    (tmp_path / "endless.yaml").write_text("topology: endless:build\ntopology.workers: 1\n")
    run = job(tmp_path / "endless.yaml")
    run.start()
    sight = run.sight()
    run.wait_for(
        lambda: (
            (seen := sight.progress()) and any(c.acked > 1000 for c in seen.counts_by_task.values())
        ),
        "acks",
    )
    sight.close()
    run.kill(run.driver(), signal.SIGTERM)
    assert run.wait() == 130
    assert "stopped; every tree is settled" in run.output()


@pytest.mark.nightly
def test_a_second_interrupt_ends_at_once_and_leaves_nothing(
    job: Callable[..., MainJob], tmp_path: Path
) -> None:
    # its tuples are never acked: the first interrupt alone waits ten minutes for them
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "held.yaml").write_text(
        "topology: held:build\ntopology.workers: 1\ntopology.message.timeout.secs: 600\n"
    )
    run = job(tmp_path / "held.yaml")
    run.start()
    sight = run.sight()
    run.workers(sight)
    sight.close()
    driver = run.driver()
    run.kill(driver, signal.SIGINT)
    run.wait_for(lambda: "stopping: sources rest" in run.output(), "the first answer")
    run.kill(driver, signal.SIGINT)
    assert run.wait() == 130
