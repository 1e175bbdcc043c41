"""SqlSink: a table of any database that SQLAlchemy supports, each row exactly once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from itertools import groupby, islice
from typing import Any
from weakref import WeakSet

from sparkstorm.api.components import Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.sinks import RefusedRows, TransactionalSink, find_refused
from sparkstorm.common.errors import InvalidConfigError, StoreUnavailableError
from sparkstorm.common.model.names import read_names
from sparkstorm.common.model.strict import near_name
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.connectors.patience import (
    Secret,
    database_url,
    is_of_values,
    make_engine,
    plain_name,
    require_lasting_sql,
    sql_reason,
)

EPOCHS = "sparkstorm_epochs"
_ROWS_PER_INSERT = 10_000
# after which PostgreSQL ends a transaction whose worker was stopped in the middle of it
_IDLE_SECS = 30
_MODES = ("insert", "upsert", "merge")
_ON_TOMBSTONE = ("delete", "write")
# those for which SQLAlchemy has an INSERT that updates; by their name in its dialects
_UPSERTS = {
    "postgresql": "postgresql",
    "cockroachdb": "postgresql",
    "sqlite": "sqlite",
    "mysql": "mysql",
    "mariadb": "mysql",
}


_PLACE = re.compile(r"%\(([^)]+)\)s")  # of a value in a statement, by its column's name
_OF_PROCESS: WeakSet[SqlSink] = WeakSet()  # sinks that tasks have opened


class SqlSink(TransactionalSink):
    """Sink that writes rows into a table, exactly once: the epoch's number is written into
    `sparkstorm_epochs` in the same transaction.

    The tuples' fields are the columns, unless `fields` names some. A row that the database refuses
    is parked. Text into a column of JSON or of arrays is parsed by the database; None is NULL. The
    user needs the right to create `sparkstorm_epochs`, or it is there: `CREATE TABLE
    sparkstorm_epochs (sink VARCHAR(250) PRIMARY KEY, epoch BIGINT NOT NULL)`.

    With `key`, columns that are the table's primary key or a unique key, a row takes the place of
    the one with the same key (PostgreSQL, SQLite, MySQL and MariaDB): mode "upsert" sets all of the
    sink's columns, "merge" those that are not None. A tombstone, a row with a key and None in every
    other field, deletes the row; `on_tombstone="write"` writes the Nones.
    """

    def __init__(
        self,
        url: str,
        table: str,
        fields: Sequence[str] | None = None,
        *,
        key: str | Sequence[str] = (),
        mode: str | None = None,
        on_tombstone: str = "delete",
        schema: str | None = None,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        self._key = list(read_names("SqlSink", "key", key))
        self._mode = mode or ("upsert" if self._key else "insert")
        if self._mode not in _MODES or on_tombstone not in _ON_TOMBSTONE:
            raise InvalidConfigError(
                f"SqlSink: mode is one of {', '.join(_MODES)}, and on_tombstone one of "
                f"{', '.join(_ON_TOMBSTONE)}; not {mode!r:.40} and {on_tombstone!r:.40}"
            )
        if (self._mode == "insert") == bool(self._key):
            raise InvalidConfigError(
                "SqlSink: modes upsert and merge need a key, a column or a list of them; mode insert takes none"
            )
        if on_tombstone == "write" and not self._key:
            raise InvalidConfigError(
                "SqlSink: on_tombstone is for rows of a key, which is not given; name it, or drop on_tombstone"
            )
        if len(set(self._key)) < len(self._key):
            raise InvalidConfigError("SqlSink: key names a column twice")
        if isinstance(fields, str):
            raise InvalidConfigError(
                f"SqlSink: fields is the text {fields!r:.40}; write a list of names"
            )
        if fields is not None and (absent := [name for name in self._key if name not in fields]):
            raise InvalidConfigError(
                f"SqlSink: its key '{absent[0]}' is none of its fields{near_name(absent[0], list(fields))}"
            )
        self._deletes = bool(self._key) and on_tombstone == "delete"
        self._url = database_url(url, "SqlSink")
        self._secret = Secret("SqlSink", password_file, password_env)
        self._name = plain_name(table, "SqlSink")
        self._schema = schema
        self._fields = None if fields is None else list(fields)
        self._first: set[str] = set()  # fields of the first row, where they are the columns
        self.input_fields = tuple(self._fields or self._key)

    def open(self, conf: Conf, context: TopologyContext) -> None:
        """Connect to nothing yet."""
        self._open_as(f"{context.topology_id}/{context.component_id}/{context.task_index}")
        _OF_PROCESS.add(self)

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
        if not self._fields:
            self._fields = list(tup.fields)
            self._first = set(tup.fields)
        elif self._first and self._first != set(tup.fields):
            raise ValueError(
                f"a row of {', '.join(tup.fields)} in a table that gets {', '.join(self._fields)}: name the columns by fields=[...]"
            )
        for name in self._fields:
            if isinstance(value := tup[name], list | dict | set | frozenset):
                raise ValueError(
                    f"field '{name}' is a {type(value).__name__}, which no column holds; write it as text"
                )
            # NaN is NULL in SQLite, which makes a row of its own of each
            if name in self._key and (value is None or value != value):
                raise ValueError(f"field '{name}' is {value}, and is a key of table {self._name}")
        self._tuples.append(tup)

    def prepare(self, epoch: int) -> Any:
        """Insert the rows in a transaction that stays open, unless it would keep another sink of
        this process waiting; return them as outbox.
        """
        fields = self._fields or []
        with self._speaking():
            self._check_columns(self._table(), fields)
            rows = [{name: tup[name] for name in fields} for tup in self._tuples]
            self._begin()
            try:
                if rows:
                    self._write(self._open, rows)
            except Exception as error:
                self._begin()
                self._require_values(error, fields)
                refused = self._find_refused(rows)
                bad = [(self._tuples[n], reason) for n, reason in refused.items()]
                self._tuples = [tup for n, tup in enumerate(self._tuples) if n not in refused]
                raise RefusedRows(bad) from error
            if self._shares_its_file():
                # `commit` writes the rows anew
                self._open.close()
                self._open = None
        return [fields, [list(row.values()) for row in rows]]

    def commit(self, epoch: int, prepared: Any) -> None:
        """Commit the open transaction with the epoch's number, or write the outbox anew if the
        database has not the epoch.
        """
        with self._speaking():
            fields, rows = prepared
            connection = self._open
            self._open = None
            is_anew = connection is None
            connection = connection or self._connect()
            try:
                is_first = self._note_epoch(connection, epoch)
                if is_first and is_anew and rows:
                    self._write(connection, [dict(zip(fields, row, strict=True)) for row in rows])
                (connection.commit if is_first else connection.rollback)()
            finally:
                connection.close()

    def recover(self, epoch: int, prepared: Any) -> None:
        """Make the table of epochs and this sink's row in it; then write the last epoch if the
        database has not it.
        """
        import sqlalchemy as sa
        from sqlalchemy import exc

        with self._speaking(), self._connect() as connection:
            columns = (
                sa.Column("sink", sa.String(250), primary_key=True),
                sa.Column("epoch", sa.BigInteger, nullable=False),
            )
            epochs = sa.Table(EPOCHS, sa.MetaData(), *columns, schema=self._schema)
            try:
                epochs.create(connection, checkfirst=True)
                connection.commit()
            except (exc.IntegrityError, exc.ProgrammingError, exc.OperationalError):
                connection.rollback()
                if not sa.inspect(connection).has_table(EPOCHS, schema=self._schema):
                    # else another task was faster, or it is there and this user may not create one
                    raise
            if (
                connection.execute(
                    sa.select(epochs.c.epoch).where(epochs.c.sink == self._sink)
                ).first()
                is None
            ):
                connection.execute(sa.insert(epochs).values(sink=self._sink, epoch=0))
            connection.commit()
            self._table()
        super().recover(epoch, prepared)

    def last_epoch(self) -> int | None:
        """Read this sink's row in the table of epochs."""
        import sqlalchemy as sa

        epochs = self._epochs()
        with self._speaking(), self._connect() as connection:
            if not sa.inspect(connection).has_table(EPOCHS, schema=self._schema):
                return 0
            epoch = connection.execute(
                sa.select(epochs.c.epoch).where(epochs.c.sink == self._sink)
            ).scalar()
        return int(epoch or 0)

    def cleanup(self) -> None:
        """Close the connections."""
        _OF_PROCESS.discard(self)
        if self._open is not None:
            self._open.close()
            self._open = None
        if self._engine is not None:
            self._engine.dispose()

    def insert_once(self, name: str, fields: Sequence[str], rows: Iterable[Sequence[Any]]) -> bool:
        """Insert rows outside of a topology in one transaction, unless done under this name; return
        whether now.

        InvalidConfigError when the table does not take them; a database that does not answer is
        StoreUnavailableError.
        """
        from sqlalchemy import exc

        self._open_as(name)
        try:
            self.recover(0, None)
            with self._speaking(), self._connect() as connection:
                if not self._note_epoch(connection, 1):
                    return False
                waiting = iter(rows)
                while some := [
                    dict(zip(fields, row, strict=True)) for row in islice(waiting, _ROWS_PER_INSERT)
                ]:
                    self._write(connection, some)
                connection.commit()
                return True
        except (exc.OperationalError, exc.InterfaceError) as error:
            raise StoreUnavailableError(f"{self._where}: {sql_reason(error)}") from error
        except (exc.SQLAlchemyError, OverflowError) as error:
            raise InvalidConfigError(
                f"{self._where} does not take the rows: {sql_reason(error)}"
            ) from error
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
            require_lasting_sql(error, self._where)
            raise

    def _connect(self) -> Any:
        import sqlalchemy as sa

        if self._engine is None:
            self._engine = make_engine(self._url, self._secret)
        connection = self._engine.connect()
        if self._engine.dialect.name == "postgresql":
            connection.execute(
                sa.text(f"SET idle_in_transaction_session_timeout = '{_IDLE_SECS}s'")
            )
            connection.commit()
        return connection

    def _epochs(self) -> Any:
        import sqlalchemy as sa

        return sa.table(EPOCHS, sa.column("sink"), sa.column("epoch"), schema=self._schema)

    def _note_epoch(self, connection: Any, epoch: int) -> bool:
        """Write the epoch's number; False when the database has it, or a later one."""
        import sqlalchemy as sa

        epochs = self._epochs()
        earlier = sa.and_(epochs.c.sink == self._sink, epochs.c.epoch < epoch)
        changed = connection.execute(sa.update(epochs).where(earlier).values(epoch=epoch))
        return bool(changed.rowcount == 1)

    def _table(self) -> Any:
        import sqlalchemy as sa

        if getattr(self, "_reflected", None) is None:
            with self._connect() as connection:
                self._reflected: Any = sa.Table(
                    self._name, sa.MetaData(), schema=self._schema, autoload_with=connection
                )
                self._check_columns(self._reflected, self._fields or [])
                for column in self._reflected.columns:
                    if isinstance(column.type, sa.JSON | sa.ARRAY):
                        column.type = _json_text(column.type, connection.dialect.name)
                if self._key:
                    self._check_key(connection.dialect.name)
        return self._reflected

    def _check_columns(self, table: Any, fields: Sequence[str]) -> None:
        columns = table.c.keys()
        for name in fields:
            if name not in columns:
                hint = near_name(name, columns) or "; add it, or name the columns by fields=[...]"
                raise InvalidConfigError(
                    f"{self._where} has no column '{name}'; it has {', '.join(columns)}{hint}"
                )

    def _check_key(self, dialect: str) -> None:
        """Raise InvalidConfigError where the database would not find rows by the key."""
        table = self._reflected
        if dialect not in _UPSERTS:
            raise InvalidConfigError(
                f"{self._where}: mode {self._mode} is there for {', '.join(_UPSERTS)}, not for {dialect}; "
                "insert into a table whose trigger merges the rows"
            )
        keys = {frozenset(_unique_columns(one)) for one in (*table.constraints, *table.indexes)}
        keys -= {frozenset()}
        if frozenset(self._key) not in keys:
            has = "; ".join(sorted(", ".join(sorted(one)) for one in keys)) or "none"
            raise InvalidConfigError(
                f"{self._where} has no primary or unique key of {', '.join(self._key)}; it has {has}"
            )
        if _UPSERTS[dialect] == "mysql" and len(keys) > 1:
            raise InvalidConfigError(
                f"{self._where} has several unique keys, and {dialect} would update a row that is equal in any of them"
            )

    def _shares_its_file(self) -> bool:
        """Return whether another sink of this process writes into the same file of SQLite.

        A transaction holds the whole file. The other sink would wait for it in its `prepare`, and
        this one for the worker's commit, which comes behind that.
        """
        return self._engine.dialect.name == "sqlite" and any(
            sink is not self and sink._url == self._url for sink in _OF_PROCESS
        )

    def _begin(self) -> None:
        """Open a fresh transaction for the epoch's rows."""
        if self._open is not None:
            self._open.close()
        self._open = self._connect()
        if self._engine.dialect.name == "sqlite":
            # its driver begins with the first INSERT, and a savepoint before that is none
            self._open.exec_driver_sql("BEGIN")

    def _require_values(self, error: Exception, fields: Sequence[str]) -> None:
        """Raise an error that no row has caused: the table does not take an INSERT of none either,
        or the server is away.
        """
        import sqlalchemy as sa
        from sqlalchemy import exc

        if not is_of_values(error):
            raise error
        if isinstance(error, exc.DBAPIError):
            columns = [self._table().c[name] for name in fields]
            nothing = sa.select(*[sa.null()] * len(columns)).where(sa.false())
            try:
                self._open.execute(self._insert(fields).from_select(columns, nothing))
            except exc.DBAPIError:
                raise error from None

    def _find_refused(self, rows: list[dict[str, Any]]) -> dict[int, str]:
        """Find the rows without which the others go in."""
        taken: list[dict[str, Any]] = []

        def take(some: Sequence[dict[str, Any]]) -> str:
            point = self._open.begin_nested()
            try:
                self._write(self._open, list(some))
                point.commit()
            except Exception as error:
                if not is_of_values(error):
                    raise
                self._undo(point, taken)
                column = _refused_column(error)
                place = f"table {self._name}{', column ' if column else ''}{column}"
                return f"{place}: {sql_reason(error) or type(error).__name__}"
            taken.extend(some)
            return ""

        found = find_refused(rows, take)
        refused = dict(found)
        for index in sorted(found, reverse=True):
            if not take([rows[index]]):  # it needed a row that follows it, as by a foreign key
                del refused[index]
        if len(refused) < len(found):
            self._begin()
            taken.clear()
            if take([row for index, row in enumerate(rows) if index not in refused]):
                return found  # the key is not deferred: in their order the rows do not go in
        return refused

    def _undo(self, point: Any, taken: list[dict[str, Any]]) -> None:
        """Go back to a savepoint; a trigger may have ended the whole transaction."""
        from sqlalchemy import exc

        try:
            point.rollback()
        except exc.DBAPIError:
            self._begin()
            if taken:
                self._write(self._open, taken)

    def _write(self, connection: Any, rows: list[dict[str, Any]]) -> None:
        """Write rows in their order; a column without zones takes times in UTC, independently of
        the driver's own conversion.
        """
        import sqlalchemy as sa

        table = self._table()
        bare = [
            c.name
            for c in table.c
            if isinstance(c.type, sa.DateTime) and not c.type.timezone and c.name in rows[0]
        ]
        if bare:
            rows = [
                {
                    **row,
                    **{
                        n: v.astimezone(UTC).replace(tzinfo=None)
                        for n in bare
                        if _has_zone(v := row[n])
                    },
                }
                for row in rows
            ]
        insert = self._insert(list(rows[0]))
        # a row of the same key twice in one INSERT is an error of PostgreSQL, and such a driver
        # makes one INSERT of many rows
        is_single = bool(self._key) and connection.dialect.use_insertmanyvalues_wo_returning
        for is_gone, some in groupby(rows, self._is_tombstone):
            if is_gone:
                keys = [[row[name] for name in self._key] for row in some]
                connection.execute(
                    self._delete(), [{f"k{n}": v for n, v in enumerate(key)} for key in keys]
                )
            elif is_single:
                for row in some:
                    connection.execute(insert, row)
            else:
                connection.execute(insert, list(some))
        if connection.dialect.name == "postgresql":
            # deferred constraints would fail behind the commit of the worker
            connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")

    def _is_tombstone(self, row: Mapping[str, Any]) -> bool:
        if not self._deletes or len(row) == len(self._key):
            return False
        return all(value is None or name in self._key for name, value in row.items())

    def _insert(self, fields: Sequence[str]) -> Any:
        """Return the INSERT of a row, which updates the row of the same key in other modes."""
        import sqlalchemy as sa

        table = self._table()
        if not self._key:
            return sa.insert(table)
        dialect = _UPSERTS[self._engine.dialect.name]
        insert = import_module(f"sqlalchemy.dialects.{dialect}").insert(table)
        new = insert.inserted if dialect == "mysql" else insert.excluded
        rest = [name for name in fields if name not in self._key]
        values = {name: new[name] for name in rest}
        if self._mode == "merge":
            values = {name: sa.func.coalesce(new[name], table.c[name]) for name in rest}
        if dialect == "mysql":
            return insert.on_duplicate_key_update(values or {n: new[n] for n in self._key})
        if not rest:
            return insert.on_conflict_do_nothing(index_elements=self._key)
        return insert.on_conflict_do_update(index_elements=self._key, set_=values)

    def _delete(self) -> Any:
        import sqlalchemy as sa

        columns = [self._table().c[name] for name in self._key]
        return sa.delete(self._table()).where(
            *[c == sa.bindparam(f"k{n}", type_=c.type) for n, c in enumerate(columns)]
        )


