"""Base classes of user components: Spout, ReplayableSpout, Bolt, BasicBolt, StatefulBolt; and
Effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar

from sparkstorm.api.collector import BasicOutputCollector, OutputCollector, SpoutOutputCollector
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.state import KeyValueState
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.common.model.topology import Stream
from sparkstorm.common.model.tuples import Tuple

Outputs = (
    Sequence[str] | Mapping[str, str] | Mapping[str, Sequence[str] | Mapping[str, str] | Stream]
)
"""Fields of the default stream, as names or with types ({"word": "string"}), or either by stream.
"""
Conf = Mapping[str, Any]


class Effects(Enum):
    """Treatment of a bolt with external effects (a database, a mailbox) in a batch replay."""

    RUN = "run"
    """The bolt runs: it has no effects, or they are wanted again."""
    IDEMPOTENT = "idempotent"
    """The bolt runs and may be repeated: `context.effect_key()` names each input."""
    MUTE = "mute"
    """The bolt does not run."""
    REDIRECT = "redirect"
    """The bolt does not run; its input is a result of the replay."""


def check_effects(id: str, effects: Any) -> None:
    """Raise InvalidTopologyError unless a component's effects are a member of Effects."""
    if not isinstance(effects, Effects):
        names = ", ".join(f"Effects.{effect.name}" for effect in Effects)
        raise InvalidTopologyError(
            f"component '{id}': effects is {show(effects)}; use one of {names}"
        )


class Spout:
    """Source of a topology's tuples (Storm's ISpout).

    `outputs` declares fields of the default stream, or by stream. A spout that may block sets
    `blocking = True` and gets its own thread; `next_tuple` of any other must return soon.
    """

    outputs: Outputs = ()
    blocking: ClassVar[bool] = False

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Prepare the task: called once in the worker, before any other method."""

    def next_tuple(self) -> None:
        """Emit what is there now, or nothing."""
        raise NotImplementedError

    def is_exhausted(self) -> bool:
        """Return whether there is nothing more to emit; a run stops when this holds for all its
        spouts and all trees are done.
        """
        return False

    def has_ended(self) -> bool:
        """Return whether nothing will ever follow: every window of this source then fires."""
        return self.is_exhausted()

    def extent(self) -> tuple[int, int]:
        """Return (total, done) in any unit, for progress displays; (0, 0) if unknown."""
        return 0, 0

    def ack(self, message_id: Any) -> None:
        """Take note that a message's tree is fully processed; called after the commit, at least
        once.
        """

    def fail(self, message_id: Any) -> None:
        """Take note that a message's tree failed or timed out (exactly-once: was parked); called at
        least once.

        A `fail(self, message_id, failure)` is given the Failure as well: kind, text, traceback,
        component, waits.
        """

    def activate(self) -> None:
        """Take note that the topology was activated."""

    def deactivate(self) -> None:
        """Take note that the topology was deactivated: `next_tuple` is not called meanwhile."""

    def close(self) -> None:
        """Release resources: called when the worker stops, not when it is killed."""


class ReplayableSpout(Spout):
    """Spout with a position, which is written in the same commit as the tuples it emitted.

    After a crash `restore` is called after `open`. A `next_tuple` that raises must leave the
    position where it was; what it emitted is dropped.
    """

    def snapshot(self) -> Any:
        """Return the position after the last emitted tuple: any value that a tuple may carry."""
        raise NotImplementedError

    def restore(self, position: Any) -> None:
        """Continue at a position that `snapshot` returned."""
        raise NotImplementedError

    def hand_over(self) -> Any:
        """Return what a later submission needs to continue here; by default the position.

        A spout overrides it to hand over something that does not depend on its number of tasks,
        such as bytes read by file.
        """
        return self.snapshot()

    def take_over(self, handed: Sequence[Any]) -> ReplayableSpout | None:
        """Return a spout that continues after what all tasks of a former submission handed over.

        None (the default): each task is restored from the task with the same index, so there must
        be as many tasks.
        """
        return None


class Bolt:
    """Bolt with acking by hand (Storm's IRichBolt): every input must be acked or failed, now or
    later.

    `effects` chooses what a batch replay does with a bolt that acts on the outside; undeclared, a
    bolt without outputs and state is redirected. `order_insensitive` promises that results do not
    depend on the order of inputs.
    """

    outputs: Outputs = ()
    blocking: ClassVar[bool] = False
    effects: Effects | None = None
    order_insensitive: bool = False

    def prepare(self, conf: Conf, context: TopologyContext, collector: OutputCollector) -> None:
        """Prepare the task: called once in the worker, before the first tuple."""

    def execute(self, tup: Tuple) -> None:
        """Process one tuple; an exception fails it."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Release resources: called when the worker stops, not when it is killed."""


class GatheringBolt(Bolt):
    """Blocking bolt that acts on several inputs at once, such as one request for many keys.

    Its thread calls `end_turn` behind an `execute` when no further input waits, or `has_enough` is
    true. An input that is neither acked nor failed is one that the bolt is working on.
    """

    blocking = True
    input_fields: Sequence[str] = ()  # that each of its inputs must have

    @property
    def has_enough(self) -> bool:
        """Return whether as many inputs were gathered as one call may take."""
        return False

    def end_turn(self) -> None:
        """Act on the inputs that were gathered; ack or fail them, now or later. A
        `WorkerFailedError` ends the worker.
        """

    def abandon(self) -> None:
        """End threads of the bolt without cleanup, as when its process dies."""


class BasicBolt:
    """Bolt that anchors, acks and fails by itself (Storm's BaseBasicBolt); see `Bolt` for `effects`
    and `order_insensitive`.
    """

    outputs: Outputs = ()
    blocking: ClassVar[bool] = False
    effects: Effects | None = None
    order_insensitive: bool = False

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        """Prepare the task: called once in the worker, before the first tuple."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Process one tuple; an exception fails it and undoes what was emitted and put."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Release resources: called when the worker stops, not when it is killed."""


class Stateful:
    """Mixin that gives a bolt a key-value state, written in the epoch's commit (Storm's
    IStatefulBolt).

    `key_fields`: fields whose equal values must reach the same task; `build()` refuses inputs that
    scatter them.

    `state_keyed_by_grouping` promises that every key is the value (or tuple of values) by which all
    inputs are grouped; a checkpoint can then be divided among another number of tasks.

    `state_key_type` and `state_type`: types in a replay's result ("string",
    "struct<user:bigint,day:string>" for tuples), else found from the values.

    `state_version` numbers the form of keys and values; code with a higher one reads the older form
    in `migrate_state`.
    """

    key_fields: Sequence[str] = ()
    state_version: ClassVar[int] = 1
    state_keyed_by_grouping: ClassVar[bool] = False
    state_key_type: str = ""
    state_type: str = ""

    def init_state(self, state: KeyValueState) -> None:
        """Take the last committed state: called once per task, after `prepare`."""
        self.state = state

    def migrate_state(self, state: KeyValueState, version: int) -> None:
        """Bring a state of another version into this one's form; called before `init_state`.

        What it changes is part of the task's first commit. The default refuses.
        """
        raise InvalidTopologyError(
            f"its state has version {version}, this code reads version {self.state_version}: "
            "override migrate_state(state, version), or go back to the code that wrote it"
        )


class StatefulBolt(Stateful, BasicBolt):
    """BasicBolt with a key-value state, `self.state`."""
