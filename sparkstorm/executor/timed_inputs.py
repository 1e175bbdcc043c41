"""Times and keys of the inputs of a windowed or timed bolt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from sparkstorm.errors import CodecError
from sparkstorm.executor.user_traceback import failure_of
from sparkstorm.model.failure import Failure, FailureKind
from sparkstorm.model.tuples import Source, Tuple
from sparkstorm.windowing.watermarks import LAST_MS


class TimedInputs:
    """Reader of times and keys; fields are looked up once per source."""

    def __init__(self, timestamp_field: str | None, key_fields: Sequence[str], now_ms: Callable[[], int]) -> None:
        self._timestamp_field, self._key_fields, self._now_ms = timestamp_field, key_fields, now_ms

    def time_of(self, source: Source) -> Callable[[Tuple], int]:
        """Return the function from a tuple of this source to its time in ms; ValueError for what is no time."""
        field = self._timestamp_field
        if field is None:
            now_ms = self._now_ms
            return lambda tup: now_ms()
        position = source.position(field)

        def time_of(tup: Tuple) -> int:
            at = tup.values[position]
            if type(at) is not int or not 0 <= at <= LAST_MS:
                raise ValueError(f"field '{field}' holds {at!r:.60}: a time is a whole number of milliseconds from 0 to 2**53")
            return at

        return time_of

    def key_of(self, source: Source) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        """Return the function from the values of this source to their key."""
        positions = [source.position(field) for field in self._key_fields]
        if not positions:
            return lambda values: ()
        if len(positions) == 1:
            position = positions[0]
            return lambda values: (values[position],)
        several: Callable[[tuple[Any, ...]], tuple[Any, ...]] = itemgetter(*positions)
        return several

    def failure(self, tup: Tuple, error: BaseException) -> Failure:
        """Return the failure of a tuple; it names a key field whose value cannot be a key."""
        if isinstance(error, TypeError | CodecError):
            for field in self._key_fields:
                if field in tup.fields and isinstance(tup[field], list | dict):
                    kind = type(tup[field]).__name__
                    text = f"key field '{field}' holds a {kind}: keys are text, numbers, bytes, true/false or none"
                    return Failure(FailureKind.RAISED, text)
        return failure_of(error)
