"""Checks arguments and texts of the verbs: plans, tables, levels, times; without a cluster."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.cli.__main__ import main, parser
from sparkstorm.cli.changes import log_levels, plan_record, plan_text, rebalance_options
from sparkstorm.cli.common import lasted, when
from sparkstorm.cli.dead_letters import letter_text
from sparkstorm.cli.jobs import cluster_environment
from sparkstorm.cli.terminal import table
from sparkstorm.cli.topologies import (
    error_text,
    failures_text,
    problems_of,
    status_text,
    tasks_text,
)
from sparkstorm.client.logs import LogReader, last_lines
from sparkstorm.common.config import keys, merge
from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.common.model.assignment import ExecutorId, TaskInfo, WorkerSlot
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Cause, Failure, FailureGroup, FailureKind
from sparkstorm.common.model.names import counted, shown
from sparkstorm.common.model.requests import LogLevel, RebalancePlan
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.control_plane.insight.records import CulpritView, TopologyReport
from sparkstorm.control_plane.insight.topology_views import error_view
from sparkstorm.driver.cluster import Cluster
from sparkstorm.driver.driver_office import this_driver
from sparkstorm.driver.job_options import add_options as add_job_options
from sparkstorm.driver.replay.options import add_options as add_replay_options
from sparkstorm.driver.standing import (
    LeaderWatch,
    ProblemWatch,
    TopologyWatch,
    cluster_conf,
    hold,
    up_lines,
)
from tests.insight.watched import watched

JOBS = Path(__file__).parents[2] / "jobs"
ONE, TWO = WorkerSlot("node-1", 6700), WorkerSlot("node-2", 6700)
TASKS = {1: TaskInfo("lines", "spout"), 2: TaskInfo("count", "bolt"), 3: TaskInfo("count", "bolt")}
PLAN = RebalancePlan(
    "words-1-1",
    {ExecutorId(1, 1): ONE, ExecutorId(2, 3): ONE},
    {ExecutorId(1, 1): ONE, ExecutorId(2, 2): TWO},
    (ExecutorId(3, 3),),
    2,
    4,
)


def test_a_plan_names_every_executor_that_moves_ends_or_finds_no_slot() -> None:
    assert plan_text(PLAN, TASKS).splitlines() == [
        "plan for words-1-1: 1 -> 2 workers, 1 executor stays",
        "  count#2-2: new -> node-2:6700",
        "  count#2-3: ends on node-1:6700",
        "  count#3-3: no slot is free for it",
    ]
    assert plan_record(PLAN) == {
        "topology_id": "words-1-1",
        "workers": {"before": 1, "wanted": 2, "given": 2},
        "stay": ["1-1"],
        "move": [{"executor": "2-2", "from": None, "to": "node-2:6700"}],
        "end": [{"executor": "2-3", "on": "node-1:6700"}],
        "unplaced": ["3-3"],
    }


@pytest.mark.parametrize(
    ("wanted", "slots", "words"),
    [
        (99, 2, "1 -> 2 workers (99 wanted: 2 slots are there for it), 1 executor stays"),
        (99, 9, "1 -> 2 workers (99 wanted: its scheduler takes 2 of 9 slots), 1 executor stays"),
        (2, 9, "1 -> 2 workers, 1 executor stays"),
    ],
)
def test_a_plan_says_how_many_workers_were_wanted_and_are_given(
    wanted: int, slots: int, words: str
) -> None:
    assert words in plan_text(replace(PLAN, wanted_workers=wanted, slots=slots), TASKS)


def test_more_workers_than_executors_are_never_given() -> None:
    few = replace(
        PLAN,
        after={ExecutorId(1, 1): ONE, ExecutorId(2, 2): TWO},
        unplaced=(),
        wanted_workers=5,
        slots=9,
    )
    assert few.shortfall == "it has 2 executors"


def rebalance(*arguments: str) -> RebalanceOptions:
    return rebalance_options(parser().parse_args(["rebalance", "words", *arguments]))


def test_a_rebalance_is_read_from_its_arguments() -> None:
    assert rebalance(
        "--workers", "3", "--executors", "count=4", "lines=1", "-c", "topology.max.spout.pending=7"
    ) == RebalanceOptions(3, {"count": 4, "lines": 1}, {"topology.max.spout.pending": 7})
    assert rebalance("--reassign") == RebalanceOptions(reassign=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--executors", "count"], "'count' is not of the form COMPONENT=N"),
        (["--executors", "count=many"], "--executors count=many: expected a number"),
        (["--executors", "count=-1"], "expected a number of executors"),
        (["-c", "topology.wrokers=3"], "did you mean topology.workers"),
    ],
)
def test_a_rebalance_that_is_none_is_refused_by_its_argument(
    arguments: list[str], said: str
) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        rebalance(*arguments)


def test_log_levels_are_read_with_their_times() -> None:
    result = log_levels(["root=debug:60", "a.b=WARNING", "c=RESET"])
    assert result == {"": LogLevel("DEBUG", 60_000), "a.b": LogLevel("WARNING"), "c": LogLevel("")}
    for odd in ("root", "root=LOUD", "root=DEBUG:soon", "=DEBUG", "root=DEBUG:-1"):
        with pytest.raises(InvalidConfigError):
            log_levels([odd])


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0 s"),
        (-5, "0 s"),
        (59_400, "59 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h 0 min"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_spans_of_time_have_two_units(ms: int, said: str) -> None:
    assert lasted(ms) == said


def test_a_table_sets_numbers_right_and_texts_left() -> None:
    result = table(("name", "n"), [("a", 1), ("long name", 12_345)]).splitlines()
    assert result == ["name            n", "a               1", "long name  12,345"]
    result = table(("name", "n"), [("a", None), ("b", "x")]).splitlines()
    assert result == ["name  n", "a     -", "b     x"]


@pytest.fixture(scope="module")
def words() -> TopologyReport:
    """Return a simulated word count of which a bolt fails: all of its times are the
    simulation's.
    """
    with watched() as run:
        run.feed(20_000)
        run.feed(3, "a bad word")
        view = run.sampler.topology("words")
    workers = {
        slot: replace(each, pid=7, memory_mb=61, cpu_percent=97)
        for slot, each in view.workers.items()
    }
    return replace(view, workers=workers, owner="eve")


def test_a_status_shows_health_counts_workers_and_what_is_wrong(words: TopologyReport) -> None:
    one, two = words.workers.values()
    failed = replace(
        one, slot="node-3:6700", state="FAILED", start_ms=None, message="no\x1b[2J\nits log"
    )
    lost = replace(
        one,
        slot="node-4:6700",
        state="no heartbeat",
        pid=None,
        start_ms=None,
        beat_ms=None,
        memory_mb=None,
    )
    count = words.components["count"]
    counts = replace(count.counts, parked=5, replayed=2)
    found = replace(
        words,
        sentence="words keeps up\x1b[2J",
        culprits=(CulpritView("late", "count", "count: 10 of 20 inputs\x1b[2J"),),
        components={
            **words.components,
            "count": replace(count, counts=counts, held=3, watermark_ms=1_790_000_000_000),
        },
        workers={
            each.slot: each
            for each in (replace(one, message="died\nand its log"), failed, lost, two)
        },
        problems=("too few slots", "worker node-3:6700: no\x1b[2J"),
        dead_letters=3,
    )
    lines = status_text(found, words.launch_ms + 61_000).splitlines()
    assert lines[0] == f"{words.id} is ACTIVE, up 1 min 1 s, of eve"
    assert lines[1] == "words keeps up\\x1b[2J"
    assert lines[6].split() == [
        "component",
        "tasks",
        "emitted",
        "executed",
        "acked",
        "failed",
        "parked",
        "pending",
    ]
    assert next(line.split() for line in lines if line.startswith("count "))[-2:] == ["3", "0"], (
        "what was replayed is not parked"
    )
    assert "late   count      count: 10 of 20 inputs\\x1b[2J" in lines
    assert f"watermark: count {when(1_790_000_000_000)}" in lines
    assert "component 'count' holds 3 inputs that it has neither acked nor failed" in lines
    result = [line.split()[1] for line in lines if line.startswith("node")]
    assert result == ["RUNNING", "FAILED", "no", "RUNNING"]
    end = ["worker node-3:6700: no\\x1b[2J", "its log", f"worker {one.slot}: died"]
    assert lines[-5:] == [
        *end,
        "problem: too few slots",
        "3 dead letters: sparkstorm dead-letters list words",
    ]


def test_a_status_without_counts_says_so_and_shows_none(words: TopologyReport) -> None:
    lines = status_text(
        replace(words, problem="Redis at host:1 does not answer"), words.launch_ms
    ).splitlines()
    assert lines[1] == "problem: counts cannot be read: Redis at host:1 does not answer"
    assert not any(line.startswith("component") for line in lines)
    assert any(line.startswith("node1:6700") for line in lines)


RENDERED_STATUS = """\
words-1-1767225600 is ACTIVE, up 0 s, of eve
words does not run well: count: 3 inputs became dead letters; 21.7 k tuples/s, p99 3 ms (last 3 s)