def _refused_column(error: Any) -> str:
    """Return the column whose value is refused; empty where the driver does not tell it.

    PostgreSQL names a column that may not be null, and of a text that it cannot read the number of
    the parameter.
    """
    told = getattr(getattr(error, "orig", None), "diag", None)
    number = re.match(r"unnamed portal parameter \$(\d+)", getattr(told, "context", None) or "")
    if number is None:
        return getattr(told, "column_name", None) or ""
    names = list(dict.fromkeys(_PLACE.findall(error.statement or "")))
    return names[int(number[1]) - 1] if int(number[1]) <= len(names) else ""


def _unique_columns(one: Any) -> Sequence[str]:
    """Return the columns of a primary key, or of a unique constraint or index; none of others, and
    of an index of some rows.
    """
    import sqlalchemy as sa

    is_unique = isinstance(one, sa.PrimaryKeyConstraint | sa.UniqueConstraint)
    if not is_unique and (not getattr(one, "unique", False) or _is_partial(one)):
        return []
    return [c.name for c in one.columns]


def _is_partial(index: Any) -> bool:
    return any(
        name.endswith("_where") and index.dialect_kwargs[name] is not None
        for name in index.dialect_kwargs
    )


def _json_text(kind: Any, dialect: str) -> Any:
    """Return the type of a column of JSON or of arrays that is given text, which the database
    parses; SQLAlchemy's would make a JSON string of it, and null of None, or an array of letters.
    """
    import sqlalchemy as sa

    class JsonText(sa.TypeDecorator[Any]):
        impl = sa.Text
        cache_ok = True

        def bind_expression(self, value: Any) -> Any:
            return sa.cast(value, kind) if dialect == "postgresql" else value

    return JsonText()


def _has_zone(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None
