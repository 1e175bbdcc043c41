"""SparkFrame: rows of any Spark DataFrame, streaming or batch, as a spout, by way of a Redis
stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import redis

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.components import Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import CodecError, InvalidConfigError
from sparkstorm.common.model.values.tagged import from_json, to_json
from sparkstorm.connectors.file_records import json_parser
from sparkstorm.connectors.patience import Secret, without_password
from sparkstorm.connectors.redis_streams import Entries, ReadEntry, RedisSource, TimedEntry, connect
from sparkstorm.connectors.spark import struct_cast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

_ROW = "row"
_END = "end"
_ROWS_PER_SCRIPT = 500
_NO_VALUES = ("timestamp_ntz", "interval", "variant", "time(")  # of tuples
# KEYS: stream, fence. ARGV: batch, number of the piece in its partition, rows. A piece that the
# fence has is dropped.
_APPEND = """
local last = redis.call('HGET', KEYS[2], ARGV[1]) or ''
if last >= ARGV[2] then return 0 end
for i = 3, #ARGV do redis.call('XADD', KEYS[1], '*', 'row', ARGV[i]) end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
"""


class SparkFrame(RedisSource):
    """Spout that emits the rows that `send_frame` puts into a Redis stream, each exactly once.

    `fields` are columns of the frame, as names or types by name. Entries are deleted when all
    tuples up to theirs are done. One that is no such row goes to the stream `bad` (id, text,
    reason).
    """

    def __init__(
        self,
        url: str,
        stream: str,
        fields: Sequence[str] | Mapping[str, str],
        *,
        follow: bool = True,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        super().__init__(
            url,
            stream,
            [_ROW],
            follow=follow,
            lost="skip",
            password_file=password_file,
            password_env=password_env,
        )
        types = dict(fields) if isinstance(fields, Mapping) else dict.fromkeys(fields, "any")
        self._types = types
        self.outputs = {"default": types, "bad": ["id", "text", "reason"]}

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Take the stream."""
        super().open(conf, context, collector)
        self._parse = json_parser(self._types, lambda data: from_json(data.decode()))
        self._unfinished: dict[str, None] = {}  # ids that were emitted, oldest first
        self._is_done = False  # some since the last deletion

    def next_tuple(self) -> None:
        """Emit some rows, and delete the entries of those that are done."""
        super().next_tuple()
        if self._is_done and self._client is not None and not self._patience.is_resting:
            [(stream, last)] = self._last.items()
            time_ms, _, number = last.partition("-")
            try:
                first = next(iter(self._unfinished), f"{time_ms}-{int(number) + 1}")
                self._client.xtrim(stream, minid=first, approximate=False)
                self._is_done = False
            except redis.RedisError as error:
                self._patience.bear(error)

    def ack(self, message_id: Any) -> None:
        """Note that a tuple is done."""
        self._unfinished.pop(message_id, None)
        self._is_done = True

    fail = ack  # it was parked: done as well

    def _timed(self, stream: str, entries: Entries) -> Iterator[TimedEntry]:
        """Yield entries with their rows as bytes: what is no UTF-8 is no row."""
        for id_bytes, cells in entries:
            entry = dict(zip(cells[::2], cells[1::2], strict=True))
            id = id_bytes.decode()
            yield 0, (stream, (entry.get(_ROW.encode(), b""), id, 0), "")

    def _emit_all(self, ready: Iterable[ReadEntry]) -> None:
        """Emit rows; what is none goes to the stream `bad`."""
        for _, (row, id, _), _ in ready:
            self._unfinished[id] = None
            try:
                self._collector.emit(self._parse(row), id)
            except (ValueError, RecursionError, CodecError) as error:
                self._collector.report_error(f"{self._where}, entry {id}: {error}")
                text = row[:2000].decode("utf-8", "replace")
                self._collector.emit((id, text, str(error)[:300]), id, stream="bad")


@dataclass(frozen=True)
class _Target:
    """Target of the executors and the fence they write under."""

    url: str
    secret: Secret
    stream: str
    query: str
    most: int
    schema: StructType

    def write(self, batch: int, partition: int, rows: Iterable[Any]) -> None:
        """Append a partition's rows piece by piece; a repeated one drops the pieces that are
        there.
        """
        client = connect(self.url, self.secret)
        try:
            append = client.register_script(_APPEND)
            fence = f"{{{self.stream}}}:sparkstorm:frame:{self.query}"
            for number, piece in enumerate(_pieces(map(struct_cast(self.schema), rows)), 1):
                while client.xlen(self.stream) > self.most:
                    time.sleep(0.05)
                append(
                    keys=[self.stream, fence],
                    args=[f"{batch}/{partition}", f"{number:012d}", *piece],
                )
        finally:
            client.close()

    def forget(self, batch: int) -> None:
        """Delete the fence of batches that Spark will not repeat: older ones, and newer ones of a
        checkpoint that was given up.
        """
        client = connect(self.url, self.secret)
        try:
            fence = f"{{{self.stream}}}:sparkstorm:frame:{self.query}"
            old = [
                field
                for field in client.hkeys(fence)
                if int(field.partition(b"/")[0]) not in (batch - 1, batch)
            ]
            if old:
                client.hdel(fence, *old)
        finally:
            client.close()


def send_frame(
    frame: DataFrame,
    url: str,
    stream: str,
    *,
    name: str,
    checkpoint: str | None = None,
    most_waiting: int = 100_000,
    password_file: str | None = None,
    password_env: str | None = None,
) -> StreamingQuery | None:
    """Send a frame's rows to a `SparkFrame`: a streaming one by a query, which is returned; a batch
    one at once, returning None.

    Rows are fenced by (`name`, batch, partition), so a repeated micro-batch, or a batch frame sent
    again under its name, is dropped; it must have the same rows in the same partitions, as every
    repeatable source gives without a shuffle in between. `checkpoint` is Spark's folder for the
    query. Sending pauses while `most_waiting` rows wait.
    """
    secret = Secret("send_frame", password_file, password_env)
    for name_of, kind in (
        (column.name, column.dataType.simpleString()) for column in frame.schema.fields
    ):
        if any(sign in kind for sign in _NO_VALUES):
            raise InvalidConfigError(
                f"send_frame: column '{name_of}' is {kind}, which no tuple carries; cast it to timestamp or string"
            )
    target = _Target(
        without_password(url, "send_frame"), secret, stream, name, most_waiting, frame.schema
    )
    if not frame.isStreaming:
        frame.rdd.mapPartitionsWithIndex(_writing(target, 0)).count()
        return None
    if checkpoint is None:
        raise InvalidConfigError(
            "send_frame: a streaming frame needs a checkpoint, Spark's folder for the query's progress"
        )

    def write_batch(batch: DataFrame, number: int) -> None:
        target.forget(number)
        batch.rdd.mapPartitionsWithIndex(_writing(target, number)).count()

    return (
        frame.writeStream.queryName(name)
        .option("checkpointLocation", checkpoint)
        .foreachBatch(write_batch)
        .start()
    )


def _writing(target: _Target, batch: int) -> Callable[[int, Iterable[Any]], Iterator[int]]:
    def write(partition: int, rows: Iterable[Any]) -> Iterator[int]:
        target.write(batch, partition, rows)
        yield 1

    return write


def _pieces(rows: Iterable[Any]) -> Iterator[list[str]]:
    piece: list[str] = []
    for row in rows:
        piece.append(to_json(row))
        if len(piece) == _ROWS_PER_SCRIPT:
            yield piece
            piece = []
    if piece:
        yield piece
