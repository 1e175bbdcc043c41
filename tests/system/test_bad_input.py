"""User code that misbehaves on real slots: the run ends with a sentence and the right status, and
never hangs.

One cluster serves all tests; mistakes that show before Spark starts are
tests/app/test_job_file.py's.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    ReplayableSpout,
    StatefulBolt,
    TopologyBuilder,
    Tuple,
)
from sparkstorm.client.dead_letters import stored_in
from sparkstorm.common.config import merge
from sparkstorm.common.errors import (
    EmbeddedServerError,
    InvalidConfigError,
    RootInUseError,
    TopologyPausedError,
    WorkerFailedError,
)
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.topology import Topology
from sparkstorm.driver.cluster import Cluster, context_conf
from sparkstorm.driver.dead_letter_file import read_dead_letters
from sparkstorm.driver.exit_status import FAILED, OK, PARKED
from sparkstorm.driver.job_file import JobFile
from sparkstorm.driver.results import Result
from sparkstorm.driver.run import Run, end
from sparkstorm.extensions.embedded.process import free_port
from tests.system.main_job import MainJob

pytestmark = [pytest.mark.system, pytest.mark.sampled]
POISON = 7


class Numbers(ReplayableSpout):
    """0, 1, 2, ... up to a count."""

    outputs = ("number",)

    def __init__(self, count: int) -> None:
        self._count, self._next = count, 0

    def open(self, conf: Any, context: Any, collector: Any) -> None:
        self._collector = collector

    def next_tuple(self) -> None:
        if self._next < self._count:
            self._collector.emit((self._next,), self._next)
            self._next += 1

    def is_exhausted(self) -> bool:
        return self._next >= self._count

    def snapshot(self) -> Any:
        return self._next

    def restore(self, position: Any) -> None:
        self._next = position


class Suicidal(Numbers):
    def next_tuple(self) -> None:
        print("the spout of this test ends its process")
        os._exit(3)


class Bad(BasicBolt):
    """Passes numbers on, except where its kind of badness strikes."""

    outputs = ("number",)

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def prepare(self, conf: Any, context: Any) -> None:
        print("prepare of the bad bolt")
        if self._kind == "prepare":
            raise ValueError("no table of that name")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        number = tup.values[0]
        if self._kind == "every" or number == POISON:
            misbehave(self._kind, number, collector)
        collector.emit((number,))


def misbehave(kind: str, number: int, collector: BasicOutputCollector) -> None:
    if kind in ("one", "every"):
        raise ValueError(f"cannot stand {number}")
    if kind == "exit":
        os._exit(9)
    if kind == "orderly exit":
        os._exit(0)  # the code of a worker that was ordered to end
    if kind == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "codec":
        collector.emit((object(),))


class Seen(StatefulBolt):
    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        number = tup.values[0]
        self.state.put(number, self.state.get(number, 0) + 1)


def a_topology(kind: str, spout: Numbers | None = None) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("numbers", spout or Numbers(50))
    builder.set_bolt("bad", Bad(kind)).shuffle_grouping("numbers")
    builder.set_bolt("seen", Seen()).fields_grouping("bad", "number")
    return builder.build()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        "storm.local.dir": str(tmp_path_factory.mktemp("cluster")),
        "supervisor.worker.shutdown.sleep.secs": 1,
        "worker.heartbeat.frequency.secs": 0.2,
    }
    conf = merge(settings)
    # The JVM of this process may remember the master of an earlier module's session.
    with (
        SparkContext(conf=context_conf(conf).setMaster("local[3]")) as context,
        Cluster.open(conf, context) as opened,
    ):
        yield opened


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Callable[..., int]:
    """Run a bad topology to its end on the shared cluster."""

    def run_it(kind: str, spout: Numbers | None = None, **settings: Any) -> int:
        own = {
            "topology.workers": 1,
            "topology.retry.backoff.ms": 1,
            "sparkstorm.progress.interval.ms": 100,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        results = (Result("seen", directory=str(tmp_path), top=0),)
        job = JobFile(
            "job.yaml", f"bad-{kind.replace(' ', '-')}", "here:build", results=results, own_conf=own
        )
        return Run(job, a_topology(kind, spout), [__name__]).on(cluster)

    return run_it


def seen(folder: Path) -> list[int]:
    lines = next(folder.glob("*/seen.jsonl")).read_text().splitlines()
    numbers = [tuple(json.loads(line)) for line in lines]
    assert all(times == 1 for _, times in numbers)
    return sorted(number for number, _ in numbers)


def test_a_good_bolt_sees_every_number_once_and_its_prints_are_in_the_workers_log(
    run: Callable[..., int], cluster: Cluster, tmp_path: Path
) -> None:
    assert run("good") == OK
    assert seen(tmp_path) == list(range(50))
    logs = [path.read_text() for path in cluster.log_dir.glob("bad-*.log")]
    assert any("prepare of the bad bolt" in log for log in logs)


def test_a_bolt_that_raises_on_prepare_ends_the_run_with_its_words_and_log(
    run: Callable[..., int], cluster: Cluster
) -> None:
    sentence = r"(?s)could not be prepared: ValueError: no table of that name"
    with pytest.raises(WorkerFailedError, match=sentence):
        run("prepare")
    assert cluster.service.summaries() == []


def test_a_bolt_that_raises_on_every_tuple_parks_them_all_under_one_cause_and_they_are_kept(
    run: Callable[..., int], cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("every", topology_max_retries=1) == PARKED
    assert seen(tmp_path) == []
    said = capsys.readouterr().out
    file = next(tmp_path.glob("*/dead-letters.jsonl"))
    assert f"50 tuples were parked after their tries; they are in {file}; the first causes" in said
    causes = said.partition("the first causes")[2].splitlines()[1:]
    assert (
        len(
            [
                line
                for line in causes
                if line.startswith("  bad: ValueError (test_bad_input.py, line ")
            ]
        )
        == 1
    )
    assert "50 tuples, the first [" in causes[0]
    assert "tuples are parked; they are written to" in said.partition("the first causes")[0]
    result = sorted(letter.values for _, letter in read_dead_letters(file))
    assert result == [(number,) for number in range(50)]
    assert stored_in(cluster.stores.connection.redis, "bad-every") == {file.parent.name: 50}, (
        "they outlive the run in Redis as well"
    )


def test_a_bolt_that_fails_on_most_inputs_is_paused_and_the_run_says_why_and_keeps_the_rest(
    run: Callable[..., int], cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = r"bolt 'bad' is paused: .* ValueError: cannot stand \d+ .*`sparkstorm activate"
    with pytest.raises(TopologyPausedError, match=sentence):
        run("every", Numbers(3000), topology_max_retries=1)
    assert "is kept as it stands; the same command goes on with it" in capsys.readouterr().out
    (summary,) = cluster.service.summaries()
    assert summary.status is TopologyStatus.INACTIVE
    handle = cluster.client.topology("bad-every")
    assert 100 <= handle.progress().parked <= 200
    assert any(
        group.newest and "'bad' is paused" in group.newest.text for group in handle.failures()
    )
    end(handle)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("one", "ValueError: cannot stand 7"),
        ("exit", "killed its worker 3 times"),
        ("orderly exit", "killed its worker 3 times"),
        ("segfault", "killed its worker 3 times; the last: killed by signal 11"),
        ("codec", "'bad'"),
    ],
)
def test_a_tuple_that_does_harm_is_parked_and_all_others_are_exact(
    run: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    cause: str,
) -> None:
    assert run(kind) == PARKED
    assert seen(tmp_path) == [number for number in range(50) if number != POISON]
    said = capsys.readouterr().out
    assert "1 tuple was parked" in said
    assert cause in said.partition("the first causes")[2]


def test_a_spout_that_kills_its_worker_again_and_again_ends_the_run_with_the_log(
    run: Callable[..., int],
) -> None:
    sentence = r"(?s)died 6 times.*the spout of this test ends its process"
    with pytest.raises(WorkerFailedError, match=sentence):
        run("good", Suicidal(5))


def test_taken_ports_are_named_and_nothing_is_left_running(
    cluster: Cluster, tmp_path: Path
) -> None:
    taken = cluster.stores.connection.redis.port
    conf = merge({"storm.local.dir": str(tmp_path), "sparkstorm.embedded.redis.port": taken})
    sentence = rf"port {taken} .*is taken.*sparkstorm\.embedded\.redis\.port"
    with pytest.raises(EmbeddedServerError, match=sentence):
        Cluster.open(conf, cluster.sc).__enter__()
    assert not list(tmp_path.glob("*/*.pid"))


def test_a_second_driver_on_the_root_is_refused_and_the_first_ones_slots_go_on(
    cluster: Cluster, run: Callable[..., int], tmp_path: Path
) -> None:
    at = cluster.stores.connection
    settings = {
        "storm.local.dir": str(tmp_path / "second"),
        "sparkstorm.redis.url": f"redis://:{at.redis.password}@{at.redis.host}:{at.redis.port}",
        "storm.zookeeper.servers": [at.zookeeper.hosts],
        "storm.zookeeper.auth.password": at.zookeeper.password,
        "sparkstorm.slots.start.timeout.ms": 3000,
    }
    refusal = (
        rf"/storm belongs to driver process {os.getpid()} on host .*set storm\.zookeeper\.root"
    )
    with pytest.raises(RootInUseError, match=refusal):
        Cluster.open(merge(settings), cluster.sc).__enter__()
    assert cluster.slots.running() == 2 and run("good") == OK


def test_an_open_redis_on_another_host_is_refused_before_anything_starts(
    cluster: Cluster, tmp_path: Path
) -> None:
    conf = merge(
        {"storm.local.dir": str(tmp_path), "sparkstorm.redis.url": "redis://redis.invalid"}
    )
    sentence = r"redis\.invalid:6379 is not on loopback and has no password"
    with pytest.raises(InvalidConfigError, match=sentence):
        Cluster.open(conf, cluster.sc).__enter__()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., MainJob]]:
    """The command line itself, with a job file whose topology is never reached."""
    (tmp_path / "words.txt").write_text("a b c\n")
    started: list[MainJob] = []

    def start(master: str, **settings: Any) -> MainJob:
        plain = {key.replace("_", "."): value for key, value in settings.items()}
        root = Path(__file__).parents[2]
        made = MainJob(
            tmp_path, root / "conf" / "wordcount.yaml", [tmp_path / "words.txt"], master, plain
        )
        started.append(made)
        made.start()
        return made

    yield start
    for made in started:
        made.close()


def test_a_redis_that_does_not_answer_ends_the_run_with_its_address(
    job: Callable[..., MainJob],
) -> None:
    port = free_port()
    run = job("local[3]", sparkstorm_redis_url=f"redis://127.0.0.1:{port}")
    assert run.wait() == FAILED
    assert f"Store unavailable: Redis at 127.0.0.1:{port} cannot be used" in run.output()
    assert "Traceback" not in run.output()
