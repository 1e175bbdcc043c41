"""SqlSource and SqlSink: any database that SQLAlchemy speaks to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from sparkstorm.api.collector import SpoutOutputCollector
from sparkstorm.api.columns import arrow_type
from sparkstorm.api.components import Conf, ReplayableSpout
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.sinks import RefusedRows, TransactionalSink
from sparkstorm.connectors.patience import Patience, Secret, plain_name, without_password
from sparkstorm.errors import CodecError, InvalidConfigError, InvalidTopologyError, StoreUnavailableError
from sparkstorm.model.tuples import Tuple
from sparkstorm.model.values.column_types import parse_columns

EPOCHS = "sparkstorm_epochs"
_ROWS_PER_CALL = 128
_ROWS_PER_INSERT = 10_000
_IDLE_SECS = 30  # after which PostgreSQL ends a transaction whose worker was stopped in the middle of it
_EXACT = {"bigint": int, "double": float, "boolean": bool, "string": str, "binary": bytes}  # their values are those of rows
_DENIED = ("authentication failed", "Access denied", "does not exist", "no password supplied", "unable to open database file")


class SqlSource(ReplayableSpout):
    """Emits the rows of a table or query in the order of a growing column, each exactly once.

    `key` is a column that grows and is unique, such as an identity; the position is its last value. Transactions may commit in
    another order than they drew their numbers: a whole number that is missing is waited for `gap_secs`, then taken for one that was
    rolled back. `fields` are the columns to emit, as names or types by name. A row that no tuple can carry (a time without a zone)
    goes to the stream `bad` (key, text, reason) and is reported. A column bolt gets batches, each one message, if the fields are
    declared as bigint, double, boolean, string or binary. Changes of rows that were read, and deletions, are not seen.
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
        rows: int = 5_000,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        if (table is None) == (query is None):
            raise InvalidConfigError("SqlSource: give a table or a query, one of them")
        if not fields:
            raise InvalidConfigError("SqlSource: fields names the columns to emit")
        self._url = without_password(url, "SqlSource")
        self._secret = Secret("SqlSource", password_file, password_env)
        self._table, self._query, self._key, self._fields = table, query, key, list(fields)
        self._follow, self._poll_ms, self._gap_ms, self._most = follow, round(poll_secs * 1000), round(gap_secs * 1000), rows
        self._kinds: dict[str, str] = dict(fields) if isinstance(fields, Mapping) else {}
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
        self._collector, self._now_ms = collector, context.now_ms
        self._where = f"component '{context.component_id}', {self._table or 'the query'} at {self._url}"
        self._patience = Patience(self._where, context.now_ms, collector.report_error)
        self._engine: Any = None
        self._last: Any = None  # key of the last row emitted
        self._ahead: list[Any] = []  # rows that were fetched; those before `_at` are emitted
        self._at = 0
        self._has_no_gap = False  # the rows ahead follow the last one and each other
        self._gap_since_ms: int | None = None
        self._look_ms = 0
        self._is_at_end = False
        takes_batches = "default" in context.column_streams and set(self._kinds.values()) <= set(_EXACT)
        self._columns = _columns_of(self._kinds) if takes_batches and self._kinds else None

    def next_tuple(self) -> None:
        """Emit some rows, and fetch more when there are none."""
        if self._at == len(self._ahead) and not self._fetch():
            return
        if self._has_no_gap and self._columns is not None and self._emit_batch(self._columns):
            return
        emit, has_no_gap = self._collector.emit, self._has_no_gap
        for row in self._ahead[self._at : self._at + _ROWS_PER_CALL]:
            key = row[0]
            if not has_no_gap and self._is_gap(key):
                return
            try:
                emit(row[1:], key)
            except CodecError as error:
                self._collector.report_error(f"{self._where}, {self._key} {key}: {error}")
                emit((str(key), repr(list(row[1:]))[:2000], str(error)[:300]), key, stream="bad")
            self._at += 1
            self._last = key

    def _emit_batch(self, declared: Sequence[tuple[str, type, Any]]) -> bool:
        """Emit the rows ahead as a batch; False when some value is not of its column's type: the rows go one by one."""
        import pyarrow as pa

        arrays = []
        rows = self._ahead[self._at :]
        columns = zip(*rows, strict=True)
        last = next(columns)[-1]
        try:
            for (_, exact, kind), column in zip(declared, columns, strict=True):
                if set(map(type, column)) - {exact, type(None)}:
                    return False
                arrays.append(pa.array(column, kind))
            self._collector.emit_batch(pa.RecordBatch.from_arrays(arrays, [name for name, _, _ in declared]), last)
        except (pa.ArrowInvalid, OverflowError, UnicodeError, CodecError):
            return False
        self._at, self._last = len(self._ahead), last
        return True

    def is_exhausted(self) -> bool:
        """Return whether there was nothing behind the last row when it was last looked; never if new ones are looked for."""
        return not self._follow and self._is_at_end

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
        """Return whether rows before this one may still be committed; then the rows ahead are fetched anew."""
        is_next = type(key) is not int or type(self._last) is not int or key == self._last + 1
        if is_next or not self._gap_ms:
            self._gap_since_ms = None
            return False
        now_ms = self._now_ms()
        if self._gap_since_ms is None:
            self._gap_since_ms = now_ms
        if now_ms - self._gap_since_ms >= self._gap_ms:
            self._gap_since_ms = None
            return False
        self._ahead, self._at = [], 0
        self._look_ms = now_ms + min(50, self._gap_ms)
        return True

    def _fetch(self) -> bool:
        if self._now_ms() < self._look_ms or self._patience.is_resting or self.is_exhausted():
            return False
        from sqlalchemy import exc

        try:
            rows = self._read()
        except exc.SQLAlchemyError as error:
            _require_lasting(error, self._where)
            self._patience.bear(getattr(error, "orig", None) or error)
            return False
        self._patience.succeed()
        keys = [row[0] for row in rows]
        first = self._last + 1 if type(self._last) is int else keys[0] if keys and self._last is None else None
        is_run = type(first) is int and keys == list(range(first, first + len(keys)))
        self._has_no_gap = is_run and self._gap_since_ms is None
        if not is_run and (len(set(keys)) < len(keys) or None in keys):
            raise InvalidConfigError(f"{self._where}: '{self._key}' is not unique or null in some rows, so there is no position")
        self._ahead, self._at = rows, 0
        self._is_at_end = not rows
        self._look_ms = self._now_ms() + (0 if len(rows) == self._most else self._poll_ms)
        return bool(rows)

    def _read(self) -> list[Any]:
        import sqlalchemy as sa

        if self._engine is None:
            self._engine = make_engine(self._url, self._secret)
        source = sa.table(self._table) if self._table else sa.text(f"({self._query}) AS source")
        columns: list[Any] = [sa.column(name) for name in (self._key, *self._fields)]
        chosen = sa.select(*columns).select_from(source).order_by(columns[0]).limit(self._most)
        if self._last is not None:
            chosen = chosen.where(columns[0] > self._last)
        with self._engine.connect() as connection:
            return list(map(tuple, connection.execute(chosen).cursor.fetchall()))  # the columns have no types to convert


