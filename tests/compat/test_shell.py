"""Components in other languages: Storm's multi-lang protocol with children in Node, bash and
Python, well and badly behaved.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import TopologyBuilder, fields
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.compat import ShellBolt, ShellSpout
from sparkstorm.compat.shell import ShellError
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster, complete_topology

PROTOCOL = """
import json, os, sys
def read():
    lines = []
    while (line := sys.stdin.readline()) != "end\\n":
        if not line:
            sys.exit()
        lines.append(line)
    return json.loads("".join(lines))
def say(message):
    print(json.dumps(message), "end", sep="\\n", flush=True)
first = read()
open(os.path.join(first["pidDir"], str(os.getpid())), "w").close()
say({"pid": os.getpid()})
waiting = []
def task_ids():
    while not isinstance(message := read(), list):
        waiting.append(message)
    return message
def tuples():
    while True:
        message = waiting.pop(0) if waiting else read()
        if isinstance(message, list):
            continue
        if message.get("stream") == "__heartbeat":
            say({"command": "sync"})
        else:
            yield message
"""
NODE = """
const { writeFileSync } = require('fs');
const say = (message) => process.stdout.write(JSON.stringify(message) + '\\nend\\n');
let lines = [], rest = '', begun = false;
function take(message) {
  if (!begun) {
    begun = true;
    writeFileSync(message.pidDir + '/' + process.pid, '');
    say({ pid: process.pid });
  } else if (message.stream === '__heartbeat') say({ command: 'sync' });
  else if (!Array.isArray(message)) {
    for (const word of message.tuple[0].split(' '))
      say({ command: 'emit', anchors: [message.id], tuple: [word], need_task_ids: false });
    say({ command: 'ack', id: message.id });
  }
}
process.stdin.on('data', (data) => {
  const found = (rest + data).split('\\n');
  rest = found.pop();
  for (const line of found) {
    if (line !== 'end') lines.push(line);
    else { take(JSON.parse(lines.join('\\n'))); lines = []; }
  }
});
process.stdin.on('end', () => process.exit(0));
"""
BASH = r"""
say() { printf '%s\nend\n' "$1"; }
read -r first; read -r end
dir=${first#*\"pidDir\": \"}; : > "${dir%%\"*}/$$"
say "{\"pid\": $$}"
n=0
while read -r message && read -r end; do
  case $message in
    *next*) if [ $n -lt 3 ]; then
      n=$((n + 1)); say "{\"command\": \"emit\", \"id\": $n, \"tuple\": [\"line $n\"]}"; read -r ids; read -r end
    fi;;
    *ack*) echo "$message" >> "$1";;
  esac
  say '{"command": "sync"}'
done
"""


def python(folder: Path, body: str) -> list[str]:
    (folder / "child.py").write_text(PROTOCOL + body)
    return [sys.executable, "-S", str(folder / "child.py")]


def run(
    command: list[str],
    lines: list[str],
    outputs: Any = ("word",),
    settings: Any = None,
    **conf: Any,
) -> Any:
    builder = TopologyBuilder()
    builder.set_spout("lines", FeederSpout(["line"]))
    builder.set_bolt(
        "split",
        ShellBolt(command, outputs, timeout_s=10, settings=settings),
        inputs="lines",
        conf=conf.pop("of_bolt", None),
    )
    return complete_topology(builder.build(), {"lines": [[line] for line in lines]}, conf=conf)


def test_a_bolt_in_node_emits_anchored_and_acks(tmp_path: Path) -> None:
    if (node := shutil.which("node")) is None:
        pytest.skip("no node on this machine")
    (tmp_path / "split.js").write_text(NODE)
    done = run([node, str(tmp_path / "split.js")], ["a b", "b ü"])
    assert sorted(done["split"]) == [("a",), ("b",), ("b",), ("ü",)]
    assert len(done.acked["lines"]) == 2 and not done.dead_letters


def test_a_spout_in_bash_is_asked_until_it_has_no_more_and_hears_its_acks(tmp_path: Path) -> None:
    (tmp_path / "lines.sh").write_text(BASH)
    acks, capture = tmp_path / "acks", CaptureBolt()
    builder = TopologyBuilder()
    builder.set_spout(
        "lines", ShellSpout(["bash", str(tmp_path / "lines.sh"), str(acks)], ["line"], timeout_s=10)
    )
    builder.set_bolt("capture", capture, inputs="lines")
    with LocalCluster() as cluster:
        cluster.submit(builder.build(), {})
        cluster.run_until(lambda: acks.exists() and len(acks.read_text().splitlines()) == 3)
    assert capture.values_of("lines") == [("line 1",), ("line 2",), ("line 3",)]
    assert sorted(json.loads(line)["id"] for line in acks.read_text().splitlines()) == [1, 2, 3]


def test_the_child_gets_configuration_and_context_and_an_answer_to_each_emit(
    tmp_path: Path,
) -> None:
    body = """
