"""Held inputs of one bolt task: executed, and neither done nor given up.

Law: a held input is in the store under its key from the commit that passes it on, until the commit
that follows its end. So what was kept, changed or let go since the last commit is noted here, and
the commit reads it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container

from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.task_kit.held import PendingInput, fresh, has_containers


class HeldInputs:
    """Held inputs of one task by their keys, in the orders of their births, event times and next
    tries.
    """

    def __init__(self, holds_at: Callable[[Tuple], int] | None) -> None:
        """`holds_at` returns the event time of an input; None where there are no windows and
        timers.
        """
        self.by_key: dict[str, PendingInput] = {}
        self.changed: dict[str, None] = {}  # since the last commit
        self.released: list[str] = []  # stored ones that were let go since then
        # begin of the first execute of inputs that are done since the meter has looked, in us
        self.done_since: list[int] = []
        self._holds_at = holds_at
        self._key_by_tuple: dict[int, str] = {}
        # Heaps. Those that are not held any more are dropped when they surface: to take an input
        # out of the middle would cost a search for each ack.
        self._retries: list[tuple[int, str]] = []
        self._births: list[tuple[int, str]] = []
        self._times: list[tuple[int, str]] = []

    def key_of(self, tup: Tuple) -> str | None:
        """Return the key under which this very tuple is held; None if it is not."""
        return self._key_by_tuple.get(id(tup))

    def keep(self, held: PendingInput, began_us: int) -> None:
        """Hold an input, or what has changed of it; `began_us`: of the execute under way."""
        if held.key not in self.by_key:
            heapq.heappush(self._births, (held.born_ms, held.key))
            if self._holds_at is not None:
                heapq.heappush(self._times, (self._holds_at(held.tuple), held.key))
        self.by_key[held.key] = held
        held.since_us = held.since_us or began_us
        self._key_by_tuple[id(held.tuple)] = held.key
        self.changed[held.key] = None
        if held.due_ms is not None:
            heapq.heappush(self._retries, (held.due_ms, held.key))

    def let_go(self, key: str) -> PendingInput:
        """Forget an input; the next commit forgets it too."""
        held = self.by_key.pop(key)
        self._key_by_tuple.pop(id(held.tuple), None)
        # Held and done within one epoch: it is never written to the store.
        self.changed.pop(key, None)
        # Only what was stored needs a delete; the others cost the commit nothing.
        if held.is_stored:
            self.released.append(key)
        return held

    def renew(self, held: PendingInput, codec: Codec) -> None:
        """Give a failed input the values that it had before user code had them."""
        if has_containers(held.original):
            key = self._key_by_tuple.pop(id(held.tuple), None)
            values = fresh(codec, held.original)
            held.tuple = Tuple(values, held.tuple.roots, held.tuple.source)
            if key is not None:
                self._key_by_tuple[id(held.tuple)] = key

    def take_due(self, now_ms: int) -> PendingInput | None:
        """Take an input whose next try is due."""
        while self._retries and self._retries[0][0] <= now_ms:
            _, key = heapq.heappop(self._retries)
            held = self.by_key.get(key)
            # The heap may name an input that was acked, or put off again, since it was queued.
            if held is not None and held.due_ms is not None and held.due_ms <= now_ms:
                return held
        return None

    def next_due_ms(self) -> int | None:
        """Return when the next try is due; None without any."""
        return self._retries[0][0] if self._retries else None

    def oldest_ms(self, born_ms: int) -> int:
        """Return the birth of the oldest root among held inputs and one that was born then."""
        return min(born_ms, self._first(self._births)) if self.by_key else born_ms

    def hold_back(self, mark_ms: int) -> int:
        """Return a watermark, or the least event time of a held input before it.

        An input that waits for its next try is on time as it was at its first: marks behind it may
        not fire its windows.
        """
        return min(mark_ms, self._first(self._times)) if self.by_key and self._times else mark_ms

    def num_kept(self, queued: int = 0) -> int:
        """Return how many inputs user code keeps: all but those that wait for a try, and those
        queued for the bolt's thread.
        """
        return max(0, len(self.by_key) - len(self._retries) - queued)

    def waiting_since_ms(self, queued: Container[int]) -> int | None:
        """Return the birth of the oldest root among inputs that wait for their next try, or whose
        tuples are queued for the bolt's thread, by Python's ids; None without any.
        """
        # Inputs that user code keeps do not count: a bolt that forgets to ack would switch
        # time-outs off (decision 32).
        if not queued and not self._retries:
            return None
        return min(
            (
                held.born_ms
                for held in self.by_key.values()
                if held.due_ms is not None or id(held.tuple) in queued
            ),
            default=None,
        )

    def take_done(self) -> list[int]:
        """Return `done_since`, and begin it anew."""
        taken = self.done_since
        self.done_since = []
        return taken

    def _first(self, heap: list[tuple[int, str]]) -> int:
        """Return the least number of a heap; at least one input must be held."""
        while heap[0][1] not in self.by_key:
            heapq.heappop(heap)
        return heap[0][0]
