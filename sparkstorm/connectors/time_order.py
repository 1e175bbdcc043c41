"""Order of records over several inputs by event time: partitions that bring records, and files that
are read one record ahead.

Every input has a clock: the newest time that it has had. Records go out by the clock at each of
them. So a record is behind the newest one that was given out by as much as it is behind its own
input's newest, and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Generic, TypeVar

from sparkstorm.api.columns import WHOLE
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.values.column_types import ANY, parse_type

NO_TIME = -(1 << 63)  # of a record that cannot be read: it keeps its place in its input
T = TypeVar("T")
TimeOf = str | Callable[[Mapping[str, Any]], int]
# files; with 64, logs of 100 hosts were opened again at each record, and 1,024 is many systems'
# limit
MOST_OPEN = 128
# inputs asked for a record in one call: thousands of files must not hold up a worker's loop for
# seconds
_READ_PER_CALL = 256


class RecordTime:
    """Reader of the event time of a record: the field that `time` names, or what the function
    `time` makes of the fields by name.
    """

    def __init__(
        self,
        source: str,
        time: TimeOf,
        names: Sequence[str],
        fields: Collection[str],
        is_text: bool = False,
    ) -> None:
        """`source`: its class, for errors. `fields`: those of `names` that can have a time, perhaps
        with their types; `is_text`: as text.
        """
        if not callable(time) and time not in fields:
            near = get_close_matches(str(time), fields, 1)
            hint = f"did you mean '{near[0]}'? It" if near else "it"
            raise InvalidConfigError(
                f"{source}: time names the field {time!r:.60}, which is not among the fields; {hint} "
                "may be a function of the record"
            )
        kind = fields[time] if isinstance(fields, Mapping) and not callable(time) else ANY
        if kind != ANY and parse_type(kind).name not in WHOLE:
            raise InvalidConfigError(
                f"{source}: time names the field '{time}', which is declared as {kind}; a time is a bigint of milliseconds, "
                f"or a function of the record, such as time=lambda record: int(record['{time}'])"
            )
        self._time = time
        self._names = tuple(names)
        self._is_text = is_text

    def of(self, values: Sequence[Any]) -> int:
        """Return the time in milliseconds; ValueError for a record that has none, or when the
        caller's function raises.
        """
        time = self._time
        try:
            record = dict(zip(self._names, values, strict=True))
            value = time(record) if callable(time) else record[time]
            time_ms = (
                int(value) if self._is_text and type(value) is str and not callable(time) else value
            )
        except Exception as error:  # user code
            raise ValueError(f"time= raised {type(error).__name__}: {error}") from error
        if type(time_ms) is not int:
            raise ValueError(
                f"the time of the record is {time_ms!r:.60}, not a whole number of milliseconds"
            )
        return time_ms


class _TimedPartition:
    """Records that were fetched and not given out, with the partition's clock at each: its newest
    time so far.
    """

    __slots__ = ("behind_ms", "clock", "ended_ms", "heard_ms", "is_at_end", "waiting")

    def __init__(self, heard_ms: int) -> None:
        self.clock = NO_TIME
        self.behind_ms = 0
        self.heard_ms = heard_ms
        self.is_at_end = False
        self.ended_ms = heard_ms
        self.waiting: deque[tuple[int, Any]] = deque()


class PartitionOrder:
    """Merge of records of partitions by their clocks, as in Kafka Streams (KIP-353, KIP-695).

    A record goes out when no partition that still has records can have an older clock. So a record
    is behind the newest one that was given out by as much as it is behind its own partition's
    newest, and no more: with a lag that covers the disorder within a partition, none is late.

    Times are those of polls. A partition that has more records is waited for up to `idle_ms` since
    its last one. For one at its end each record waits up to `end_wait_ms`, since it came and since
    that partition's last one. Other than by KIP-353's max.task.idle.ms, which counts from the end
    alone, the first records after a silence wait for the others too. A partition that had nothing
    for twice `end_wait_ms` while others went on is silent: nothing waits for it until it has a
    record, or until all were at their ends for `end_wait_ms`.
    """

    def __init__(self, idle_ms: int, end_wait_ms: int = 0) -> None:
        self._idle_ms = idle_ms
        self._end_wait_ms = end_wait_ms
        self._polled_ms = 0
        self._came_ms = self._resumed_ms = 0  # last record, and first one after a silence
        # of records that may wait for an end: when they came, and a clock above all before it
        self._arrivals: deque[tuple[int, int]] = deque()
        self._overdue = NO_TIME  # records up to this clock have waited for `end_wait_ms`
        self._partitions: dict[str, _TimedPartition] = {}
        self._ready: deque[Any] = deque()

    def add(self, partition_name: str) -> None:
        """Expect records of a partition."""
        self._partitions[partition_name] = _TimedPartition(self._polled_ms)

    def put(self, partition_name: str, records: Iterable[tuple[int, Any]]) -> int:
        """Take records of a partition, each with its time; return how many of it wait."""
        partition = self._partitions[partition_name]
        is_alone = len(self._partitions) == 1  # its records wait for no other partition's
        clock = partition.clock
        wait = self._ready.append if is_alone else partition.waiting.append
        for time_ms, record in records:
            if time_ms > clock:
                clock = time_ms
            elif clock - time_ms > partition.behind_ms and time_ms != NO_TIME:
                partition.behind_ms = clock - time_ms
            wait(record if is_alone else (clock, record))
        partition.clock = clock
        if self._end_wait_ms and not is_alone:
            self._note_arrival(clock)
        partition.heard_ms = self._polled_ms
        partition.is_at_end = False
        return len(partition.waiting)

    def note_end(self, partition_name: str) -> None:
        """Take note that a partition has nothing behind what was put."""
        partition = self._partitions[partition_name]
        if not partition.is_at_end:
            partition.ended_ms = self._polled_ms
        partition.is_at_end = True

    def note_poll(self, taken_ms: int) -> None:
        """Take note of the time that a poll for records took."""
        self._polled_ms += taken_ms

    def take(self, most: int) -> list[Any]:
        """Return the next records, `most` at the most."""
        if not self._ready:
            self._sort()
        next_one = self._ready.popleft
        return [next_one() for _ in range(min(most, len(self._ready)))]

    def waiting(self, partition_name: str) -> int:
        """Return how many records of a partition wait."""
        return len(self._partitions[partition_name].waiting)

    def behind_ms(self) -> dict[str, int]:
        """Return how far a record of each partition was behind the newest one of that partition, at
        the most.
        """
        return {name: partition.behind_ms for name, partition in self._partitions.items()}

    @property
    def is_empty(self) -> bool:
        """Return whether every record was given out."""
        return not self._ready and not any(
            partition.waiting for partition in self._partitions.values()
        )

    @property
    def is_at_end(self) -> bool:
        """Return whether every partition was read to its end, and everything given out."""
        return self.is_empty and all(partition.is_at_end for partition in self._partitions.values())

    def _note_arrival(self, clock: int) -> None:
        now_ms = self._polled_ms
        # before this partition's end is forgotten
        if now_ms - self._came_ms >= self._end_wait_ms and all(
            partition.is_at_end for partition in self._partitions.values()
        ):
            self._resumed_ms = now_ms
        self._came_ms = now_ms
        arrivals = self._arrivals
        if not arrivals or arrivals[-1][1] < clock:
            arrivals.append((now_ms, clock))

    def _bound_of(self, partition: _TimedPartition) -> int | None:
        """Return the clock up to which records may go out before others of a partition come; None
        when it is not waited for.
        """
        now_ms = self._polled_ms
        if not partition.is_at_end:
            return partition.clock if now_ms - partition.heard_ms < self._idle_ms else None
        if now_ms - partition.ended_ms < self._end_wait_ms:
            return partition.clock
        if now_ms - max(partition.ended_ms, self._resumed_ms) >= 2 * self._end_wait_ms:
            return None
        return max(partition.clock, self._overdue)

    def _sort(self) -> None:
        arrivals = self._arrivals
        while arrivals and self._polled_ms - arrivals[0][0] >= self._end_wait_ms:
            self._overdue = max(self._overdue, arrivals.popleft()[1])
        bounds = [self._bound_of(partition) for partition in self._partitions.values()]
        bound = min((clock for clock in bounds if clock is not None), default=None)
        taken: list[tuple[int, Any]] = []
        for partition in self._partitions.values():
            waiting = partition.waiting
            while waiting and (bound is None or waiting[0][0] <= bound):
                taken.append(waiting.popleft())
        taken.sort(key=itemgetter(0))  # stable: records of one partition keep their order
        self._ready.extend(record for _, record in taken)
        while taken and arrivals and arrivals[0][1] <= taken[-1][0]:
            arrivals.popleft()


class _Ahead(Generic[T]):
    """An input with its clock, and its place among inputs of equal clocks."""

    __slots__ = ("clock", "place", "source")

    def __init__(self, source: T, place: tuple[int, int]) -> None:
        self.source = source
        self.place = place
        self.clock = NO_TIME


class MergedInputs(Generic[T]):
    """Merge of records of inputs that are read one record ahead, by their clocks; of equal ones,
    the input of lower rank first.

    An input that has nothing is left out until it is added again: so it is not waited for.
    """

    def __init__(
        self,
        read: Callable[[T], tuple[int, Any] | None],
        pause: Callable[[T], None],
        most_open: int,
    ) -> None:
        """`read` returns the time of an input's next record and the record, None when there is none
        now.

        Beyond `most_open` inputs, `pause` is called of the least recently read one, which has a
        record waiting. It is read again when that record was given out.
        """
        self._read = read
        self._pause = pause
        self._most_open = most_open
        self._by_id: dict[int, _Ahead[T]] = {}
        self._unread: deque[_Ahead[T]] = deque()
        self._heads: list[tuple[int, tuple[int, int], _Ahead[T], Any]] = []
        self._open: dict[int, T] = {}  # least recently read first
        self._added = 0

    def __contains__(self, source: T) -> bool:
        return id(source) in self._by_id

    def __len__(self) -> int:
        """Return the number of inputs that are not left out."""
        return len(self._by_id)

    def add(self, source: T, rank: int) -> None:
        """Expect records of an input."""
        self._added += 1  # no two places are equal: what is sorted are numbers only
        self._by_id[id(source)] = ahead = _Ahead(source, (rank, self._added))
        self._unread.append(ahead)

    def take(self) -> tuple[T, Any] | None:
        """Return the next record behind its input; None when none has any, or before every input
        has been asked for one.

        An error of `read` goes to the caller, and that input is read again in the next call.
        """
        for _ in range(min(len(self._unread), _READ_PER_CALL)):
            self._read_ahead(self._unread[0])
            self._unread.popleft()
        if self._unread or not self._heads:
            return None
        _, _, ahead, record = heappop(self._heads)
        self._unread.append(ahead)
        return ahead.source, record

    def _read_ahead(self, ahead: _Ahead[T]) -> None:
        key = id(ahead.source)
        source = ahead.source
        read = self._read(source)
        self._open.pop(key, None)
        if read is None:
            del self._by_id[key]
            return
        ahead.clock = max(ahead.clock, read[0])
        heappush(self._heads, (ahead.clock, ahead.place, ahead, read[1]))
        self._open[key] = source
        if len(self._open) > self._most_open:
            self._pause(self._open.pop(next(iter(self._open))))
