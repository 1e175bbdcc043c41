"""Stores that fail at their n-th write: once, as a store that was away for a moment, or for good,
as a process that died.
"""

from collections.abc import Callable, Iterator
from typing import Any

from sparkstorm.common.errors import StoreUnavailableError

WRITES = (
    "put",
    "create",
    "ensure_path",
    "create_sequential",
    "delete",
    "put_ephemeral",
    "try_ephemeral",
)
MOST_WRITES = 150  # more than any request takes
KEEPING = ("retire", "hand_over", "seed")  # what a keeper of the topologies' data writes


class CrashPoint:
    """Counts the writes of all stores it is put around; crashes at the n-th, before the write is
    done or after.
    """

    def __init__(self, at: int, is_written: bool = False, is_final: bool = True) -> None:
        self.at = at
        self._left, self._is_written, self._is_final = at, is_written, is_final
        self._stores: list[Any] = []
        self.has_crashed = False

    def around(self, store: Any) -> Any:
        """Return the store, of which each write counts."""
        self._stores.append(store)
        return _CrashingStore(store, self)

    @property
    def is_dead(self) -> bool:
        """Return whether nothing reaches the stores any more."""
        return self.has_crashed and self._is_final

    def write(self, do: Callable[[], Any]) -> Any:
        """Let a write through, or crash."""
        self._left -= 1
        if self._left:
            return do()
        if self._is_written:
            do()
        self.has_crashed = True
        if self._is_final:
            for store in self._stores:
                getattr(store, "close", lambda: None)()
        raise StoreUnavailableError("the store went away")


class _CrashingStore:
    def __init__(self, inner: Any, crash: CrashPoint) -> None:
        self._inner, self._crash = inner, crash

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name == "close":
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            if self._crash.is_dead and name not in KEEPING:  # which belongs to nobody's session
                raise StoreUnavailableError("the process died")
            if name in WRITES + KEEPING:
                return self._crash.write(lambda: found(*arguments, **options))
            return found(*arguments, **options)

        return call


def each_point(
    is_written: bool = False, is_final: bool = True, limit: int = MOST_WRITES
) -> Iterator[CrashPoint]:
    """Yield a crash at the first write, at the second and so on, until a run is over before its
    crash comes.
    """
    for at in range(1, limit):
        crash = CrashPoint(at, is_written, is_final)
        yield crash
        if not crash.has_crashed:
            return
    raise AssertionError(f"a run of more than {limit} writes, or one that never ends")
