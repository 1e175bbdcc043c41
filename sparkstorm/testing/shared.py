"""Shared: a value that stays one object when a topology is pickled and opened in this process.

LocalCluster pickles components as a real cluster does, so that a component that cannot be pickled
is found early. An object that the test reads afterwards must not be copied by that: it is pickled
as a number.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakValueDictionary

from sparkstorm.common.errors import WorkerFailedError

ValueT = TypeVar("ValueT")
_numbers = itertools.count(1)


class ByReference:
    """Base class of objects that are pickled as a reference, which is valid in this process
    only.
    """

    _by_number: ClassVar[WeakValueDictionary[int, ByReference]] = WeakValueDictionary()

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._by_number[self._number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _find, (os.getpid(), self._number)


class Shared(ByReference, Generic[ValueT]):
    """Holder of a value that a test and the components it runs share: `Shared([]).value`."""

    def __init__(self, value: ValueT) -> None:
        super().__init__()
        self.value = value


def _find(process: int, number: int) -> ByReference:
    value = ByReference._by_number.get(number) if process == os.getpid() else None
    if value is None:
        raise WorkerFailedError(
            "a test component's memory lives in the test's process alone, for as long as the test holds it"
        )
    return value
