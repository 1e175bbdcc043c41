"""Owns test objects that stay one object when a topology is packed and opened in this process.

A cluster in one process packs components just as a real one does, so that what cannot be packed is found early. What a
test looks at afterwards must not be copied on the way: it travels as a number.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakValueDictionary

from sparkstorm.errors import WorkerFailedError

ValueT = TypeVar("ValueT")
_numbers = itertools.count(1)


class ByReference:
    """Base class: pickling an instance gives a reference to it, which only this process can follow."""

    _by_number: ClassVar[WeakValueDictionary[int, ByReference]] = WeakValueDictionary()

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._by_number[self._number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _find, (os.getpid(), self._number)


class Shared(ByReference, Generic[ValueT]):
    """A box around a value that a test and the components it runs both use: `Shared([])`, read as `.value`."""

    def __init__(self, value: ValueT) -> None:
        super().__init__()
        self.value = value


def _find(process: int, number: int) -> ByReference:
    found = ByReference._by_number.get(number) if process == os.getpid() else None
    if found is None:
        raise WorkerFailedError("a test component's memory lives in the test's process alone, for as long as the test holds it")
    return found
