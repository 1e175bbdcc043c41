"""SqlSource: rows of any database that SQLAlchemy supports, in the order of a growing column."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.columns import arrow_type
from sparkstorm.api.components import Conf, ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import (
    CodecError,
    InvalidConfigError,
    InvalidTopologyError,
    SparkStormError,
)
from sparkstorm.common.model.values.column_types import parse_columns
from sparkstorm.connectors.patience import (
    Patience,
    Secret,
    check_number,
    database_url,
    make_engine,
    require_lasting_sql,
)
from sparkstorm.connectors.polling import Looks, Poll

_ROWS_PER_CALL = 128
_KEYS_LOOK_MS = 10_000  # between two looks at the largest key while no row comes
# their values are those of rows
_EXACT = {"bigint": int, "double": float, "boolean": bool, "string": str, "binary": bytes}
_PARAMETER = re.compile(r"(?<![:\w\\]):(?=\w)")  # as SQLAlchemy finds it: within a text too


class SqlSource(ReplayableSpout):
    """Spout that emits the rows of a table or query in the order of a growing column, each exactly
    once.

    `key` is a column that grows and is unique; the position is its last value. A whole number that
    is missing is waited for `gap_secs`, then taken for one that was rolled back. `fields` are the
    columns to emit, as names or types by name. A row that no tuple can carry (a time without a
    zone, a date behind the year 9999) goes to the stream `bad` (key, text, reason). A column bolt
    gets batches, each one message, if the fields are declared as bigint, double, boolean, string or
    binary. Changes and deletions of rows that were read are not seen.
    """

    blocking = True

    def __init__(
        self,
        url: str,
        table: str | None = None,
        fields: Sequence[str] | Mapping[str, str] = (),
        *,
        key: str,
        query: str | None = None,
        follow: bool = True,
        poll_secs: float = 0.5,
        gap_secs: float = 2.0,
        rows: int = 20_000,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        if (table is None) == (query is None):
            raise InvalidConfigError("SqlSource: give a table or a query, one of them")
        if not fields:
            raise InvalidConfigError("SqlSource: fields names the columns to emit")
        self._poll = Poll.of("SqlSource", follow, poll_secs)
        check_number("SqlSource", "gap_secs", gap_secs)
        check_number("SqlSource", "rows", rows, 1, is_whole=True)
        self._url = database_url(url, "SqlSource")
        self._secret = Secret("SqlSource", password_file, password_env)
        self._table = table
        self._query = query
        self._key = key
        self._gap_ms = round(gap_secs * 1000)
        self._most = rows
        self._kinds: dict[str, str] = (
            dict(fields) if isinstance(fields, Mapping) else dict.fromkeys(fields, "any")
        )
        self.outputs = {
            "default": dict(fields) if isinstance(fields, Mapping) else list(fields),
            "bad": ["key", "text", "reason"],
        }

    def open(self, conf: Conf, context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Connect to nothing yet."""
        if len(context.peers) > 1:
            raise InvalidTopologyError(
                f"component '{context.component_id}': rows are read in one order; give SqlSource parallelism 1"
            )
        self._collector = collector
        self._where = (
            f"component '{context.component_id}', {self._table or 'the query'} at {self._url}"
        )
        self._patience = Patience(self._where, context.now_ms, collector.report_error)
        self._engine: Any = None
        self._last: Any = None  # key of the last row emitted
        self._page = _Page([])
        self._gap = _Gap(self._gap_ms, context.now_ms)
        self._looks = Looks(self._poll, context.now_ms)
        self._below = _BelowPosition(context.now_ms)
        takes_batches = "default" in context.column_streams and set(self._kinds.values()) <= set(
            _EXACT
        )
        self._columns = _columns_of(self._kinds) if takes_batches else None

    def next_tuple(self) -> None:
        """Emit some rows, and fetch more when there are none."""
        if self._page.is_emitted and not self._fetch():
            return
        page = self._page
        has_no_gap = page.has_no_gap
        if has_no_gap and self._columns is not None and self._emit_batch(self._columns):
            return
        emit = self._collector.emit
        for row in page.rows[page.at : page.at + _ROWS_PER_CALL]:
            key = row[0]
            if not has_no_gap and self._is_gap(key):
                return
            try:
                if type(row[1]) is _Unreadable:
                    raise CodecError(row[1].reason)
                emit(row[1:], key)
            except CodecError as error:
                self._collector.report_error(f"{self._where}, {self._key} {key}: {error}")
                text = "" if type(row[1]) is _Unreadable else repr(list(row[1:]))[:2000]
                emit((str(key), text, str(error)[:300]), key, stream="bad")
            page.at += 1
            self._last = key

    def _emit_batch(self, declared: Sequence[tuple[str, type, Any]]) -> bool:
        """Emit the rows ahead as a batch; False when some value is not of its column's type: the
        rows go one by one.
        """
        import pyarrow as pa

        arrays = []
        rows = self._page.rows[self._page.at :]
        columns = zip(*rows, strict=True)
        last = next(columns)[-1]
        try:
            for (_, exact, kind), column in zip(declared, columns, strict=True):
                if set(map(type, column)) - {exact, type(None)}:
                    return False
                arrays.append(pa.array(column, kind))
            self._collector.emit_batch(
                pa.RecordBatch.from_arrays(arrays, [name for name, _, _ in declared]), last
            )
        except (pa.ArrowInvalid, OverflowError, UnicodeError, CodecError):
            return False
        self._page.at = len(self._page.rows)
        self._last = last
        return True

    def is_exhausted(self) -> bool:
        """Return whether there was nothing behind the last row when it was last looked; never if
        new ones are looked for.
        """
        return self._looks.are_over

    def snapshot(self) -> Any:
        """Key of the last row."""
        return [self._last]

    def restore(self, position: Any) -> None:
        """Go on behind it."""
        self._last = position[0]

    def close(self) -> None:
        """Close the connections."""
        if self._engine is not None:
            self._engine.dispose()

    def _is_gap(self, key: Any) -> bool:
        """Return whether rows before this one may still be committed; then the rows ahead are
        fetched anew.
        """
        if not self._gap.is_open(self._last, key):
            return False
        self._page = _Page([])
        self._looks.put_off(min(50, self._gap_ms))
        return True

    def _fetch(self) -> bool:
        if not self._looks.is_due or self._patience.is_resting:
            return False
        from sqlalchemy import exc

        try:
            rows, is_cut = self._read_page()
            if not rows:
                self._look_at_keys()
        except exc.SQLAlchemyError as error:
            require_lasting_sql(error, self._where)
            self._patience.bear(getattr(error, "orig", None) or error)
            return False
        self._patience.succeed()
        keys = [row[0] for row in rows]
        first = (
            self._last + 1
            if type(self._last) is int
            else keys[0]
            if keys and self._last is None
            else None
        )
        is_run = type(first) is int and keys == list(range(first, first + len(keys)))
        if not is_run and (len(set(keys)) < len(keys) or None in keys):
            raise InvalidConfigError(
                f"{self._where}: '{self._key}' is not unique or null in some rows, so there is no position"
            )
        self._page = _Page(rows[: self._most], is_run and not self._gap.is_waited_for)
        self._looks.note(not rows, 0 if is_cut or len(rows) > self._most else None)
        return bool(rows)

    def _look_at_keys(self) -> None:
        """Report rows that are inserted below the position, where no read sees them: the largest
        key grows, and stays below.
        """
        import sqlalchemy as sa

        if self._last is None or not self._poll.follow or not self._below.is_due:
            return
        with self._engine.connect() as connection:
            (largest,) = connection.execute(
                sa.select(sa.func.max(sa.column(self._key))).select_from(self._source())
            ).one()
        if self._below.has_grown(largest, self._last):
            self._collector.report_error(
                f"{self._where}: rows are inserted with '{self._key}' up to {largest!r:.80}, below the position "
                f"{self._last!r:.80}, and are not read: its keys have begun anew; kill the topology and submit it again"
            )

    def _source(self) -> Any:
        import sqlalchemy as sa

        query = _PARAMETER.sub(r"\\:", (self._query or "").strip().rstrip(";"))
        return sa.table(self._table) if self._table else sa.text(f"({query}) AS source")

    def _read_page(self) -> tuple[list[Any], bool]:
        """Return rows behind the position, and whether there may be more: fewer are read where the
        driver has no value for a cell (a date behind the year 9999), one such row alone at last.
        """
        from sqlalchemy import exc

        count = self._most + 1  # the last shows whether keys are equal
        while True:
            try:
                return self._read(list(self._kinds), count), count <= self._most
            except (exc.SQLAlchemyError, SparkStormError):
                raise
            except Exception as error:
                driver = self._engine.dialect.dbapi
                is_away = isinstance(error, driver.OperationalError | driver.InterfaceError)
                if is_away and "decode" not in str(error):  # sqlite3's, of text that is no UTF-8
                    raise exc.OperationalError("", None, error) from error
                if count == 1:
                    cells = [_Unreadable(" ".join(str(error).split()))] * len(self._kinds)
                    return [(*row, *cells) for row in self._read([], 1)], True
            count //= 2

    def _read(self, fields: Sequence[str], count: int) -> list[Any]:
        import sqlalchemy as sa

        if self._engine is None:
            self._engine = make_engine(self._url, self._secret)
        columns: list[Any] = [sa.column(name) for name in (self._key, *fields)]
        chosen = sa.select(*columns).select_from(self._source()).order_by(columns[0]).limit(count)
        if self._last is not None:
            chosen = chosen.where(columns[0] > self._last)
        with self._engine.connect() as connection:
            # the columns have no types to convert
            return list(map(tuple, connection.execute(chosen).cursor.fetchall()))


