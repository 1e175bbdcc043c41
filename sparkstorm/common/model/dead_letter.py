"""DeadLetter: record of an input that a component could not process, with what is needed to execute
it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkstorm.common.errors import CodecError, StoreInconsistentError
from sparkstorm.common.model.failure import Cause as Cause
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.roots import split
from sparkstorm.common.model.topology import TIMER_STREAM, WINDOW_STREAM
from sparkstorm.common.model.tuples import Tuple, each_root
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.tagged import from_json, to_json

Pair = tuple[Any, Any]
REPLAYED_FIELDS = {
    WINDOW_STREAM: ("key", "start", "end", "record"),
    TIMER_STREAM: ("axis", "name", "at_ms"),
}
"""Fields of windows and timers that are given to their task again, as rows from itself."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An input that was parked after `attempts` tries.

    `index` is the task's place among its component's tasks. `state` has the pairs that the failed
    call could see, as committed before it: the whole state of its task while that is small, else
    the keys of its grouping and those that the call used; None when the bolt keeps none. `conf` has
    the settings that differ from the defaults, `window` what a bolt with windows or timers saw
    besides. `roots` name the messages from which it descends.
    """

    failure: Failure
    source_component: str
    source_task: int
    stream: str
    fields: tuple[str, ...]
    values: tuple[Any, ...]
    attempts: int
    index: int = 0
    state: tuple[Pair, ...] | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)
    window: Mapping[str, Any] | None = None
    # not what it is about: equal runs draw other roots
    roots: tuple[int, ...] = field(default=(), compare=False)

    @staticmethod
    def of(tup: Tuple, failure: Failure, attempts: int, **others: Any) -> DeadLetter:
        """Return the record of an input, window or timer that was given up."""
        roots = tuple(dict.fromkeys(split(root) for root in each_root(tup.roots) if root))
        return DeadLetter(
            failure,
            tup.component,
            tup.task,
            tup.stream,
            tup.fields,
            tup.values,
            attempts,
            roots=roots,
            **others,
        )

    @property
    def component(self) -> str:
        """Component that could not process it."""
        return self.failure.component

    @property
    def task(self) -> int:
        """Task that could not process it."""
        return self.failure.task

    @property
    def reason(self) -> str:
        """Text of its failure."""
        return self.failure.text

    @property
    def time_ms(self) -> int:
        """Time at which it was parked."""
        return self.failure.time_ms

    @property
    def cause(self) -> Cause:
        """The letter's group."""
        return self.failure.cause

    def replayed(self) -> tuple[int, tuple[Any, ...]]:
        """Return sender and values of the row that gives it to its task again.

        StoreInconsistentError when the letter is a window's and does not hold its content.
        """
        if self.stream not in REPLAYED_FIELDS:
            return self.source_task, self.values
        if self.stream == TIMER_STREAM:
            return self.task, self.values
        if self.window is None or "tuples" not in self.window:
            raise StoreInconsistentError("the content of its window was too large for it")
        return self.task, (*self.values, dict(self.window))

    def as_record(self) -> dict[str, Any]:
        """Return the letter as a mapping of values of the codec."""
        failure = dict(zip(_FAILURE, self.failure.to_row(), strict=True))
        return {
            "failure": failure,
            "source_component": self.source_component,
            "source_task": self.source_task,
            "stream": self.stream,
            "fields": list(self.fields),
            "values": list(self.values),
            "attempts": self.attempts,
            "index": self.index,
            "state": None if self.state is None else [list(pair) for pair in self.state],
            "conf": dict(self.conf),
            **({} if self.window is None else {"window": dict(self.window)}),
            **({} if not self.roots else {"roots": list(self.roots)}),
        }

    @classmethod
    def from_record(cls, record: Any) -> DeadLetter:
        """Read what `as_record` returned; StoreInconsistentError names what is wrong with it."""
        try:
            fields = dict(record)
            failure = fields.pop("failure")
            letter = cls(Failure.from_row([failure[name] for name in _FAILURE]), **fields)
            return _checked(letter)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreInconsistentError(
                f"a dead letter is no record of ours: {str(error)[:300]}"
            ) from error

    def to_line(self, id: str = "") -> str:
        """Return one line of JSON, with the letter's id in its stream if it has one."""
        return to_json({**({"id": id} if id else {}), **self.as_record()})

    @classmethod
    def from_line(cls, line: str) -> tuple[str, DeadLetter]:
        """Return id (empty: none) and letter of a line; StoreInconsistentError when it is none."""
        try:
            entry = from_json(line)
            return str(entry.pop("id", "")), cls.from_record(entry)
        except (CodecError, AttributeError, TypeError, StoreInconsistentError) as error:
            raise StoreInconsistentError(f"not a line of dead letters: {error}") from error

    def encode(self, codec: Codec) -> bytes:
        """Return the bytes that a commit stores."""
        return codec.pack(self.as_record())

    @classmethod
    def decode(cls, codec: Codec, data: bytes) -> DeadLetter:
        """Read a stored entry; StoreInconsistentError when it is none."""
        return cls.from_record(codec.unpack(data))


_FAILURE = tuple(Failure.__slots__)


def _checked(letter: DeadLetter) -> DeadLetter:
    texts = (letter.source_component, letter.stream)
    numbers = (letter.source_task, letter.attempts, letter.index)
    if any(type(text) is not str for text in texts) or any(
        type(number) is not int for number in numbers
    ):
        raise ValueError("its source, tries or index are of another type")
    for name, rows in (
        ("fields", letter.fields),
        ("values", letter.values),
        ("state", letter.state or ()),
    ):
        if not isinstance(rows, list | tuple):
            raise ValueError(f"its {name} are no list")
    if any(type(name) is not str for name in letter.fields) or len(letter.fields) != len(
        letter.values
    ):
        raise ValueError("its values are not those of its fields")
    if not isinstance(letter.conf, dict) or any(type(key) is not str for key in letter.conf):
        raise ValueError("its configuration is no mapping by key")
    if letter.window is not None and (
        not isinstance(letter.window, dict) or any(type(key) is not str for key in letter.window)
    ):
        raise ValueError("its window is no mapping by name")
    if not isinstance(letter.roots, list | tuple) or any(
        type(root) is not int for root in letter.roots
    ):
        raise ValueError("its roots are no list of numbers")
    pairs = None if letter.state is None else tuple(_pair(pair) for pair in letter.state)
    fields = tuple(letter.fields)
    values = tuple(letter.values)
    roots = tuple(letter.roots)
    return replace(letter, fields=fields, values=values, roots=roots, state=pairs)


def _pair(pair: Any) -> Pair:
    key, value = pair
    if isinstance(key, dict) or (
        isinstance(key, list) and any(isinstance(part, list | dict) for part in key)
    ):
        raise ValueError(f"{key!r:.60} is no key of a state")
    return (tuple(key) if isinstance(key, list) else key), value
