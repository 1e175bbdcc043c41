"""Contents of failure capsules: the state that a failed call could see, and the settings of its
topology.

A state of at most SMALL keys is kept whole. Of a larger one are kept: the keys that the input's
grouping and the bolt's `key_fields` name, and those that the last try has used (it runs on a state
that notes them).

Law: a dead letter is enough to execute its input again, and holds no secret. Left out: the whole
state of any size, which would make each letter as large as the task.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkstorm.common.config import keys
from sparkstorm.common.errors import RecordingError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Cause, Failure
from sparkstorm.common.model.names import file_name
from sparkstorm.common.model.tasks import tasks_by_component
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.data_plane.executor.state import noting
from sparkstorm.data_plane.executor.task_observer import TaskObserver
from sparkstorm.data_plane.executor.window_records import WindowTuple
from sparkstorm.data_plane.executor.windowed_runner import TimedRunner
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan
from sparkstorm.extensions.recording.capsule_files import ENDING, write_capsule

# Keys of a state that is kept whole. Half of it leaves out keys that a bolt of few keys reads by
# chance; double makes a letter of such a state twice as large.
SMALL = 100
FOLDER = "capsules"
# Of state in a letter: letters are Redis's, 100,000 of them at the most. Half of it cuts states of
# large values, double lets them take 50 GB.
_MOST_BYTES = 256 << 10
_LEFT_OUT = "topology.environment"  # it may hold passwords


class Capsules:
    """Maker of a worker's dead letters, and of the capsules of failures that are not parked."""

    def __init__(self, plan: WorkerPlan, bolts: Iterable[BoltTask]) -> None:
        self.plan = self._plan = plan
        self._indexes = {
            t: i
            for tasks in tasks_by_component(plan.component_by_task).values()
            for i, t in enumerate(sorted(tasks))
        }
        self._conf = own_settings(plan.conf)
        self._used: dict[int, dict[Any, None]] = {}  # keys by task, of the last try
        self._written: dict[Cause, int] = {}
        self._folder = plan.settings.record_directory or plan.log_dir
        for bolt in bolts if self._folder and plan.settings.failure_capsules else ():
            bolt.observers.append(_CapsuleWriter(self, bolt))

    def letter(self, bolt: BoltTask, tup: Tuple, attempts: int, failure: Failure) -> DeadLetter:
        """Return the record of an input that was given up; the state is that of this moment, the
        failed call undone.
        """
        window = None
        if isinstance(bolt.runner, TimedRunner):
            tup = bolt.runner.as_letter(tup)
            window = bolt.runner.record_of(tup, self._plan.codec)
        met = {
            "index": self._indexes[bolt.task],
            "state": self._pairs(bolt, tup),
            "conf": self._conf,
            "window": window,
        }
        return DeadLetter.of(tup, failure, attempts, **met)

    @contextlib.contextmanager
    def noting(self, bolt: BoltTask) -> Iterator[None]:
        """Note which keys of a large state are used in here."""
        state = bolt.state
        if state is None or len(state) <= SMALL:
            yield
            return
        used = self._used[bolt.task] = {}
        with noting(state, used):
            yield

    def write(self, bolt: BoltTask, tup: Tuple, failure: Failure) -> None:
        """Write a capsule of a failure whose input is not parked, the first so many of each cause
        (topology.failure.capsules).
        """
        number = self._written.get(failure.cause, 0)
        # Causes are bounded too: an error text with a number in it would be a new cause each time.
        if number >= self._plan.settings.failure_capsules or len(self._written) > SMALL:
            return
        self._written[failure.cause] = number + 1
        name = f"{bolt.component}-{bolt.task}-{failure.time_ms}-{number}"
        path = Path(
            self._folder, FOLDER, file_name(self._plan.topology_id), file_name(name) + ENDING
        )
        with contextlib.suppress(RecordingError, OSError):  # a full disk fails no tuple
            write_capsule(path, self.letter(bolt, tup, 1, failure))

    def _pairs(self, bolt: BoltTask, tup: Tuple) -> tuple[tuple[Any, Any], ...] | None:
        state = bolt.state
        # Of this task's last try only: the next letter must not get its keys.
        used = self._used.pop(bolt.task, {})
        if state is None:
            return None
        if len(state) <= SMALL:
            wanted = state.keys()
        else:  # an input may hold what no state has as a key: a set, NaN, an object
            wanted = list(
                dict.fromkeys(
                    key
                    for key in itertools.chain(self._named(bolt, tup), used)
                    if state.is_key(key)
                )
            )
        pairs = []
        size = 0
        for key, value in state.pairs(wanted[:10_000]):
            size += len(self._plan.codec.pack([key, value]))
            if size > _MOST_BYTES:
                break
            pairs.append((key, value))
        return tuple(pairs)

    def _named(self, bolt: BoltTask, tup: Tuple) -> Iterator[Any]:
        """Keys that the fields of the input's groupings, or the bolt's own key fields, name: bare
        and as a tuple.
        """
        inputs = self._plan.topology.components[bolt.component].inputs
        groupings = (
            each.grouping.fields
            for each in inputs
            if (each.component, each.stream) == (tup.component, tup.stream)
        )
        own = getattr(getattr(bolt.runner, "bolt", None), "key_fields", ())
        if isinstance(tup, WindowTuple):
            yield tup.firing.key
            yield from tup.firing.key
        for names in itertools.chain(groupings, [tuple(own)]):
            values = tuple(tup[name] for name in names if name in tup.fields)
            if values:
                yield values
                if len(values) == 1:
                    yield values[0]


class _CapsuleWriter(TaskObserver):
    """Observer that requests a capsule of the failures of one bolt."""

    def __init__(self, capsules: Capsules, bolt: BoltTask) -> None:
        self._capsules = capsules
        self._bolt = bolt

    def failed(self, tup: Tuple, failure: Failure) -> None:
        self._capsules.write(self._bolt, tup, failure)


def own_settings(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a topology that differ from the defaults; the user's own `app.` keys
    may be secrets and stay.
    """
    known = keys()
    return {
        name: value
        for name, value in conf.items()
        if name.startswith("topology.")
        and name != _LEFT_OUT
        and name in known
        and not known[name].secret
        and value != known[name].default
    }