for tup in tuples():
    context = first["context"]
    own = context["task->component"][str(context["taskid"])]
    say({"command": "emit", "anchors": [tup["id"]], "tuple": [context["componentid"], own,
        first["conf"]["topology.max.spout.pending"], context["stream->outputfields"]["default"], tup["comp"], tup["stream"]]})
    assert task_ids() == []
    say({"command": "ack", "id": tup["id"]})
"""
    done = run(
        python(tmp_path, body),
        ["x"],
        ("id", "own", "pending", "fields", "from", "stream"),
        **{"topology.max.spout.pending": 30},
    )
    assert done["split"] == [
        (
            "split",
            "split",
            30,
            ["id", "own", "pending", "fields", "from", "stream"],
            "lines",
            "default",
        )
    ]


def test_streams_direct_emits_logs_errors_and_fails_are_carried_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = """
for tup in tuples():
    say({"command": "log", "msg": "seen " + tup["tuple"][0], "level": 3})
    say({"command": "error", "msg": "odd"})
    say({"command": "metrics", "name": "n", "params": 1})
    if tup["tuple"][0] == "bad":
        say({"command": "fail", "id": tup["id"]})
    else:
        say({"command": "emit", "stream": "side", "anchors": [tup["id"]], "tuple": [1], "need_task_ids": False})
        say({"command": "ack", "id": tup["id"]})
"""
    done = run(
        python(tmp_path, body), ["good", "bad"], {"side": ["n"]}, **{"topology.max.retries": 0}
    )
    assert done.values("split", "side") == [(1,)]
    assert len(done.dead_letters) == 1
    assert "warn: component 'split', task" in capsys.readouterr().out


def test_tuples_that_a_child_acks_later_stay_open_until_the_tick_that_brings_the_ack(
    tmp_path: Path,
) -> None:
    body = """
held = []
for tup in tuples():
    if tup["stream"] != "__tick":
        held.append(tup)
        continue
    for each in held:
        say({"command": "emit", "anchors": [each["id"]], "tuple": each["tuple"], "need_task_ids": False})
        say({"command": "ack", "id": each["id"]})
    held = []
"""
    tick = {"topology.tick.tuple.freq.secs": 1}
    done = run(python(tmp_path, body), ["a", "b"], settings=tick, of_bolt=tick)
    assert sorted(done["split"]) == [("a",), ("b",)] and len(done.acked["lines"]) == 2


def test_a_child_that_asked_for_no_ticks_gets_none_and_is_read_at_them(tmp_path: Path) -> None:
    body = """
import threading
for tup in tuples():
    assert tup["stream"] == "default"
    def later(tup=tup):
        say({"command": "ack", "id": tup["id"]})
    threading.Timer(0.1, later).start()
"""
    done = run(
        python(tmp_path, body),
        ["a"],
        of_bolt={"topology.tick.tuple.freq.secs": 0.01},
        **{"topology.max.retries": 0},
    )
    assert len(done.acked["lines"]) + len(done.dead_letters) == 1 and not [
        letter for letter in done.dead_letters if "ended with status" in letter.failure.text
    ]


@pytest.mark.parametrize("harm", ["sys.exit(3)", "print('no json', 'end', sep='\\n', flush=True)"])
def test_a_child_that_dies_or_writes_garbage_fails_its_tuple_and_is_started_anew(
    tmp_path: Path, harm: str
) -> None:
    once = tmp_path / "once"
    body = f"""
