"""RedisSource and RedisSink: streams of a user's own Redis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import redis

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.components import Conf, ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.model.values.tagged import to_json
from sparkstorm.connectors.patience import (
    Patience,
    Secret,
    check_flags,
    check_number,
    plain_name,
    without_password,
)
from sparkstorm.connectors.time_order import NO_TIME, PartitionOrder, RecordTime, TimeOf

Entries = Sequence[tuple[bytes, Sequence[bytes]]]  # ids, fields and values in turn
ReadEntry = tuple[str, tuple[Any, ...], str]  # stream, values, why it is no record
TimedEntry = tuple[int, ReadEntry]
_ROWS_PER_CALL = 128
_ENTRIES_PER_READ = 2_000  # of each stream; fewer mean that it is at its end
# Lua unpacks at most 8,000 values; a script that fails keeps the entries that it has written
_MOST_FIELDS = 3_900
_APPEND = """
if (redis.call('GET', KEYS[2]) or '') >= ARGV[1] then return 0 end
local at = 4
while at <= #ARGV do
    local count = tonumber(ARGV[at])
    local entry = {}
    for i = 1, count do entry[i] = ARGV[at + i] end
    if ARGV[2] == '' then redis.call('XADD', KEYS[1], '*', unpack(entry))
    else redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', unpack(entry)) end
    at = at + count + 1
