"""Traces of a worker: what its tasks do with the rows of sampled messages, published after their
commit while a client looks.

A message is sampled by the hash of its root, so that every worker takes the same ones and no frame
grows by a byte (`model.roots.is_sampled`). The tap's name has the share; without one nothing
happens.

Law: a trace has committed work only, but for calls that failed, and changes nothing; events may be
lost. Left out: spans of OpenTelemetry in the worker, whose calls cost more than a row, and traces
that are always on: a look at each row's root is some 500 ns. Bolts of columns are not observed:
their batches would be taken apart row by row.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from sparkstorm.common.model.roots import is_sampled, split
from sparkstorm.common.model.tuples import Roots, Tuple, each_root
from sparkstorm.common.model.values.tagged import to_json
from sparkstorm.data_plane.acking.pending import MessageOutcome
from sparkstorm.data_plane.executor.emitter import Emitter
from sparkstorm.data_plane.executor.runner import FailedInput
from sparkstorm.data_plane.executor.task_observer import TaskObserver, Values
from sparkstorm.data_plane.transport.keys import LOOKS, TRACE_BITS, trace_name
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask

# Events that a worker keeps for the next second. A client that requests 50 traces a second gets
# some 500 events; half would cut those of topologies with many hops, double is more than a tap
# keeps.
_MOST_EVENTS = 1_000
# Rows of one turn of a spout that are looked at, the newest: a spout that emits more in a turn has
# enough samples.
_SCANNED = 8_192
_MOST_TEXT = 300


class Traces:
    """The tap of a worker's traces: one observer for each of its tasks, while a client looks."""

    def __init__(
        self, tasks: Iterable[SpoutTask | BoltTask], owner: str, now_us: Callable[[], int]
    ) -> None:
        self.names: Collection[str] = [trace_name(bits) for bits in TRACE_BITS]
        self.owner = owner
        self.now_us = now_us
        self._tasks = [
            task for task in tasks if not (isinstance(task, BoltTask) and task.takes_batches)
        ]
        self._name = ""
        self._observers = list[_TaskTrace]()
        self._committed: deque[bytes] = deque(maxlen=_MOST_EVENTS)

    def follow(self, names: Collection[str]) -> None:
        """Observe while a tap is open; of several the one with the greatest share, which has all
        the others'.
        """
        bits = next((candidate for candidate in TRACE_BITS if trace_name(candidate) in names), None)
        name = "" if bits is None else trace_name(bits)
        if name:
            self._say_that_it_looks()
        if name == self._name:
            return
        for observer in self._observers:
            observer.of.observers.remove(observer)
        self._name, self._observers = (
            name,
            [] if bits is None else [_TaskTrace(self, task, bits) for task in self._tasks],
        )
        for observer in self._observers:
            observer.of.observers.append(observer)

    def _say_that_it_looks(self) -> None:
        """Publish an answer: a client does not know otherwise from when on events can come."""
        values = {"what": LOOKS, "worker": self.owner}
        record = {"task": 0, "time_ms": self.now_us() // 1000, "values": values}
        self._committed.append(to_json(record).encode())

    def take(self) -> Mapping[str, Sequence[bytes]]:
        """Return the committed events and the worker's answers."""
        committed = list(self._committed)
        self._committed = deque(maxlen=_MOST_EVENTS)
        return {self._name: committed} if committed and self._name else {}

    def commit(self, events: Iterable[dict[str, object]]) -> None:
        """Take events for committed."""
        now_us = self.now_us()
        for event in events:
            values = {**event, "committed_us": now_us}
            self._committed.append(
                to_json(
                    {"task": values.pop("task"), "time_ms": now_us // 1000, "values": values}
                ).encode()
            )


class _TaskTrace(TaskObserver):
    """Events of the sampled messages at one task."""

    sees_inputs = True

    def __init__(self, traces: Traces, of: SpoutTask | BoltTask, bits: int) -> None:
        self._traces = traces
        self.of = of
        self._bits = bits
        self._fresh: list[dict[str, object]] = []

    def executed(
        self,
        tuples: Sequence[Tuple],
        failures: Sequence[FailedInput],
        waiting: Sequence[Tuple],
        came: Sequence[Values],
    ) -> None:
        """Note the sampled inputs among these."""
        sampled = [(tup, root) for tup in tuples for root in self._sampled(tup.roots)]
        if not sampled:
            return
        failed = {id(tup): failure for tup, failure in failures}
        held = set(map(id, waiting))
        began_us = getattr(self.of, "began_us", 0)
        for tup, root in sampled:
            failure = failed.get(id(tup))
            what = "failed" if failure is not None else "held" if id(tup) in held else "executed"
            source = f"{tup.source.component}/{tup.source.stream}"
            self._note(root, what, "" if failure is None else failure.text, began_us, source)

    def settled_late(self, acked: Sequence[Tuple], failures: Sequence[FailedInput]) -> None:
        """Note held inputs that a bolt has acked or failed."""
        for what, tup, text in (
            *(("executed", tup, "") for tup in acked),
            *(("failed", tup, failure.text) for tup, failure in failures),
        ):
            for root in self._sampled(tup.roots):
                self._note(root, what, text, 0, f"{tup.source.component}/{tup.source.stream}")

    def emitted(self, emitter: Emitter) -> None:
        """Note the sampled messages that a spout has begun."""
        if isinstance(self.of, BoltTask):
            return
        seen: set[int] = set()
        newest = [rows for rows in emitter.log[-_SCANNED:] if rows is not emitter.changes]
        count_by_list = Counter(map(id, newest))
        for rows in {id(rows): rows for rows in newest}.values():
            for _, roots, _ in rows[-count_by_list[id(rows)] :]:
                seen.update(self._sampled(roots))
        for root in sorted(seen - {event["root"] for event in self._fresh}):
            self._note(root, "emitted")

    def settled(self, outcomes: Sequence[MessageOutcome]) -> None:
        """Note sampled messages whose trees have ended."""
        for outcome in outcomes:
            for root in self._sampled(outcome.root):
                text = "" if outcome.failure is None else outcome.failure.text
                self._note(root, "acked" if outcome.acked else "given up", text)

    def committed(self) -> None:
        """Hand the epoch's events on."""
        if self._fresh:
            self._traces.commit({**event, "root": f"{event['root']:016x}"} for event in self._fresh)
            self._fresh = []

    def _sampled(self, roots: Roots) -> Iterator[int]:
        bits = self._bits
        return (split(root) for root in each_root(roots) if root and is_sampled(root, bits))

    def _note(
        self, root: int, what: str, text: str = "", began_us: int = 0, source: str = ""
    ) -> None:
        if len(self._fresh) < _MOST_EVENTS:
            event = {
                "task": self.of.task,
                "root": root,
                "what": what,
                "component": self.of.component,
                "worker": self._traces.owner,
            }
            times = {
                "began_us": began_us or self._traces.now_us(),
                "ended_us": self._traces.now_us(),
            }
            self._fresh.append({**event, **times, "source": source, "text": text[:_MOST_TEXT]})
