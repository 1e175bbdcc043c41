"""Owns the classes a user derives from: Spout, ReplayableSpout, Bolt, BasicBolt, StatefulBolt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar

from sparkstorm.api.collector import BasicOutputCollector, OutputCollector, SpoutOutputCollector
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.state import KeyValueState
from sparkstorm.errors import InvalidTopologyError, show
from sparkstorm.model.topology import Stream
from sparkstorm.model.tuples import Tuple

Outputs = Sequence[str] | Mapping[str, str] | Mapping[str, Sequence[str] | Mapping[str, str] | Stream]
"""Fields of the default stream, as names or with types ({"word": "string"}), or either of them by stream."""
Conf = Mapping[str, Any]


class Effects(Enum):
    """What a batch replay does with a bolt that acts on the outside world, such as a database or a mailbox."""

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
        known = ", ".join(f"Effects.{each.name}" for each in Effects)
        raise InvalidTopologyError(f"component '{id}': effects is {show(effects)}; use one of {known}")


class Spout:
    """Source of a topology's tuples (Storm's ISpout).

    `outputs` declares the fields of the default stream, or fields by stream. A spout that may block (I/O without a
    time limit) sets `blocking = True` and gets a thread of its own; every other one must return from `next_tuple` soon.
    """

    outputs: Outputs = ()
    blocking: ClassVar[bool] = False

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Called once per task before anything else, in the worker."""

    def next_tuple(self) -> None:
        """Emit the next tuple or tuples through the collector, or nothing when there is none now; never block."""
        raise NotImplementedError

    def is_exhausted(self) -> bool:
        """Whether this source has come to its end; a run of finite spouts stops when all trees are settled."""
        return False

    def has_ended(self) -> bool:
        """Whether that end is for good: then event time runs to its end, and every window behind this source fires."""
        return self.is_exhausted()

    def extent(self) -> tuple[int, int]:
        """(total, done) in any unit, for progress displays; (0, 0) when the source cannot tell."""
        return 0, 0

    def ack(self, message_id: Any) -> None:
        """The tree of that message was fully processed; called after the commit, at least once."""

    def fail(self, message_id: Any) -> None:
        """The tree of that message failed or timed out (exactly-once: it was parked); called at least once."""

    def activate(self) -> None:
        """The topology was activated."""

    def deactivate(self) -> None:
        """The topology was deactivated; next_tuple is not called until it is active again."""

    def close(self) -> None:
        """The worker stops in an orderly way; not called when it is killed."""


class ReplayableSpout(Spout):
    """A spout that knows its position; the position is written in the same commit as the tuples it emitted.

    After a crash `restore` is called (after `open`) with the last committed position, so nothing is emitted twice and
    nothing is left out.
    """

    def snapshot(self) -> Any:
        """The position right after the last emitted tuple: any value of the codec's closed set."""
        raise NotImplementedError

    def restore(self, position: Any) -> None:
        """Go on from a position that `snapshot` returned."""
        raise NotImplementedError

    def hand_over(self) -> Any:
        """What a later submission needs to go on from here; the position, unless a spout can say it in lasting terms."""
        return self.snapshot()

    def take_over(self, handed: Sequence[Any]) -> ReplayableSpout | None:
        """A spout that goes on behind what all tasks of a former submission handed over, on any number of tasks.

        None (the default): each task is restored to what the task of its place handed over, so there must be as many.
        """
        return None


class Bolt:
    """Processing step with acking by hand (Storm's IRichBolt): every input must be acked or failed, now or later.

    Two words for batch replay. `effects`, of a bolt that acts on the outside: "mute" (does not run), "redirect" (does
    not run, its input is a result), "idempotent" (runs; a repetition does no harm), "run" (has no effects); undeclared,
    a bolt that emits nothing and keeps nothing is redirected. `order_insensitive`: what it emits and keeps does not depend on
    the order in which its tuples come; a replay then takes whichever order costs least.
    """

    outputs: Outputs = ()
    blocking: ClassVar[bool] = False
    effects: Effects | None = None
    order_insensitive: bool = False

    def prepare(self, conf: Conf, context: TopologyContext, collector: OutputCollector) -> None:
        """Called once per task before the first tuple, in the worker."""

    def execute(self, tup: Tuple) -> None:
        """Process one tuple; raising fails it."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """The worker stops in an orderly way; not called when it is killed."""


class BasicBolt:
    """Processing step that anchors and acks by itself (Storm's BaseBasicBolt).

    Everything emitted during `execute` descends from its input, which is acked when `execute` returns and failed when
    it raises. `effects` and `order_insensitive` as for Bolt.
    """

    outputs: Outputs = ()
    blocking: ClassVar[bool] = False
    effects: Effects | None = None
    order_insensitive: bool = False

    def prepare(self, conf: Conf, context: TopologyContext) -> None:
        """Called once per task before the first tuple, in the worker."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Process one tuple; raising fails it and undoes what it emitted and put."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """The worker stops in an orderly way; not called when it is killed."""


class Stateful:
    """Mix into a bolt to get a key-value state that is written in the epoch's commit (Storm's IStatefulBolt).

    `state_keyed_by_grouping` promises that every key of the state is the value (or the tuple of values) by which all inputs are
    grouped, so that a checkpoint can be dealt out to another number of tasks. `state_key_type` and `state_type` are the types
    of keys and values ("string", "struct<user:bigint,day:string>" for tuples), as the columns of a replay's result have them;
    without them they are found from the values.
    """

    key_fields: Sequence[str] = ()
    state_keyed_by_grouping: ClassVar[bool] = False
    state_key_type: str = ""
    state_type: str = ""

    def init_state(self, state: KeyValueState) -> None:
        """Called once per task after `prepare` with the last committed state."""
        self.state = state


class StatefulBolt(Stateful, BasicBolt):
    """A BasicBolt with a key-value state, as `self.state`."""
