"""Components in other languages: a child process per task with Storm's multi-lang protocol (JSON on
its pipes).

A bolt sends each tuple with a heartbeat behind it and reads until the child answers that: all that
the child emits and acks for the tuple before is then part of the same call, so that a child that
dies leaves nothing half-done. A child that acks later is read with the next tuple or tick.

Law: an answer is read whole before any of it is carried out. So what is refused in it fails the
tuples that it is about and no others, and the next answer belongs to the next tuple.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkstorm.api.collector import OutputCollector, SpoutOutputCollector
from sparkstorm.api.components import Bolt, Conf, Outputs, Spout
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import InvalidTopologyError, SparkStormError
from sparkstorm.common.model.names import shown
from sparkstorm.common.model.tuples import Tuple

TICK_KEY = "topology.tick.tuple.freq.secs"
TIMEOUT_S = 30.0
# between two looks whether the child lives, while it does not answer
_LOOK_S = 0.2
# of one message; a child that writes garbage without an end is stopped there
_MOST_BYTES = 64 << 20
_READ_BYTES = 1 << 16
_LEVELS = ("trace", "debug", "info", "warn", "error")


class ShellError(SparkStormError):
    """A child that died, hung or broke the protocol; it is started anew for the next tuple."""


class ShellChild:
    """A child process after its handshake."""

    def __init__(
        self,
        command: Sequence[str],
        conf: Conf,
        context: TopologyContext,
        outputs: Outputs,
        timeout_s: float,
    ) -> None:
        self.where = f"component '{context.component_id}', task {context.task_id}"
        self._timeout_s = timeout_s
        self._pids = tempfile.TemporaryDirectory(prefix="sparkstorm-pids-")
        words, folder = _placed(command, context)
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, bufsize=0
            )
        except OSError as error:
            self._pids.cleanup()
            raise ShellError(
                f"{self.where}: the command {words[0]!r} cannot be run: {error.strerror}"
            ) from error
        self._buffer = b""
        self._lines: list[bytes] = []
        self._name = " ".join(command)
        self._has_begun = False
        try:
            self.send(
                {
                    "conf": _plain(conf),
                    "pidDir": self._pids.name,
                    "context": _described(context, outputs),
                }
            )
            # an interpreter starts slowly on a loaded machine
            said = self.read(max(timeout_s, TIMEOUT_S))
            if not isinstance(said, dict) or not isinstance(said.get("pid"), int):
                raise ShellError(
                    f'{self.where}: {self._name} began with {said!r:.80}; the handshake answers {{"pid": NUMBER}}'
                )
            self._has_begun = True
        except ShellError:
            self.close()
            raise

    def send(self, message: Any) -> None:
        """Write one message."""
        try:
            text = json.dumps(message, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ShellError(
                f"{self.where}: {self._name} gets values as JSON, which cannot carry these: {error}"
            ) from error
        data = memoryview(text.encode() + b"\nend\n")
        assert self._process.stdin is not None
        descriptor = self._process.stdin.fileno()
        os.set_blocking(descriptor, False)
        deadline = time.monotonic() + self._timeout_s
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                self._await_write(descriptor, deadline)
            except BrokenPipeError:
                raise self._ended() from None

    def _await_write(self, descriptor: int, deadline: float) -> None:
        """Wait until the child reads on; take what it writes meanwhile, since it may wait for
        us.
        """
        assert self._process.stdout is not None
        reading = self._process.stdout.fileno()
        readable, writable, _ = select.select(
            [reading], [descriptor], [], max(0.0, deadline - time.monotonic())
        )
        if readable and not self._take(reading):
            raise self._ended()
        if not readable and not writable:
            raise ShellError(
                f"{self.where}: {self._name} has not read its input for {self._timeout_s:g} s"
            )

    def read(self, limit_s: float | None = None) -> Any:
        """Return the next message; ShellError when the child ends, hangs or writes what is no
        JSON.
        """
        assert self._process.stdout is not None
        reading = self._process.stdout.fileno()
        limit_s = limit_s or self._timeout_s
        deadline = time.monotonic() + limit_s
        while (message := self._next()) is None:
            left_s = max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([reading], [], [], min(_LOOK_S, left_s))
            if readable:
                is_over = not self._take(reading)
            else:  # a process that it has started may keep its pipe open
                is_over = self._process.poll() is not None
            if is_over:
                raise self._ended()
            if not readable and left_s <= _LOOK_S:
                raise ShellError(f"{self.where}: {self._name} has not answered for {limit_s:g} s")
        try:
            return json.loads(message)
        except (ValueError, RecursionError) as error:
            raise ShellError(
                f"{self.where}: {self._name} wrote {message[:80]!r}, which is no JSON: {error}"
            ) from None

    def _take(self, reading: int) -> bool:
        data = os.read(reading, _READ_BYTES)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._lines += [
            line.removesuffix(b"\r") for line in lines
        ]  # a child may end its lines with CRLF
        if len(self._buffer) + sum(map(len, self._lines)) > _MOST_BYTES:
            raise ShellError(
                f"{self.where}: {self._name} wrote {_MOST_BYTES >> 20} MB without the line 'end'"
            )
        return bool(data)

    def _next(self) -> bytes | None:
        if b"end" not in self._lines:
            return None
        index = self._lines.index(b"end")
        message = b"\n".join(self._lines[:index])
        del self._lines[: index + 1]
        return message

    def _ended(self) -> ShellError:
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return ShellError(f"{self.where}: {self._name} has closed its output")
        # most of those that end at once lack a file, which travels only when it is named
        remedy = (
            "" if self._has_begun else "; files that it needs travel by --files or topology.files"
        )
        return ShellError(
            f"{self.where}: {self._name} has ended with status {status}; its words on stderr are in the worker's log{remedy}"
        )

    def close(self) -> None:
        """End the child: at the end of its input, else by SIGKILL."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._pids.cleanup()

    def log(self, message: Mapping[str, Any]) -> None:
        """Print a child's line to the worker's log."""
        level = message.get("level", 2)
        name = _LEVELS[level] if isinstance(level, int) and 0 <= level < len(_LEVELS) else "info"
        print(f"{name}: {self.where}: {shown(str(message.get('msg')))}", flush=True)