@dataclass(slots=True)
class _Page:
    """Rows that were fetched; those before `at` are emitted."""

    rows: list[Any]
    has_no_gap: bool = False  # they follow the last row emitted and each other
    at: int = 0

    @property
    def is_emitted(self) -> bool:
        return self.at == len(self.rows)


class _Gap:
    """Wait for whole numbers that are missing before a key: their rows may still be committed."""

    def __init__(self, most_ms: int, now_ms: Callable[[], int]) -> None:
        self._most_ms = most_ms
        self._now_ms = now_ms
        self._since_ms: int | None = None

    @property
    def is_waited_for(self) -> bool:
        return self._since_ms is not None

    def is_open(self, last: Any, key: Any) -> bool:
        """Return whether to wait for rows between two keys."""
        is_next = type(key) is not int or type(last) is not int or key == last + 1
        if is_next or not self._most_ms:
            self._since_ms = None
            return False
        now_ms = self._now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms >= self._most_ms:
            self._since_ms = None
            return False
        return True


class _BelowPosition:
    """Looks at the largest key of the table while it is below the position."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._look_ms = 0
        self._largest: Any = None

    @property
    def is_due(self) -> bool:
        return self._now_ms() >= self._look_ms

    def has_grown(self, largest: Any, last: Any) -> bool:
        """Note the largest key; return whether it has grown since the last look and stays below the
        position.
        """
        self._look_ms = self._now_ms() + _KEYS_LOOK_MS
        before = self._largest
        self._largest = largest if largest is not None and largest < last else None
        return before is not None and self._largest is not None and largest > before


class _Unreadable(NamedTuple):
    """A cell of a row that the driver cannot read."""

    reason: str


def _columns_of(kinds: Mapping[str, str]) -> list[tuple[str, type, Any]]:
    """Return name, Python type and Arrow type of each declared column."""
    columns = parse_columns(", ".join(f"{name} {kind}" for name, kind in kinds.items()))
    return [(name, _EXACT[kind.name], arrow_type(kind)) for name, kind in columns]
