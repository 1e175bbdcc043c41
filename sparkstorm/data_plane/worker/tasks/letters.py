"""Dead letters of a worker: the failed input, the state that its call could see, and the settings of
its topology.

A state of at most _SMALL keys is kept whole. Of a larger one are kept: the keys that the input's
grouping and the bolt's `key_fields` name, and those that the last try has used (it runs on a state
that notes them).

Law: a dead letter is enough to execute its input again, and holds no secret. Left out: the whole
state of any size, which would make each letter as large as the task.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from sparkstorm.common.config import keys
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.tasks import tasks_by_component
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.data_plane.executor.state import noting
from sparkstorm.data_plane.executor.window_records import WindowTuple
from sparkstorm.data_plane.executor.windowed_runner import TimedRunner
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.data_plane.worker.tasks.worker_plan import WorkerPlan

# Keys of a state that is kept whole. Half of it leaves out keys that a bolt of few keys reads by
# chance; double makes a letter of such a state twice as large.
_SMALL = 100
# Of state in a letter: letters are Redis's, 100,000 of them at the most. Half of it cuts states of
# large values, double lets them take 50 GB.
_MOST_BYTES = 256 << 10
_LEFT_OUT = "topology.environment"  # it may hold passwords


class Letters:
    """Maker of a worker's dead letters."""

    def __init__(self, plan: WorkerPlan) -> None:
        self.plan = self._plan = plan
        self._indexes = {
            t: i
            for tasks in tasks_by_component(plan.component_by_task).values()
            for i, t in enumerate(sorted(tasks))
        }
        self._conf = own_settings(plan.conf)
        self._used: dict[int, dict[Any, None]] = {}  # keys by task, of the last try

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
        if state is None or len(state) <= _SMALL:
            yield
            return
        used = self._used[bolt.task] = {}
        with noting(state, used):
            yield

    def _pairs(self, bolt: BoltTask, tup: Tuple) -> tuple[tuple[Any, Any], ...] | None:
        state = bolt.state
        # Of this task's last try only: the next letter must not get its keys.
        used = self._used.pop(bolt.task, {})
        if state is None:
            return None
        if len(state) <= _SMALL:
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
            source.grouping.fields
            for source in inputs
            if (source.component, source.stream) == (tup.component, tup.stream)
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


def own_settings(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a topology that differ from the defaults; the user's own `app.` keys
    may be secrets and stay.
    """
    known_keys = keys()
    return {
        name: value
        for name, value in conf.items()
        if name.startswith("topology.")
        and name != _LEFT_OUT
        and name in known_keys
        and not known_keys[name].secret
        and value != known_keys[name].default
    }