class _Shell:
    """Base of shell spouts and shell bolts: a command, fields by stream, and the child process."""

    outputs: Outputs

    def __init__(
        self,
        command: Sequence[str],
        outputs: Outputs = (),
        *,
        timeout_s: float = TIMEOUT_S,
        settings: Conf | None = None,
    ) -> None:
        if (
            isinstance(command, str)
            or not command
            or not all(isinstance(word, str) for word in command)
        ):
            raise InvalidTopologyError(
                f'a shell component takes its command as a list of words, as ["node", "x.js"], not {command!r}'
            )
        self.command = list(command)
        self.outputs = outputs
        self.timeout_s = timeout_s
        self.settings = dict(settings or {})
        self._child: ShellChild | None = None

    def _begin(self, conf: Conf, context: TopologyContext) -> None:
        self._conf = {**conf, **self.settings}
        self._context = context

    def _running(self) -> ShellChild:
        if self._child is None:
            self._child = ShellChild(
                self.command, self._conf, self._context, self.outputs, self.timeout_s
            )
        return self._child

    def _end(self) -> None:
        child = self._child
        self._child = None
        if child is not None:
            child.close()

    def _answer(self, child: ShellChild) -> list[dict[str, Any]]:
        """Return the child's messages up to the next sync, without those that are the same for
        spouts and bolts. Its emits are told their tasks: none, since they are chosen at the commit.
        """
        messages: list[dict[str, Any]] = []
        while True:
            message = child.read()
            command = message.get("command") if isinstance(message, dict) else None
            if command == "sync":
                return messages
            if command == "log":
                child.log(message)
            elif command == "error":
                self._collector.report_error(str(message.get("msg")))
            elif command == "metrics":
                child.log(
                    {"msg": f"metric {message.get('name')} = {message.get('params')!r}", "level": 1}
                )
            elif command in ("emit", "ack", "fail"):
                messages.append(message)
                wants_tasks = message.get("need_task_ids", True) is not False
                if command == "emit" and wants_tasks and not message.get("task"):
                    child.send([])
            else:
                raise ShellError(
                    f"{child.where}: the child wrote {message!r:.80}, which is no command of the protocol"
                )

    _collector: Any