for tup in tuples():
    say({{"command": "emit", "anchors": [tup["id"]], "tuple": tup["tuple"], "need_task_ids": False}})
    if not os.path.exists({str(once)!r}):
        open({str(once)!r}, "w").close()
        {harm}
    say({{"command": "ack", "id": tup["id"]}})
"""
    done = run(python(tmp_path, body), ["a", "b", "c"])
    assert sorted(done["split"]) == [("a",), ("b",), ("c",)], (
        "what was emitted before the death is not there twice"
    )
    assert not done.dead_letters


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            ["no-such-program"],
            "component 'split', task .*: the command 'no-such-program' cannot be run",
        ),
        (
            [sys.executable, "-c", "pass"],
            "has ended with status 0; .*; files that it needs travel by --files or topology.files",
        ),
        ([sys.executable, "-c", "print('{}\\nend', flush=True); input()"], "the handshake answers"),
    ],
)
def test_a_child_that_cannot_begin_is_named(command: list[str], sentence: str) -> None:
    with pytest.raises(ShellError, match=sentence):
        run(command, ["a"])


def test_a_child_that_hangs_is_given_up_after_its_time(tmp_path: Path) -> None:
    builder = TopologyBuilder()
    builder.set_spout("lines", FeederSpout(["line"]))
    command = python(tmp_path, "for tup in tuples():\n    read(); read(); read()\n")
    builder.set_bolt("split", ShellBolt(command, ["word"], timeout_s=0.3), inputs="lines")
    done = complete_topology(builder.build(), {"lines": [["a"]]}, conf={"topology.max.retries": 0})
    (letter,) = done.dead_letters
    assert "has not answered for 0.3 s" in letter.failure.text


def test_values_that_json_cannot_carry_are_named(tmp_path: Path) -> None:
    builder = TopologyBuilder()
    builder.set_spout("lines", FeederSpout(["line"]))
    builder.set_bolt(
        "split",
        ShellBolt(python(tmp_path, "for tup in tuples(): pass"), ["word"]),
        inputs={"lines": fields("line")},
    )
    done = complete_topology(
        builder.build(), {"lines": [[b"bytes"]]}, conf={"topology.max.retries": 0}
    )
    assert "gets values as JSON, which cannot carry these" in done.dead_letters[0].failure.text


def test_a_command_that_is_no_list_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="takes its command as a list of words"):
        ShellBolt("node x.js", ["word"])


HARMS = {
    "too many values": '{"command": "emit", "anchors": [id], "tuple": ["bad", 1]}',
    "an undeclared stream": '{"command": "emit", "anchors": [id], "stream": "no", "tuple": ["bad"]}',
    "a lone surrogate": '{"command": "emit", "anchors": [id], "tuple": ["\\ud800"]}',
    "a huge integer": '{"command": "emit", "anchors": [id], "tuple": [10 ** 4000]}',
    "a task that is none": '{"command": "emit", "anchors": [id], "task": 99, "tuple": ["bad"]}',
    "no list of values": '{"command": "emit", "anchors": [id], "tuple": "bad"}',
    "an unknown anchor": '{"command": "emit", "anchors": ["77"], "tuple": ["bad"]}',
    "a nested anchor": '{"command": "emit", "anchors": [[id]], "tuple": ["bad"]}',
    "a map as anchors": '{"command": "emit", "anchors": {"id": id}, "tuple": ["bad"]}',
    "null as an anchor": '{"command": "emit", "anchors": [None], "tuple": ["bad"]}',
    "an ack of nothing": '{"command": "ack", "id": "77"}',
    "an ack without an id": '{"command": "ack"}',
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_refused_fails_its_tuple_and_the_next_answer_belongs_to_the_next(
    tmp_path: Path, harm: str
) -> None:
    body = f"""
for tup in tuples():
    id = tup["id"]
    message = {{"command": "emit", "anchors": [id], "tuple": tup["tuple"]}}
    if tup["tuple"] == ["bad"]:
        message = {HARMS[harm]}
    say(message)
    if message["command"] == "emit" and not message.get("task"):
        task_ids()
    say({{"command": "ack", "id": id}})