fault         component  why
dead letters  count      count: 3 inputs became dead letters

component  tasks  emitted  executed   acked  failed  parked  pending
count          2        0    40,018  40,006       3       3        0
lines          1   20,003         0  20,000       3       0        0
split          2   40,009    20,003  20,003       0       0        0
complete latency: p50 3 ms, p99 3 ms

worker      state    pid  up   last beat  MiB  CPU %
node1:6700  RUNNING  7    0 s  0 s ago     61     97
node2:6700  RUNNING  7    0 s  0 s ago     61     97
3 dead letters: sparkstorm dead-letters list words"""
RENDERED_TASKS = {
    80: """\
task       worker      up   emitted  executed  failed  queued  execute us
                                                               p50/p95/p99
__acker#1  node1:6700  2 s        0         0       0       0  -
__acker#2  node2:6700  2 s        0         0       0       0  -
count#3    node1:6700  2 s        0    20,015      12       0  0/0/0
  last error: ValueError: a bad word in a long sentence that goes on an...
count#4    node2:6700  2 s        0    20,003       0       0  0/0/0
  last error: ValueError: a bad word in a long sentence that goes on an...
lines#5    node1:6700  2 s   20,003         0       3       0  -
split#6    node2:6700  2 s   20,006    10,002       0       0  0/0/0
split#7    node1:6700  2 s   20,003    10,001       0       0  0/0/0""",
    120: """\
task       worker      up   emitted  executed  failed  queued  execute us p50/p95/p99  last error
__acker#1  node1:6700  2 s        0         0       0       0  -                       -
__acker#2  node2:6700  2 s        0         0       0       0  -                       -
count#3    node1:6700  2 s        0    20,015      12       0  0/0/0                   ValueError: a bad word in a long
                                                                                       sentence that goes on an...
count#4    node2:6700  2 s        0    20,003       0       0  0/0/0                   ValueError: a bad word in a long
                                                                                       sentence that goes on an...
lines#5    node1:6700  2 s   20,003         0       3       0  -                       -
split#6    node2:6700  2 s   20,006    10,002       0       0  0/0/0                   -
split#7    node1:6700  2 s   20,003    10,001       0       0  0/0/0                   -""",
}