class ShellBolt(_Shell, Bolt):
    """Bolt in another language: `ShellBolt(["node", "split.js"], ["word"])`; fields as `outputs` of
    any bolt.

    The child's files travel by `topology.files` (`--files`). A child that does not answer within
    `timeout_s` seconds, or ends, fails its open tuples; the next tuple starts a new one. `settings`
    are added to the configuration that it sees; it gets ticks if they have
    `topology.tick.tuple.freq.secs`.
    """

    def prepare(self, conf: Conf, context: TopologyContext, collector: OutputCollector) -> None:
        """Start the child."""
        self._collector = collector
        self._begin(conf, context)
        self._open: dict[str, Tuple] = {}
        self._count = 0
        self._running()

    def execute(self, tup: Tuple) -> None:
        """Give the child a tuple, and carry out its messages up to the answer to the heartbeat
        behind it.
        """
        try:
            child = self._running()
            self._count += 1
            id = str(self._count)
            name = "__system" if tup.is_tick else tup.component
            if not tup.is_tick:
                self._open[id] = tup
            if not tup.is_tick or TICK_KEY in self.settings:  # else it is for reading alone
                child.send(
                    {
                        "id": id,
                        "comp": name,
                        "stream": tup.stream,
                        "task": tup.task,
                        "tuple": list(tup.values),
                    }
                )
            child.send(
                {
                    "id": f"heartbeat {id}",
                    "comp": "__system",
                    "stream": "__heartbeat",
                    "task": -1,
                    "tuple": [],
                }
            )
            messages = self._answer(child)
        except ShellError as error:
            self._open.pop(id, None)
            self._give_up(list(self._open), str(error))
            self._end()
            raise
        self._carry_out(child, id, messages)

    def _carry_out(self, child: ShellChild, id: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """Emit all, then ack and fail; a message that is refused fails the tuple at hand and the
        others that the answer is about, since the engine undoes the whole call.
        """
        about: set[str] = set()
        verdicts: dict[str, str] = {}
        refused: tuple[Mapping[str, Any], Exception] | None = None
        for message in messages:
            try:
                if message["command"] == "emit":
                    anchors = _anchor_ids(message)
                    about.update(anchors)
                    if refused is None:
                        self._emit(message, [self._found(anchor, verdicts) for anchor in anchors])
                    continue
                settled = _id(message.get("id"))
                about.add(settled)
                if refused is None:
                    self._found(settled, verdicts)
                    verdicts[settled] = message["command"]
            except Exception as error:  # the engine's, of a row or stream, or ours
                refused = refused or (message, error)
        if refused is not None:
            message, cause = refused
            text = f"{child.where}: the child wrote {message!r:.200}: {cause}"
            self._open.pop(id, None)
            self._give_up(sorted(about & self._open.keys()), text)
            raise ShellError(text) from cause
        for settled, command in verdicts.items():
            tup = self._open.pop(settled)
            if command == "ack":
                self._collector.ack(tup)
            else:
                self._collector.fail(tup, "the child failed it")

    def _found(self, id: str, settled: Collection[str]) -> Tuple:
        if id in settled or id not in self._open:
            raise InvalidTopologyError(f"no tuple {id!r} is open: it is unknown, or was settled")
        return self._open[id]

    def _emit(self, message: Mapping[str, Any], anchors: Sequence[Tuple]) -> None:
        values, stream, task = _emitted(message)
        if task is None:
            self._collector.emit(values, anchors, stream)
        else:
            self._collector.emit_direct(task, values, anchors, stream)

    def _give_up(self, ids: Sequence[str], text: str) -> None:
        for tuple_id in ids:
            self._collector.fail(self._open.pop(tuple_id), text)

    def cleanup(self) -> None:
        """End the child."""
        self._end()


class ShellSpout(_Shell, Spout):
    """Spout in another language: `ShellSpout(["python3", "lines.py"], ["line"])`; at least once, as
    its ids come back.
    """

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Start the child."""
        self._collector = collector
        self._begin(conf, context)
        self._refused: deque[Any] = deque()  # ids of rows that were not emitted
        self._running()

    def next_tuple(self) -> None:
        """Tell the child of rows that were refused, and ask it for tuples."""
        while self._refused:
            self.fail(self._refused.popleft())
        self._ask({"command": "next"})

    def ack(self, message_id: Any) -> None:
        """Send `ack` to the child."""
        self._ask({"command": "ack", "id": message_id})

    def fail(self, message_id: Any) -> None:
        """Send `fail` to the child."""
        self._ask({"command": "fail", "id": message_id})

    def activate(self) -> None:
        """Send `activate` to the child."""
        self._ask({"command": "activate"})

    def deactivate(self) -> None:
        """Send `deactivate` to the child."""
        self._ask({"command": "deactivate"})

    def close(self) -> None:
        """End the child."""
        self._end()

    def _ask(self, question: Mapping[str, Any]) -> None:
        try:
            child = self._running()
            child.send(question)
            messages = self._answer(child)
        except ShellError:
            self._end()
            raise
        for message in messages:
            if message["command"] != "emit":
                self._end()
                raise ShellError(
                    f"{child.where}: the spout's child wrote {message!r:.80}; only bolts ack and fail"
                )
            try:
                self._emit(message)
            except Exception as error:  # the engine's, of a row or stream
                self._collector.report_error(
                    f"{child.where}: the child wrote {message!r:.200}: {error}"
                )
                if message.get("id") is not None:
                    self._refused.append(message["id"])

    def _emit(self, message: Mapping[str, Any]) -> None:
        values, stream, task = _emitted(message)
        if task is None:
            self._collector.emit(values, message.get("id"), stream)
        else:
            self._collector.emit_direct(task, values, message.get("id"), stream)


def _emitted(message: Mapping[str, Any]) -> tuple[list[Any], str, int | None]:
    """Return values, stream and task of an emit; task 0 is none, as Storm has it."""
    values = message.get("tuple")
    stream = message.get("stream") or "default"
    task = message.get("task") or None
    if (
        not isinstance(values, list)
        or not isinstance(stream, str)
        or not (task is None or (isinstance(task, int) and not isinstance(task, bool)))
    ):
        raise InvalidTopologyError("an emit has a list 'tuple', and 'stream' and 'task' if any")
    return values, stream, task


def _anchor_ids(message: Mapping[str, Any]) -> list[str]:
    """Return the ids of an emit's anchors; a text is one id, as Storm has it."""
    anchors = message.get("anchors")
    if anchors is None:
        return []
    return [_id(anchor) for anchor in (anchors if isinstance(anchors, list) else [anchors])]


def _id(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidTopologyError(f"an id is a text or a whole number, not {value!r:.80}")
    return str(value)


def _placed(command: Sequence[str], context: TopologyContext) -> tuple[list[str], str | None]:
    """Return the command with paths of the files that travelled, and the folder of the first of
    them.
    """
    words = []
    folder = None
    for word in command:
        try:
            path = context.file(word) if not word.startswith("-") else None
        except (FileNotFoundError, IndexError):
            path = None
        words.append(path or word)
        folder = folder or (str(Path(path).parent) if path else None)
    return words, folder


def _plain(conf: Conf) -> dict[str, Any]:
    """Return the settings that JSON can carry; passwords are not among a topology's keys."""
    plain = {}
    for key, value in conf.items():
        try:
            plain[key] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue
    return plain


def _described(context: TopologyContext, outputs: Outputs) -> dict[str, Any]:
    """Describe the topology in Storm's words."""
    by_stream: Mapping[str, Any] = outputs if isinstance(outputs, Mapping) else {"default": outputs}
    fields = {
        stream: list(getattr(declared, "fields", declared))
        for stream, declared in by_stream.items()
    }
    return {
        "task->component": {str(task): name for task, name in context.component_by_task.items()},
        "taskid": context.task_id,
        "componentid": context.component_id,
        "streams": list(fields),
        "stream->outputfields": fields,
        "stream->target->grouping": {},
        "source->stream->grouping": {},
        "source->stream->fields": {},
    }