end
redis.call('SET', KEYS[2], ARGV[1])
return 1
"""


class RedisSource(ReplayableSpout):
    """Spout that emits the entries of Redis streams exactly once: named fields as text, the entry's
    `id` and its time (`time_ms`).

    A task's streams are read in step by event time: the field `time` (milliseconds as text), what
    the function `time` makes of a record's fields, or the time in the entry's id. A record without
    one goes to the stream `bad` (place, text, reason).

    The position is the last id of each stream with the number of entries; no consumer group is
    joined. Streams are dealt to tasks in turn. `first="$"` begins with the entries after the start.
    Entries removed behind the position are an error at connecting (Redis 7 and newer);
    `lost="skip"` goes on with the oldest one left.
    """

    blocking = True

    def __init__(
        self,
        url: str,
        streams: str | Sequence[str],
        fields: Sequence[str],
        *,
        first: str = "0",
        follow: bool = True,
        lost: str = "fail",
        time: TimeOf | None = None,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        if first not in ("0", "$") or lost not in ("fail", "skip"):
            raise InvalidConfigError(
                'RedisSource: first is "0" or "$", and lost is "fail" or "skip"'
            )
        check_flags("RedisSource", follow=follow)
        self._url = without_password(url, "RedisSource")
        self._secret = Secret("RedisSource", password_file, password_env)
        names = [
            plain_name(stream, "RedisSource")
            for stream in ([streams] if isinstance(streams, str | int | None) else streams)
        ]
        if not names:
            raise InvalidConfigError("RedisSource: name a stream, at least one")
        self._streams = list(dict.fromkeys(names))  # two tasks must not read the same one
        self._fields = [plain_name(field, "RedisSource") for field in fields]
        self._first = first
        self._follow = follow
        self._lost = lost
        record = {**dict.fromkeys(self._fields, "string"), "id": "string", "time_ms": "bigint"}
        self._time = (
            None
            if time is None
            else RecordTime("RedisSource", time, tuple(record), self._fields, is_text=True)
        )
        self.outputs = {"default": record, "bad": ["place", "text", "reason"]}

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Take this task's streams."""
        self._collector = collector
        mine = self._streams[context.task_index :: len(context.peers)]
        self._last: dict[str, str] = dict.fromkeys(mine, self._first)
        # Entries added to a stream up to its position, trimmed ones included; not known before
        # Redis 7
        self._passed: dict[str, int] = {}
        # last ids that were read; those between wait for their turns
        self._fetched = dict(self._last)
        # each read shows which streams are at their end: none is waited for by time
        self._order = PartitionOrder(1)
        for stream in mine:
            self._order.add(stream)
        self._where = f"component '{context.component_id}', Redis at {self._url}"
        self._patience = Patience(self._where, context.now_ms, collector.report_error)
        self._client: Any = None
        self._is_checked = self._is_read = False

    def next_tuple(self) -> None:
        """Emit some entries, and read more when none of those at hand is next."""
        if not (ready := self._order.take(_ROWS_PER_CALL)):
            if not self._fetch():
                return
            ready = self._order.take(_ROWS_PER_CALL)
        self._emit_all(ready)
        for stream, values, _ in ready:
            self._last[stream] = values[-2]
            if stream in self._passed:
                self._passed[stream] += 1

    def is_exhausted(self) -> bool:
        """Return whether there was nothing behind the last entry when it was last looked; never if
        new ones are waited for.
        """
        return not self._follow and (not self._last or (self._is_read and self._order.is_at_end))

    def snapshot(self) -> Any:
        """Last id of each stream, and how many entries were added up to it (None: not known)."""
        return {stream: [id, self._passed.get(stream)] for stream, id in self._last.items()}

    def restore(self, position: Any) -> None:
        """Go on behind them."""
        for stream, (id, passed) in position.items():
            if stream in self._last:
                self._last[stream] = self._fetched[stream] = id
                if passed is not None:
                    self._passed[stream] = passed

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _emit_all(self, ready: Iterable[ReadEntry]) -> None:
        """Emit entries as records; one with a reason as one that is none."""
        emit = self._collector.emit
        for stream, values, reason in ready:
            if not reason:
                emit(values, values[-2])
                continue
            place = f"{stream}/{values[-2]}"
            self._collector.report_error(f"{place}: {reason}")
            text = to_json(list(values))[:2000]
            emit((place, text, reason), values[-2], stream="bad")

    def _timed(self, stream: str, entries: Entries) -> Iterator[TimedEntry]:
        """Yield each entry's event time, and its stream, its values and why it is no record."""
        names = [name.encode() for name in self._fields]
        for id_bytes, cells in entries:
            id = id_bytes.decode()
            time_ms = int(id[: id.index("-")])
            if cells[::2] == names:
                parts: Sequence[bytes | None] = cells[1::2]
            else:  # no dict is needed for most entries
                by_name = dict(zip(cells[::2], cells[1::2], strict=True))
                parts = [by_name.get(name) for name in names]
            texts = [None if part is None else part.decode("utf-8", "replace") for part in parts]
            values = (*texts, id, time_ms)
            reason = ""
            if self._time is not None:
                try:
                    time_ms = self._time.of(values)
                except ValueError as error:
                    time_ms, reason = NO_TIME, str(error)[:300]
            yield time_ms, (stream, values, reason)

    def _fetch(self) -> bool:
        if self._patience.is_resting or not self._last or self.is_exhausted():
            return False
        try:
            asked, answer = self._read()
        except redis.AuthenticationError as error:
            raise InvalidConfigError(
                f"{self._where}: {error}; name the password's place with password_file or password_env"
            ) from error
        except redis.ResponseError as error:
            # a script runs
            is_passing = isinstance(error, redis.exceptions.ClusterDownError) or str(
                error
            ).startswith("BUSY ")
            if not is_passing:
                raise InvalidConfigError(f"{self._where}: {error}") from error
            self._patience.bear(error)
            return False
        except redis.RedisError as error:
            self._is_checked = False
            self._patience.bear(error)
            return False
        self._patience.succeed()
        # a dict by RESP3, pairs by RESP2: redis-py's version and the URL decide
        by_stream = {name.decode(): entries for name, entries in dict(answer).items()}
        for stream in asked:
            if entries := by_stream.get(stream, ()):
                self._order.put(stream, self._timed(stream, entries))
                self._fetched[stream] = entries[-1][0].decode()
            if len(entries) < _ENTRIES_PER_READ:
                self._order.note_end(stream)
        self._is_read = True
        return bool(by_stream)

    def _read(self) -> tuple[list[str], Any]:
        """Return the streams that were asked, and the entries found.

        A stream with entries that wait for their turns is not asked: so no more of it waits than
        one read brings.
        """
        if self._client is None:
            self._client = connect(self._url, self._secret)
            # flat lists of fields and values: with a dict of each entry a read took 1.3 times as long
            self._client.set_response_callback("XREAD", lambda answer, **_: answer or ())
        if not self._is_checked:
            is_new = "$" in self._last.values()
            self._check_positions()
            self._is_checked = True
            if is_new:
                self._collector.keep_position(0)
        asked = [stream for stream in self._fetched if not self._order.waiting(stream)]
        block_ms = 100 if self._follow and len(asked) == len(self._fetched) else None
        behind: dict[Any, Any] = {stream: self._fetched[stream] for stream in asked}
        return asked, self._client.xread(behind, count=_ENTRIES_PER_READ, block=block_ms)

    def _check_positions(self) -> None:
        """Name streams that lost entries behind the position; turn "$" into an id that lasts."""
        for stream, last in self._last.items():
            try:
                info = self._client.xinfo_stream(stream)
            except redis.ResponseError as error:
                if "no such key" not in str(error):
                    raise
                info = {}
            if last == "$":
                self._last[stream] = self._fetched[stream] = (
                    info["last-generated-id"].decode() if info else "0-0"
                )
            added = info.get("entries-added")
            if last in ("$", "0"):
                if added is not None:
                    self._passed[stream] = added if last == "$" else added - info["length"]
            elif self._lost == "fail" and (loss := _loss(info, last, self._passed.get(stream))):
                raise InvalidConfigError(
                    f'{self._where}: {loss} of stream {stream} behind {last}; set lost="skip" to go on with the oldest that is left'
                )