def _columns_of(kinds: Mapping[str, str]) -> list[tuple[str, type, Any]]:
    """Return name, Python type and Arrow type of each declared column."""
    columns = parse_columns(", ".join(f"{name} {kind}" for name, kind in kinds.items()))
    return [(name, _EXACT[kind.name], arrow_type(kind)) for name, kind in columns]


class SqlSink(TransactionalSink):
    """Inserts rows into a table, exactly once: the epoch's number is written into `sparkstorm_epochs` in the same transaction.

    The tuples' fields are the columns, unless `fields` names some of them. The rows of an epoch are inserted, then the worker
    commits (with the rows as an outbox), then the transaction commits; after a crash the outbox is written if the database has not
    the epoch. A row that breaks a constraint is parked. The user needs the right to create `sparkstorm_epochs`, or it is there:
    `CREATE TABLE sparkstorm_epochs (sink VARCHAR(250) PRIMARY KEY, epoch BIGINT NOT NULL)`.
    """

    def __init__(
        self,
        url: str,
        table: str,
        fields: Sequence[str] | None = None,
        *,
        schema: str | None = None,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        self._url = without_password(url, "SqlSink")
        self._secret = Secret("SqlSink", password_file, password_env)
        self._name, self._schema, self._fields = plain_name(table, "SqlSink"), schema, None if fields is None else list(fields)

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Connect to nothing yet."""
        self._open_as(f"{context.topology_id}/{context.component_id}/{context.task_index}")

    def _open_as(self, name: str) -> None:
        self._sink = name
        self._where = f"table {self._name} at {self._url}"
        self._engine: Any = None
        self._open: Any = None  # connection whose transaction holds the rows of the epoch at hand
        self._tuples: list[Tuple] = []

    def begin(self, epoch: int) -> None:
        """Begin without rows."""
        self._tuples = []

    def write(self, tup: Tuple) -> None:
        """Keep a row."""
        self._fields = self._fields or list(tup.fields)
        for name in self._fields:
            if isinstance(value := tup[name], list | dict):
                raise ValueError(f"field '{name}' is a {type(value).__name__}, which no column holds; write it as text")
        self._tuples.append(tup)

    def prepare(self, epoch: int) -> Any:
        """Insert the rows in a transaction that stays open; return them as outbox."""
        fields = self._fields or []
        with self._speaking():
            table = self._table()
            if stray := [name for name in fields if name not in table.c]:
                raise InvalidConfigError(f"{self._where} has no column '{stray[0]}'; it has {', '.join(table.c.keys())}")
            rows = [{name: tup[name] for name in fields} for tup in self._tuples]
            if not self._insert(rows):
                refused = self._find_refused(rows)
                kept = [n for n in range(len(rows)) if n not in refused]
                bad = [(self._tuples[n], reason) for n, reason in refused.items()]
                self._tuples = [self._tuples[n] for n in kept]
                raise RefusedRows(bad)
        return [fields, [list(row.values()) for row in rows]]

    def commit(self, epoch: int, prepared: Any) -> None:
        """Commit the open transaction with the epoch's number, or write the outbox anew if the database has not the epoch."""
        import sqlalchemy as sa

        with self._speaking():
            fields, rows = prepared
            connection, self._open = self._open, None
            is_anew = connection is None
            connection = connection or self._connect()
            epochs = sa.table(EPOCHS, sa.column("sink"), sa.column("epoch"), schema=self._schema)
            mine = sa.and_(epochs.c.sink == self._sink, epochs.c.epoch < epoch)
            try:
                is_first = connection.execute(sa.update(epochs).where(mine).values(epoch=epoch)).rowcount == 1
                if is_first and is_anew and rows:
                    connection.execute(sa.insert(self._table()), [dict(zip(fields, row, strict=True)) for row in rows])
                (connection.commit if is_first else connection.rollback)()
            finally:
                connection.close()

    def recover(self, epoch: int, prepared: Any) -> None:
        """Make the table of epochs and this sink's row in it; then write the last epoch if the database has not it."""
        import sqlalchemy as sa
        from sqlalchemy import exc

        with self._speaking(), self._connect() as connection:
            columns = sa.Column("sink", sa.String(250), primary_key=True), sa.Column("epoch", sa.BigInteger, nullable=False)
            epochs = sa.Table(EPOCHS, sa.MetaData(), *columns, schema=self._schema)
            try:
                epochs.create(connection, checkfirst=True)
                connection.commit()
            except (exc.IntegrityError, exc.ProgrammingError, exc.OperationalError):
                connection.rollback()
                if not sa.inspect(connection).has_table(EPOCHS, schema=self._schema):
                    raise  # else another task was faster, or it is there and this user may not create one
            if connection.execute(sa.select(epochs.c.epoch).where(epochs.c.sink == self._sink)).first() is None:
                connection.execute(sa.insert(epochs).values(sink=self._sink, epoch=0))
            connection.commit()
            self._table()
        super().recover(epoch, prepared)

    def cleanup(self) -> None:
        """Close the connections."""
        if self._open is not None:
            self._open.close()
            self._open = None
        if self._engine is not None:
            self._engine.dispose()

    def insert_once(self, name: str, fields: Sequence[str], rows: Iterable[Sequence[Any]]) -> bool:
        """Insert rows outside of a topology, all in one transaction, unless that was done under this name; return whether now.

        InvalidConfigError when the table does not take them; a database that does not answer is StoreUnavailableError.
        """
        import sqlalchemy as sa
        from sqlalchemy import exc

        self._open_as(name)
        try:
            self.recover(0, None)
            with self._speaking(), self._connect() as connection:
                epochs = sa.table(EPOCHS, sa.column("sink"), sa.column("epoch"), schema=self._schema)
                mine = sa.and_(epochs.c.sink == name, epochs.c.epoch < 1)
                if connection.execute(sa.update(epochs).where(mine).values(epoch=1)).rowcount != 1:
                    return False
                waiting = iter(rows)
                while some := [dict(zip(fields, row, strict=True)) for row in islice(waiting, _ROWS_PER_INSERT)]:
                    connection.execute(sa.insert(self._table()), some)
                connection.commit()
                return True
        except (exc.OperationalError, exc.InterfaceError) as error:
            raise StoreUnavailableError(f"{self._where}: {_reason(error)}") from error
        except exc.SQLAlchemyError as error:
            raise InvalidConfigError(f"{self._where} does not take the rows: {_reason(error)}") from error
        finally:
            self.cleanup()

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Name mistakes that last; what a lost connection causes is tried again by the worker."""
        from sqlalchemy import exc

        try:
            yield
        except exc.SQLAlchemyError as error:
            if self._open is not None:
                self._open.invalidate()
                self._open.close()
                self._open = None
            _require_lasting(error, self._where)
            raise

    def _connect(self) -> Any:
        import sqlalchemy as sa

        if self._engine is None:
            self._engine = make_engine(self._url, self._secret)
        connection = self._engine.connect()
        if self._engine.dialect.name == "postgresql":
            connection.execute(sa.text(f"SET idle_in_transaction_session_timeout = '{_IDLE_SECS}s'"))
            connection.commit()
        return connection

    def _table(self) -> Any:
        import sqlalchemy as sa

        if getattr(self, "_reflected", None) is None:
            with self._connect() as connection:
                self._reflected: Any = sa.Table(self._name, sa.MetaData(), schema=self._schema, autoload_with=connection)
        return self._reflected

    def _insert(self, rows: list[dict[str, Any]]) -> bool:
        """Insert rows into a fresh transaction and keep it; False when some row breaks a constraint."""
        import sqlalchemy as sa
        from sqlalchemy import exc

        if self._open is not None:
            self._open.close()
        self._open = self._connect()
        try:
            if rows:
                self._open.execute(sa.insert(self._table()), rows)
        except (exc.IntegrityError, exc.DataError) as error:
            self._reason = " ".join(str(error.orig).split())[:300]
            self._open.close()
            self._open = None
            return False
        return True

    def _find_refused(self, rows: list[dict[str, Any]]) -> dict[int, str]:
        """Find the rows without which the others go in: the shortest beginning that fails ends in one."""
        refused: dict[int, str] = {}
        while True:
            left = [n for n in range(len(rows)) if n not in refused]
            if self._insert([rows[n] for n in left]):
                self._open.close()
                self._open = None
                return refused
            good, bad = 0, len(left)
            while bad - good > 1:
                middle = (good + bad) // 2
                good, bad = (middle, bad) if self._insert([rows[n] for n in left[:middle]]) else (good, middle)
            self._insert([rows[n] for n in left[:bad]])
            refused[left[bad - 1]] = self._reason


def make_engine(url: str, secret: Secret) -> Any:
    """Return an engine for a URL, with the password from its place."""
    try:
        import sqlalchemy as sa
    except ImportError as error:
        raise InvalidConfigError(
            "SQLAlchemy is not installed here: pip install 'sparkstorm[sql]', and the database's driver"
        ) from error
    from sqlalchemy import exc

    try:
        address = sa.make_url(url)
        password = secret.read()
        return sa.create_engine(address if password is None else address.set(password=password), pool_pre_ping=True)
    except exc.ArgumentError as error:
        raise InvalidConfigError(f"{url:.80} is no URL of a database: {error}") from error
    except ImportError as error:
        raise InvalidConfigError(f"{url:.80}: its driver is not installed here: {error}") from error


def _require_lasting(error: Any, where: str) -> None:
    """Raise InvalidConfigError for what another try will not change: credentials, a table or column that is not there."""
    from sqlalchemy import exc

    reason = _reason(error)
    if isinstance(error, exc.NoSuchTableError):
        raise InvalidConfigError(f"{where}: there is no such table") from error
    is_wrong = isinstance(error, exc.ProgrammingError) or (isinstance(error, exc.OperationalError) and "no such" in reason)
    if is_wrong or any(sign in reason for sign in _DENIED):
        raise InvalidConfigError(f"{where}: {reason}") from error


def _reason(error: Any) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())[:300]