"""
    lines = ["a", "b", "bad", "c", "d", "e", "f"]
    done = run(python(tmp_path, body), lines, **{"topology.max.retries": 1})
    assert sorted(done["split"]) == [(line,) for line in sorted({*lines} - {"bad"})]
    assert len(done.acked["lines"]) == 6 and len(done.failed["lines"]) == 1
    (letter,) = done.dead_letters
    assert letter.values == ("bad",) and "the child wrote {'command'" in letter.failure.text


def test_an_answer_that_is_refused_fails_all_tuples_that_it_is_about(tmp_path: Path) -> None:
    body = """
held = []
for tup in tuples():
    held.append(tup)
    if len(held) == 2:
        for each in held:
            say({"command": "emit", "anchors": each["id"], "tuple": each["tuple"], "need_task_ids": False})
            say({"command": "ack", "id": each["id"]})
        if not os.path.exists("ONCE"):
            open("ONCE", "w").close()
            say({"command": "emit", "anchors": [held[1]["id"]], "tuple": ["late"], "need_task_ids": False})
        held = []
"""
    once = str(tmp_path / "once")
    done = run(python(tmp_path, body.replace("ONCE", once)), ["a", "b", "c", "d"])
    assert sorted(done["split"]) == [("a",), ("b",), ("c",), ("d",)]
    assert len(done.acked["lines"]) == 4 and not done.dead_letters


def test_a_row_that_a_spouts_child_may_not_emit_costs_itself_only_and_is_failed(
    tmp_path: Path,
) -> None:
    body = """
rows = [["a"], ["b"], ["c", 1], ["d"], ["e"]]
while True:
    message = read()
    if message["command"] == "next" and rows:
        for number, row in enumerate(rows):
            say({"command": "emit", "id": number, "tuple": row})
        rows = []
        for _ in range(5):
            task_ids()
    elif message["command"] in ("ack", "fail"):
        print(message["command"], message["id"], file=open(sys.argv[1], "a"), flush=True)
    say({"command": "sync"})
"""
    heard, capture = tmp_path / "heard", CaptureBolt()
    builder = TopologyBuilder()
    spout = ShellSpout([*python(tmp_path, body), str(heard)], ["line"], timeout_s=10)
    builder.set_spout("lines", spout)
    builder.set_bolt("capture", capture, inputs="lines")
    with LocalCluster() as cluster:
        cluster.submit(builder.build(), {})
        cluster.run_until(lambda: heard.exists() and len(heard.read_text().splitlines()) == 5)
        (error,) = cluster.errors
    assert capture.values_of("lines") == [("a",), ("b",), ("d",), ("e",)]
    assert sorted(heard.read_text().splitlines()) == ["ack 0", "ack 1", "ack 3", "ack 4", "fail 2"]
    assert "the child wrote" in error.text and "2 values for 1 field" in error.text


def test_lines_that_end_with_a_carriage_return_and_task_0_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = """
def say(message):
    print(json.dumps(message), "end", sep="\\r\\n", end="\\r\\n", flush=True)
for tup in tuples():
    say({"command": "log", "msg": "\\x1b[31mred"})
    say({"command": "emit", "anchors": tup["id"], "task": 0, "tuple": tup["tuple"]})
    task_ids()
    say({"command": "ack", "id": tup["id"]})
"""
    done = run(python(tmp_path, body), ["a", "b"])
    assert sorted(done["split"]) == [("a",), ("b",)] and len(done.acked["lines"]) == 2
    assert "\\x1b[31mred" in capsys.readouterr().out


def test_a_dead_child_is_seen_though_a_process_of_its_own_keeps_the_pipe(tmp_path: Path) -> None:
    body = """
import subprocess
for tup in tuples():
    grandchild = subprocess.Popen(["sleep", "20"])
    print(grandchild.pid, file=open(sys.argv[1], "a"), flush=True)
    os._exit(3)
"""
    pids = tmp_path / "pids"
    done = run([*python(tmp_path, body), str(pids)], ["a"], **{"topology.max.retries": 0})
    for pid in pids.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    (letter,) = done.dead_letters
    assert "has ended with status 3" in letter.failure.text