@pytest.mark.parametrize("width", [80, 120])
def test_status_and_tasks_fit_the_terminal(words: TopologyReport, width: int) -> None:
    by_task = {
        task: each
        for component in words.components.values()
        for task, each in component.tasks.items()
    }
    error = "ValueError: a bad word in a long sentence that goes on and on"
    by_task = {
        task: replace(each, last_error=error if each.component == "count" else "")
        for task, each in by_task.items()
    }
    assert status_text(words, words.launch_ms, width) == RENDERED_STATUS
    assert tasks_text(by_task, width) == RENDERED_TASKS[width]


def test_what_workers_say_cannot_command_a_terminal() -> None:
    assert shown("a\x1b[31mred\x07\ttab\x9b") == "a\\x1b[31mred\\x07\ttab\\x9b"
    error = Failure(
        FailureKind.SYSTEM, "boom\x1b]0;title\nnext", "count", 2, "host", "node-1:6700", 0
    )
    said = error_text(error_view(error))
    assert "\x1b" not in said and said.endswith("boom\\x1b]0;title\nnext")
    letter = DeadLetter(
        Failure(FailureKind.RAISED, "bad \x1b", "count", 2),
        "lines",
        1,
        "default",
        ("word",),
        ("\x1b[2J",),
        4,
    )
    assert letter_text("1-1", replace(letter, roots=(255,))).endswith(
        "\n  message 00000000000000ff"
    )
    assert "\x1b" not in letter_text("1-1", letter)
    assert "word: '\\x1b[2J'" in letter_text("1-1", letter)


