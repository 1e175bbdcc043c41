"""Executors of a driver's slots: the one that each slot is meant for, whether Spark put it there, and
which should move.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from sparkstorm.common.spark_versions import Executor
from sparkstorm.driver.hosting.spread import spread

_LOG = logging.getLogger(__name__)
TRIES: Final = 6
"""Jobs of one slot that Spark may put elsewhere before it stays there: by mere chance one host of
three is missed so often once in 11 times. With half as many every third slot would stay elsewhere;
twice as many delay a start that cannot succeed."""


class SlotExecutors:
    """Plan of `count` slots on the executors that `executors` returns; usable from several
    threads.
    """

    def __init__(self, executors: Callable[[], Sequence[Executor]], count: int) -> None:
        self._executors = executors
        self._count = count
        self._lock = threading.Lock()
        self._held: dict[int, str] = {}
        self._landed: set[int] = set()
        self._misses: dict[int, int] = {}
        # executors at the time when a slot was left where Spark had put it
        self._given_up: frozenset[str] = frozenset()

    def take(self, slot: int) -> Executor | None:
        """Return the executor that the slot is to run on, and count it there; None while no
        executor has room.
        """
        executors = self._executors()
        with self._lock:
            others = {
                slot_number: executor
                for slot_number, executor in self._held.items()
                if slot_number != slot
            }
            plan = spread(executors, self._count, others)
            if not plan.start:
                return None
            self._held[slot] = plan.start[0].id
            self._landed.discard(slot)
            return plan.start[0]

    def leave(self, slot: int) -> None:
        """Note that the slot has ended."""
        with self._lock:
            self._held.pop(slot, None)
            self._landed.discard(slot)

    def unsure(self) -> list[int]:
        """Return the slots that have an executor and were not seen to run yet."""
        with self._lock:
            return sorted(self._held.keys() - self._landed)

    @property
    def are_settled(self) -> bool:
        """Return whether every slot was seen to run."""
        with self._lock:
            return len(self._landed) == self._count

    def landed(self, slot: int, executor_id: str) -> bool:
        """Take in where a slot runs; return whether it may stay: on its host, or where Spark puts
        it again and again.
        """
        executor_by_id = {executor.id: executor for executor in self._executors()}
        with self._lock:
            meant = executor_by_id.get(self._held.get(slot, ""))
            actual = executor_by_id.get(executor_id)
            if slot not in self._held or actual is None:  # it has ended, or is about to
                return True
            is_elsewhere = meant is None or meant.host != actual.host
            if is_elsewhere:
                self._misses[slot] = self._misses.get(slot, 0) + 1
                if self._misses[slot] < TRIES:
                    return False
                self._given_up = frozenset(executor_by_id)
                _LOG.warning(
                    "slot %d runs on %s instead of %s, where Spark did not put it in %d tries: it needs a free core there for "
                    "spark.locality.wait",
                    slot,
                    actual.host,
                    meant.host if meant else "a host that is gone",
                    TRIES,
                )
            self._misses.pop(slot, None)
            self._held[slot] = executor_id
            self._landed.add(slot)
            return True

    def surplus(self) -> list[int]:
        """Return the slots of executors that have too many, while another has too few: one of them
        should move.
        """
        executors = self._executors()
        with self._lock:
            if len(self._landed) < self._count or self._given_up == frozenset(
                executor.id for executor in executors
            ):
                return []
            crowded = {
                self._held[slot] for slot in spread(executors, self._count, self._held).release
            }
            return sorted(slot for slot, executor in self._held.items() if executor in crowded)
