"""Checks arguments and texts of the verbs: plans, tables, levels, times; without a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.app.driver_office import this_driver
from sparkstorm.app.standing import LeaderWatch, TopologyWatch, cluster_conf, up_lines
from sparkstorm.cli.__main__ import main, parser
from sparkstorm.cli.changes import log_levels, plan_record, plan_text, rebalance_options
from sparkstorm.cli.common import lasted, table
from sparkstorm.cli.dead_letters import letter_text
from sparkstorm.cli.jobs import cluster_environment
from sparkstorm.cli.topologies import counts_by_component, error_text, status_text
from sparkstorm.client.logs import LogReader, last_lines, shown
from sparkstorm.config import merge
from sparkstorm.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.model.assignment import ExecutorId, TaskInfo, WorkerSlot
from sparkstorm.model.dead_letter import DeadLetter
from sparkstorm.model.failure import Failure, FailureKind
from sparkstorm.model.requests import LogLevel, RebalancePlan
from sparkstorm.model.status import RebalanceOptions
from sparkstorm.worker.progress import TaskCounts

ONE, TWO = WorkerSlot("node-1", 6700), WorkerSlot("node-2", 6700)
TASKS = {1: TaskInfo("lines", "spout"), 2: TaskInfo("count", "bolt"), 3: TaskInfo("count", "bolt")}
PLAN = RebalancePlan(
    "words-1-1",
    {ExecutorId(1, 1): ONE, ExecutorId(2, 3): ONE},
    {ExecutorId(1, 1): ONE, ExecutorId(2, 2): TWO},
    (ExecutorId(3, 3),),
)


def test_a_plan_names_every_executor_that_moves_ends_or_finds_no_slot() -> None:
    assert plan_text(PLAN, TASKS).splitlines() == [
        "plan for words-1-1: 1 -> 2 workers, 1 executors stay",
        "  count#2-2: new -> node-2:6700",
        "  count#2-3: ends on node-1:6700",
        "  count#3-3: no slot is free for it",
    ]
    assert plan_record(PLAN) == {
        "topology_id": "words-1-1",
        "stay": ["1-1"],
        "move": [{"executor": "2-2", "from": None, "to": "node-2:6700"}],
        "end": [{"executor": "2-3", "on": "node-1:6700"}],
        "unplaced": ["3-3"],
    }


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
def test_a_rebalance_that_is_none_is_refused_by_its_argument(arguments: list[str], said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        rebalance(*arguments)


def test_log_levels_are_read_with_their_times() -> None:
    assert log_levels(["root=debug:60", "a.b=WARNING", "c=RESET"]) == {
        "": LogLevel("DEBUG", 60_000),
        "a.b": LogLevel("WARNING"),
        "c": LogLevel(""),
    }
    for odd in ("root", "root=LOUD", "root=DEBUG:soon", "=DEBUG", "root=DEBUG:-1"):
        with pytest.raises(InvalidConfigError):
            log_levels([odd])


@pytest.mark.parametrize(
    ("ms", "said"),
    [(0, "0 s"), (-5, "0 s"), (59_400, "59 s"), (61_000, "1 min 1 s"), (3_600_000, "1 h 0 min"), (90_000_000, "1 d 1 h")],
)
def test_spans_of_time_have_two_units(ms: int, said: str) -> None:
    assert lasted(ms) == said


def test_a_table_sets_numbers_right_and_texts_left() -> None:
    assert table(("name", "n"), [("a", 1), ("long name", 12_345)]).splitlines() == [
        "name            n",
        "a               1",
        "long name  12,345",
    ]
    assert table(("name", "n"), [("a", None), ("b", "x")]).splitlines() == ["name  n", "a     -", "b     x"]


def test_a_status_shows_counts_workers_and_what_is_wrong() -> None:
    two = {2: TaskCounts("count", executed=2), 3: TaskCounts("count", executed=3)}
    counts = {1: TaskCounts("lines", emitted=5), **two, 4: TaskCounts("__acker")}
    worker: dict[str, Any] = {
        "slot": "node-1:6700",
        "state": "RUNNING",
        "pid": 7,
        "start_ms": 1_000,
        "beat_ms": 60_000,
        "message": "",
    }
    worker |= {"memory_mb": 61, "cpu_percent": 97}
    failed = {"slot": "node-3:6700", "state": "FAILED", "pid": 0, "start_ms": 0, "beat_ms": 61_000}
    found: dict[str, Any] = {
        "topology_id": "words-1-1",
        "name": "words",
        "status": "ACTIVE",
        "launch_ms": 1_000,
        "owner": "eve",
        "progress": {"bad": {"lines": 12}, "p50_ms": 4.0, "p99_ms": 25.4},
        "components": counts_by_component(counts),
        "workers": [worker, {**failed, "message": "no\x1b[2J"}],
        "slots": ["node-1:6700", "node-2:6700"],
        "problems": ["too few slots"],
        "dead_letters": 3,
    }
    assert status_text(found, 61_000).splitlines() == [
        "words-1-1 is ACTIVE, up 1 min 0 s, of eve",
        "",
        "component  tasks  emitted  executed  acked  failed  parked  pending",
        "lines          1        5         0      0       0       0        0",
        "count          2        0         5      0       0       0        0",
        "12 records went to the stream bad of lines",
        "complete latency: p50 4 ms, p99 25 ms",
        "",
        "worker       state         pid  up         last beat  MiB  CPU %",
        "node-1:6700  RUNNING       7    1 min 0 s  1 s ago    61   97",
        "node-3:6700  FAILED        0    -          0 s ago    -    -",
        "node-2:6700  no heartbeat  -    -          -          -    -",
        "worker node-3:6700: no\\x1b[2J",
        "problem: too few slots",
        "3 dead letters: sparkstorm dead-letters list words",
    ]
    gone = {**found, "status": None, "launch_ms": None, "owner": "", "components": {}, "workers": [], "slots": []}
    assert status_text(gone, 61_000).splitlines()[0] == "words-1-1 is gone"


def test_what_workers_say_cannot_command_a_terminal() -> None:
    assert shown("a\x1b[31mred\x07\ttab\x9b") == "a\\x1b[31mred\\x07\ttab\\x9b"
    error = Failure(FailureKind.SYSTEM, "boom\x1b]0;title\nnext", "count", 2, "host", "node-1:6700", 0)
    assert "\x1b" not in error_text(error) and error_text(error).endswith("boom\\x1b]0;title\nnext")
    letter = DeadLetter(Failure(FailureKind.RAISED, "bad \x1b", "count", 2), "lines", 1, "default", ("word",), ("\x1b[2J",), 4)
    assert "\x1b" not in letter_text("1-1", letter) and "word: '\\x1b[2J'" in letter_text("1-1", letter)


class Log:
    """Published parts of one worker's log."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = [(f"{n}-0", part) for n, part in enumerate(parts, 1)]

    def log_slots(self) -> list[str]:
        return ["node-1:6700"]

    def log(self, slot: str, after: str = "0") -> list[tuple[str, bytes]]:
        return [(id, part) for id, part in self.parts if int(id[:-2]) > int(after.partition("-")[0])]


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
    arguments: list[str], more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPARKSTORM_CLUSTER", raising=False)
    assert main([*arguments, *more]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("no cluster is named: give its connection file (--cluster FILE)")
    assert main([*arguments, *more, "--cluster", "/nowhere/connection.json"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "No such file" in said.err


# -- the cluster --------------------------------------------------------------------------------------------------------


def test_a_cluster_is_started_by_this_python_with_a_java_and_sparks_options() -> None:
    given = parser().parse_args(["cluster", "my.yaml", "-c", "a=1", "--master", "local[4]", "--spark", "spark.x=a b"])
    environment = cluster_environment(given, {"PATH": "/usr/bin", "SPARK_LOCAL_IP": "10.0.0.1"}, "/venv/bin/python", Path("/java"))
    assert (environment["PATH"], environment["JAVA_HOME"]) == ("/venv/bin:/usr/bin", "/java")
    assert (environment["PYSPARK_PYTHON"], environment["SPARK_LOCAL_IP"]) == ("/venv/bin/python", "10.0.0.1")
    assert environment["PYSPARK_SUBMIT_ARGS"] == "--master 'local[4]' --conf 'spark.x=a b' pyspark-shell"
    assert (Path(environment["SPARK_CONF_DIR"]) / "log4j2.properties").exists()
    assert "PYSPARK_SUBMIT_ARGS" not in cluster_environment(parser().parse_args(["cluster"]), {}, "python", Path("/java"))


def test_a_cluster_with_servers_of_its_own_has_a_folder_of_its_own() -> None:
    assert cluster_conf({})["storm.local.dir"] == "storm-local/cluster"
    assert cluster_conf({"storm.local.dir": "mine"})["storm.local.dir"] == "mine"
    own = {"sparkstorm.redis.url": "redis://r", "storm.zookeeper.servers": ["z"]}
    assert cluster_conf(own)["storm.local.dir"] == "storm-local"


def test_a_cluster_says_where_its_files_are_and_how_to_submit(tmp_path: Path) -> None:
    conf = merge({"storm.local.dir": str(tmp_path)})
    said = "\n".join(up_lines(conf, 2, tmp_path / "logs"))
    assert "2 slots" in said and f"export SPARKSTORM_CLUSTER={tmp_path}/connection.json" in said and "none (see" in said
    (tmp_path / "connection-read-only.json").touch()
    assert f"only look: {tmp_path}/connection-read-only.json" in "\n".join(up_lines(conf, 2, tmp_path))


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
    assert said == ["a is ACTIVE", "a is KILLED", "b is ACTIVE", "a is gone", "c is KILLED"] and watch.names() == ["b"]


def test_a_driver_says_when_another_leads_and_when_it_leads_itself() -> None:
    me, other, third = (replace(this_driver(), pid=pid, host="here") for pid in (1, 2, 3))
    away, leading = (None, False), (me, True)
    looks = [away, leading, leading, (other, False), away, (other, False), (third, False), leading, leading]
    said: list[str] = []
    watch = LeaderWatch(lambda: looks.pop(0), said.append)
    while looks:
        watch.look()
    assert said == [
        "driver process 2 on host here leads; this one stands by",
        "driver process 3 on host here leads; this one stands by",
        "this driver leads now",
    ]


@pytest.mark.parametrize("words", ["tail wc lines -n 0", "tail wc lines --seconds nan", "logs wc -n -1", "kill wc --wait -5"])
def test_numbers_below_their_least_are_wrong_arguments(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(words.split())
    assert "must be at least" in capsys.readouterr().err