class Log:
    """Published parts of one worker's log."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = [(f"{n}-0", part) for n, part in enumerate(parts, 1)]

    def log_slots(self) -> list[str]:
        return ["node-1:6700"]

    def log(self, slot: str, after: str = "0") -> list[tuple[str, bytes]]:
        return [
            (id, part) for id, part in self.parts if int(id[:-2]) > int(after.partition("-")[0])
        ]


def test_lines_of_a_log_are_whole_and_come_once() -> None:
    log = Log(b"one\ntw", b"o\nthree\n")
    reader = LogReader(log)
    assert reader.read() == {"node-1:6700": ["one", "two", "three"]}
    assert reader.read() == {}
    log.parts.append(("3-0", b"\xff four\n"))
    assert reader.read() == {"node-1:6700": ["\\xff four"]}
    assert last_lines(log, "node-1:6700", 2) == ["three", "\\xff four"]
    assert last_lines(Log(), "node-1:6700", 2) == []


@pytest.mark.parametrize(
    ("verb", "add_options"), [("run", add_job_options), ("replay", add_replay_options)]
)
def test_every_option_of_a_driver_reaches_it(
    verb: str, add_options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = argparse.ArgumentParser()
    add_options(own)
    words = ["words.yaml"]
    for action in own._actions:
        name = (action.option_strings or ["-h"])[0]
        value = [] if action.nargs == 0 else [next(iter(action.choices or ["a=value"]))]
        words += [] if name == "-h" else [name, *value]
    begun: list[list[str]] = []
    monkeypatch.setattr("sparkstorm.extensions.embedded.java.find_java", lambda: "/java/bin/java")
    monkeypatch.setattr("os.execve", lambda program, command, environment: begun.append(command))
    arguments = parser().parse_args([verb, *words])
    arguments.run(arguments)
    ((_, _, _, *passed),) = begun  # python -m MODULE
    assert vars(own.parse_args(passed)) == vars(own.parse_args(words))
    assert all(vars(own.parse_args(passed)).values())


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["status", "words"],
        ["errors", "words"],
        ["kill", "words"],
        ["activate", "words"],
        ["deactivate", "words"],
        ["rebalance", "words", "--workers", "2"],
        ["restart", "words"],
        ["log-level", "words", "root=DEBUG"],
        ["logs", "words"],
        ["follow", "words"],
        ["dead-letters", "list"],
        ["dead-letters", "show", "words", "1-1"],
        ["dead-letters", "replay", "words", "--all"],
        ["dead-letters", "drop", "words", "--all"],
        ["submit", "no.yaml"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_a_verb_without_a_cluster_says_so_in_one_sentence(
    arguments: list[str],
    more: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SPARKSTORM_CLUSTER", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")  # no contexts
    assert main([*arguments, *more]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("no cluster is named: give its connection file (--cluster FILE)")
    assert main([*arguments, *more, "--cluster", "/nowhere/connection.json"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "No such file" in said.err


# -- the cluster -----------------------------------------------------------------------------------


def environment_of(*words: str, home: Path = Path("/spark"), **environment: str) -> dict[str, str]:
    return cluster_environment(
        parser().parse_args(words), environment, "/venv/bin/python", Path("/java"), home
    )


def test_a_cluster_is_started_by_this_python_with_a_java_and_sparks_options() -> None:
    words = ("cluster", "my.yaml", "-c", "a=1", "--master", "local[4]", "--spark", "spark.x=a b")
    environment = environment_of(*words, PATH="/usr/bin", SPARK_LOCAL_IP="10.0.0.1")
    assert (environment["PATH"], environment["JAVA_HOME"]) == ("/venv/bin:/usr/bin", "/java")
    assert environment["PYSPARK_PYTHON"] == "/venv/bin/python"
    assert environment["SPARK_LOCAL_IP"] == "10.0.0.1"
    result = environment["PYSPARK_SUBMIT_ARGS"]
    assert result == "--master 'local[4]' --conf 'spark.x=a b' pyspark-shell"
    assert (Path(environment["SPARK_CONF_DIR"]) / "log4j2.properties").exists()
    assert "PYSPARK_SUBMIT_ARGS" not in environment_of("cluster")


@pytest.mark.parametrize(
    ("words", "defaults", "is_loopback"),
    [
        ((), "", True),
        (("--master", "local[3]"), "spark.master spark://head:7077", True),
        (("--master", "local-cluster[2,1,1024]"), "", True),
        (("--master", "spark://head:7077"), "", False),
        (("--spark", "spark.master=yarn"), "", False),
        ((), "spark.ui.enabled false\nspark.master  spark://head:7077\n", False),
        ((), "spark.master=k8s://head", False),
        ((), "# spark.master spark://head:7077", True),
    ],
)
@pytest.mark.parametrize("verb", [("cluster",), ("run", "job.yaml")])
def test_a_driver_is_on_loopback_on_a_local_master_alone(
    verb: tuple[str, ...], words: tuple[str, ...], defaults: str, is_loopback: bool, tmp_path: Path
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(defaults)
    environment = environment_of(*verb, *words, home=tmp_path)
    assert (environment.get("SPARK_LOCAL_IP") == "127.0.0.1") is is_loopback


def test_a_spark_defaults_file_is_not_hidden(tmp_path: Path) -> None:
    assert "SPARK_CONF_DIR" in environment_of("cluster", home=tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.authenticate.secret of-mine\n")
    assert "SPARK_CONF_DIR" not in environment_of("cluster", home=tmp_path)
    result = environment_of("cluster", home=tmp_path, SPARK_CONF_DIR="/mine")["SPARK_CONF_DIR"]
    assert result == "/mine"


def test_a_cluster_with_servers_of_its_own_has_a_folder_of_its_own() -> None:
    assert cluster_conf({})["storm.local.dir"] == "storm-local/cluster"
    assert cluster_conf({"storm.local.dir": "mine"})["storm.local.dir"] == "mine"
    own = {"sparkstorm.redis.url": "redis://r", "storm.zookeeper.servers": ["z"]}
    assert cluster_conf(own)["storm.local.dir"] == "storm-local"


def test_a_cluster_says_where_its_files_are_and_how_to_submit(tmp_path: Path) -> None:
    conf = merge({"storm.local.dir": str(tmp_path)})
    said = "\n".join(up_lines(conf, 2, f"{tmp_path}/logs"))
    assert "2 slots" in said
    assert f"export SPARKSTORM_CLUSTER={tmp_path}/connection.json" in said
    assert "none (see" in said
    (tmp_path / "connection-read-only.json").touch()
    assert f"only look: {tmp_path}/connection-read-only.json" in "\n".join(
        up_lines(conf, 2, "/logs")
    )
    gone = "the next start deletes its topologies and all data"
    assert up_lines(conf, 2, "/logs", gone)[-1] == f"Ctrl-C stops the cluster; {gone}"


def test_topologies_that_come_change_and_go_are_said_once() -> None:
    looks: list[Any] = [
        {"a": "ACTIVE"},
        {"a": "ACTIVE"},
        StoreUnavailableError("away"),
        {"a": "KILLED", "b": "ACTIVE"},
        {"b": "ACTIVE", "c": "KILLED"},
    ]
    said: list[str] = []

    def statuses() -> dict[str, str]:
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return dict(found)

    watch = TopologyWatch(statuses, said.append)
    while looks:
        watch.look()
    result = said
    assert result == ["a is ACTIVE", "a is KILLED", "b is ACTIVE", "a is gone", "c is KILLED"]
    assert watch.names() == ["b"]


def test_a_driver_says_each_problem_once_a_minute_and_a_new_death_at_once() -> None:
    said: list[str] = []
    now, found = [100.0], {"words-1-1": ["work stands still: Redis is at 61% of its maxmemory"]}
    watch = ProblemWatch(lambda: found, said.append, lambda: now[0])

    def look(*sentences: str, after: float = 2.0) -> list[str]:
        found["words-1-1"], now[0] = [*sentences], now[0] + after
        said.clear()
        watch.look()
        return said

    result = look("work stands still: Redis is at 61% of its maxmemory")
    assert result == ["problem (words-1-1): work stands still: Redis is at 61% of its maxmemory"]
    assert look("work stands still: Redis is at 63% of its maxmemory") == []
    assert look("worker n1:6700 died at 12:00:01: exit status 7", after=1.0) == [], (
        "heartbeats are read every two seconds"
    )
    assert look("worker n1:6700 died at 12:00:01: exit status 7", after=1.0) != []
    assert (
        look("worker n1:6700 died at 12:00:04, 2 times in the last five minutes: exit status 7")
        != []
    )
    assert look("work stands still: Redis is at 64% of its maxmemory", after=61.0) != []


def test_a_driver_says_when_another_leads_and_when_it_leads_itself() -> None:
    me, other, third = (replace(this_driver(), pid=pid, host="here") for pid in (1, 2, 3))
    looks = [None, me, me, other, None, other, third, me, me]
    said: list[str] = []
    watch = LeaderWatch(me, lambda: looks.pop(0), said.append)
    while looks:
        watch.look()
    assert said == [
        "driver process 2 on host here leads; this one stands by",
        "driver process 3 on host here leads; this one stands by",
        "this driver leads now",
    ]


@pytest.mark.parametrize(
    "words",
    ["tail wc lines -n 0", "tail wc lines --seconds nan", "logs wc -n -1", "kill wc --wait -5"],
)
def test_numbers_below_their_least_are_wrong_arguments(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(words.split())
    assert "must be at least" in capsys.readouterr().err


def test_explain_prints_effect_values_and_default_of_the_keys_that_a_pattern_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "nimbus.task.*.secs", "nimbus.seeds"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("nimbus.task.timeout.secs: ")
    assert lines[3].startswith("nimbus.task.launch.secs: ")
    assert lines[1:3] == [
        "    values: a number (s), at least 0.1",
        "    default: 30; set for the cluster",
    ]
    assert (
        lines[6]
        == "nimbus.seeds: not supported: clients find Nimbus through ZooKeeper; give them the connection file"
    )


def test_explain_suggests_the_nearest_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "topology.worker"]) == 1
    result = capsys.readouterr().err
    assert result == "no key is named topology.worker; did you mean topology.workers?\n"


def test_every_key_is_explained_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    for name, key in keys().items():
        assert main(["explain", name]) == 0
        assert capsys.readouterr().out.startswith(f"{name}: {key.doc}\n")


@pytest.mark.parametrize(
    ("option", "line"),
    [
        (None, "split      bolt           2      2  lines (local or shuffle)"),
        ("--mermaid", '    n1 -->|"by word"| n2'),
        ("--dot", '    "split" -> "count" [label="by word"];'),
    ],
)
def test_show_prints_the_topology_of_a_job_file(
    option: str | None,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(JOBS))
    assert (
        main(["show", str(JOBS.parent / "conf" / "wordcount.yaml"), *([option] if option else [])])
        == 0
    )
    assert line in capsys.readouterr().out.splitlines()


def test_show_writes_a_picture_and_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(JOBS))
    job = str(JOBS.parent / "conf" / "wordcount.yaml")
    assert main(["show", job, "--svg"]) == main(["show", job, "--json"]) == 0
    svg, record = capsys.readouterr().out.splitlines()
    assert svg.startswith("<svg ") and "topology wordcount" in svg
    assert [node["id"] for node in json.loads(record)["nodes"]] == ["lines", "split", "count"]


def test_failures_are_told_in_whole_sentences_and_with_the_node() -> None:
    text = "killed its worker 3 times; the last: killed by signal 9 (SIGKILL); the kernel killed it: out of memory, and more"
    newest = Failure(FailureKind.KILLED, text, "count", 2, "vm", "node-2:6700", 0)
    lines = failures_text(FailureGroup(newest.cause, 4, newest)).splitlines()
    assert lines[0] == f"        4  count: {text}" and "node-2:6700 (vm)" in lines[1]
    assert text not in lines[1:], "the sentence is there once"
    raised = Failure(
        FailureKind.RAISED,
        "ValueError: odd 3 (count.py, line 7)",
        "count",
        2,
        "node-2",
        "node-2:6700",
        0,
    )
    lines = failures_text(FailureGroup(raised.cause, 4, raised)).splitlines()
    assert lines[0] == "        4  count: ValueError (count.py, line 7)"
    assert lines[2].strip() == raised.text
    assert "on node-2:6700" in lines[1] and "(node-2)" not in lines[1]
    gone = FailureGroup(Cause("count", "killed its worker * times", ""), 2, None)
    assert failures_text(gone) == "        2  count: killed its worker * times"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("stauts wc", "status"),
        ("dead-leters list", "dead-letters"),
        ("dead-letters lst", "list"),
        ("killl wc", "kill"),
    ],
)
def test_a_misspelt_verb_gets_the_nearest_one(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"did you mean {meant}?\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("dead-letters list none.jsonl", "none.jsonl cannot be read: No such file or directory\n"),
        ("capsule none.jsonl 1-1", "none.jsonl cannot be read: No such file or directory\n"),
        ("capsule none", "none cannot be read as a capsule: No such file or directory\n"),
        ("schedule none", '{"error": "none cannot be read: No such file or directory"}\n'),
    ],
)
def test_a_file_that_does_not_exist_is_named_once(
    words: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 1
    assert "".join(capsys.readouterr()) == text


def test_a_word_that_is_near_nothing_gets_all_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "choose from" in capsys.readouterr().err


def test_one_is_counted_in_the_singular() -> None:
    result = [counted(number, "tuple") for number in (0, 1, 1_200)]
    assert result == ["0 tuples", "1 tuple", "1,200 tuples"]
    assert counted(1, "tuple was", "tuples were") == "1 tuple was"


def test_tasks_are_shown_in_the_order_of_their_numbers(words: TopologyReport) -> None:
    one = next(iter(words.components["count"].tasks.values()))
    said = tasks_text({task: replace(one, task=task) for task in (1, 10, 2)})
    assert re.findall(r"^count#(\d+)", said, re.M) == ["1", "2", "10"]


def test_a_problem_is_said_once_and_not_of_a_topology_that_is_killed(words: TopologyReport) -> None:
    with watched() as run:
        cluster = replace(run.sampler.cluster(), problems={"scheduler": ("too few slots",)})
    ill = replace(
        words, problems=("too few slots", "worker a is dead"), problem="Redis does not answer"
    )
    found = {
        "scheduler": ["too few slots"],
        words.id: ["worker a is dead", "Redis does not answer"],
    }
    assert problems_of(cluster, [ill, replace(ill, id="other-1-1", status="KILLED")]) == found


def test_a_cluster_with_a_web_ui_that_lacks_packages_is_refused_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(Cluster, "open", lambda *args, **kwargs: pytest.fail("it starts"))
    with pytest.raises(InvalidConfigError, match=r"pip install 'sparkstorm\[web\]'"):
        hold(cluster_conf({}), 8080)


def test_a_cluster_whose_web_ui_finds_its_port_taken_is_refused_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Cluster, "open", lambda *args, **kwargs: pytest.fail("it starts"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfigError, match=f"port {port} .* is in use.* --web PORT"):
            hold(cluster_conf({}), port)