def _loss(info: Mapping[str, Any], last: str, passed: int | None) -> str:
    """Return what was removed from a stream before it was read, as XINFO STREAM of Redis 7 shows
    it; "" for nothing.

    Trimming leaves no id in XINFO, so removed entries are counted: with none left up to the
    position, those beyond `passed` were behind it.
    """
    if not info:
        return ""
    added = info.get("entries-added")
    first = info["first-entry"]
    if (
        added is not None
        and passed is not None
        and (first is None or order(first[0].decode()) > order(last))
    ):
        if added < passed:
            return f"an unknown number of entries was deleted with the stream: {passed} had been read, {added} were added since,"
        if (lost := added - info["length"] - passed) > 0:
            return f"{counted(lost, 'entry was', 'entries were')} trimmed and never read"
    deleted = info.get("max-deleted-entry-id", b"0-0").decode()
    return (
        f"entries up to {deleted} were deleted and never read"
        if order(deleted) > order(last)
        else ""
    )


class RedisSink(TransactionalSink):
    """Sink that appends rows to a Redis stream, exactly once as long as Redis keeps what it has
    acknowledged.

    Text and bytes are written as they are, other values as JSON. The epoch's number is under
    `{stream}:sparkstorm:<topology>/<component>/<task>`, written by the same script. `most` bounds
    the stream (MAXLEN ~).
    """

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        most: int | None = None,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        self._url = without_password(url, "RedisSink")
        self._secret = Secret("RedisSink", password_file, password_env)
        self._stream = plain_name(stream, "RedisSink")
        if most is not None:
            check_number("RedisSink", "most", most, is_whole=True)
        self._most = "" if most is None else str(most)

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Connect to nothing yet."""
        self._epoch_key = f"{{{self._stream}}}:sparkstorm:{context.topology_id}/{context.component_id}/{context.task_index}"
        self._client: Any = None
        self._rows: list[list[Any]] = []

    def begin(self, epoch: int) -> None:
        """Begin without rows."""
        self._rows = []

    def write(self, tup: Tuple) -> None:
        """Keep a row as the fields of an entry."""
        cells: list[Any] = []
        for name, value in zip(tup.fields, tup.values, strict=True):
            if value is not None:
                cells += [name, value if type(value) in (str, bytes) else to_json(value)]
        if not cells:
            raise ValueError("a row of nulls only makes no entry of a stream")
        if len(cells) > 2 * _MOST_FIELDS:
            raise ValueError(
                f"a row of {len(cells) // 2} fields that are not null; an entry takes {_MOST_FIELDS}"
            )
        self._rows.append(cells)

    def prepare(self, epoch: int) -> Any:
        """Return the rows as outbox."""
        return self._rows

    def commit(self, epoch: int, prepared: Any) -> None:
        """Append the rows, if Redis has not the epoch."""
        flat = [cell for row in prepared for cell in (len(row), *row)]
        self._ask(
            "EVAL",
            _APPEND,
            2,
            self._stream,
            self._epoch_key,
            f"{epoch:020d}",
            self._most,
            "",
            *flat,
        )

    def last_epoch(self) -> int | None:
        """Read the epoch's number next to the stream."""
        return int(self._ask("GET", self._epoch_key) or 0)

    def _ask(self, *command: Any) -> Any:
        if self._client is None:
            self._client = connect(self._url, self._secret)
        try:
            return self._client.execute_command(*command)
        except redis.AuthenticationError as error:
            raise InvalidConfigError(
                f"Redis at {self._url}: {error}; name the password's place with password_file or password_env"
            ) from error
        except redis.ResponseError as error:
            if re.match("WRONGTYPE|NOPERM|.*WRONGTYPE", str(error)):
                raise InvalidConfigError(
                    f"stream {self._stream} of Redis at {self._url}: {error}"
                ) from error
            raise

    def cleanup(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()


def connect(url: str, secret: Secret) -> Any:
    """Return a client without retries of its own: the caller decides what may be repeated."""
    try:
        return redis.Redis.from_url(
            url, password=secret.read(), socket_timeout=10, socket_connect_timeout=5, retry=None
        )
    except ValueError as error:
        raise InvalidConfigError(f"{url:.80} is no URL of a Redis: {error}") from error


def order(id: str) -> tuple[int, int]:
    """An entry's id as numbers."""
    ms, _, number = id.partition("-")
    return int(ms), int(number or 0)
