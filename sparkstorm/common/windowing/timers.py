"""Timers: names that are due at a time of event time or processing time, kept in the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sparkstorm.common.errors import CodecError
from sparkstorm.common.model.values.codec import KEY_TYPES, no_key
from sparkstorm.common.model.values.value_types import ONE_FORM
from sparkstorm.common.windowing.due_queue import DueQueue
from sparkstorm.common.windowing.store import Key, Store
from sparkstorm.common.windowing.watermarks import END

Axis = Literal["event", "processing"]


@dataclass(frozen=True, slots=True)
class Timer:
    """A due timer: its name (a tuple, or a single value), its time, and its axis."""

    name: Any
    at_ms: int
    axis: Axis


class TimerTable:
    """A task's timers: one per name and axis; setting it again moves it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: dict[Axis, DueQueue] = {"event": DueQueue(), "processing": DueQueue()}
        # whether a name was set that may equal one of another form, as True does 1
        self._has_forms = False
        self.is_firing = False  # whether the call of a timer is under way
        for entry_key, at_ms in store.items():
            if entry_key[0] == "timer":
                self._has_forms = self._has_forms or not ONE_FORM.issuperset(map(type, entry_key))
                self._queue[entry_key[1]].add(at_ms, entry_key[2:])

    def set(self, axis: Axis, name: Any, at_ms: int) -> None:
        """Set or move the timer of a name."""
        # The watermark ends at END: a later timer would never fire, without a word.
        if isinstance(at_ms, bool) or not isinstance(at_ms, int) or not 0 <= at_ms <= END:
            raise ValueError(
                f"timer {name!r:.60}: the time must be a whole number of milliseconds from 0 to 2**63 - 1, which is the "
                f"end of all input, not {at_ms!r:.60}"
            )
        key = _key(name)
        try:
            self._store.put(("timer", axis, *key), at_ms)
        except (TypeError, CodecError):
            _check_name(name)
            raise
        for part in key:
            if type(part) not in ONE_FORM:
                self._has_forms = True
        if self._has_forms:
            key = self._stored(axis, key)
        self._queue[axis].add(at_ms, key)

    def cancel(self, axis: Axis, name: Any) -> None:
        """Cancel a timer; one that is not set is no error."""
        try:
            self._store.delete(("timer", axis, *_key(name)))
        except TypeError:
            _check_name(name)
            raise

    def next_at(self, axis: Axis) -> int | None:
        """Return when the next timer is due, or was due before it was moved."""
        return self._queue[axis].first_at()

    def next_due(self, axis: Axis, until_ms: int) -> Timer | None:
        """Return the earliest due timer; the same one until `done`."""
        queue = self._queue[axis]
        # Here and not when a timer is moved: the call that has moved it may yet be undone.
        queue.sweep(lambda at_ms, key: self._store.get(("timer", axis, *key)) == at_ms)
        while (at_ms := queue.first_at()) is not None and at_ms <= until_ms:
            key = queue.first_key()
            if self._store.get(("timer", axis, *key)) == at_ms:
                if self._has_forms:  # it may have been cancelled and set again in another form
                    key = self._stored(axis, key)
                return Timer(key[0] if len(key) == 1 else key, at_ms, axis)
            queue.drop_first()
        return None

    def _stored(self, axis: Axis, key: Key) -> Key:
        """Return the name as the store has it, from which it is read after a restart."""
        stored: Key = self._store.form_of(("timer", axis, *key))
        return stored[2:]

    def done(self, timer: Timer) -> None:
        """Remove a timer that has fired, unless it was set again meanwhile."""
        entry_key = ("timer", timer.axis, *_key(timer.name))
        if self._store.get(entry_key) == timer.at_ms:
            self._store.delete(entry_key)

    def fire(self, timer: Timer, call: Callable[[Timer, Any], None], collector: Any) -> None:
        """Remove a due timer and make its call."""
        self.done(timer)
        self.is_firing = True
        try:
            call(timer, collector)
        finally:
            self.is_firing = False


def _key(name: Any) -> Key:
    return tuple(name) if isinstance(name, tuple | list) else (name,)


def _check_name(name: Any) -> None:
    """Raise CodecError for a name that cannot be a key of the store."""
    for what in filter(None, map(no_key, _key(name))):
        raise CodecError(
            f"timer {name!r:.60}: its name holds {what}; names are {KEY_TYPES}, and tuples of them"
        )
