"""SqlLookup, HttpLookup and RedisLookup: where `sparkstorm.streams.LookupBolt` finds values."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import redis

from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import InvalidConfigError, reason_of, show
from sparkstorm.common.model.names import read_names
from sparkstorm.common.model.strict import near_name
from sparkstorm.connectors.patience import (
    Secret,
    check_flags,
    check_headers,
    check_number,
    database_url,
    is_of_values,
    make_engine,
    plain_name,
    require_lasting_sql,
    sql_reason,
    without_password,
)
from sparkstorm.connectors.redis_streams import connect

Fields = Sequence[str] | Mapping[str, str]
_MISSING_STATUS = 404
# 500 is none: a server may have it for one key for ever
_AGAIN = frozenset({408, 425, 429, 502, 503, 504})
_AS_IS = "surrogateescape"  # of bytes that are no UTF-8
_NO_JSON = (float("inf"), -float("inf"))
_MOST_BYTES = 1 << 20  # of an answer: one that is larger is no row


class SqlLookup:
    """Look-up in a table, or by a query, of any database that SQLAlchemy supports.

    `key` names the table's columns of the key; the columns looked up have the fields' names, unless
    `columns` gives other ones by field. A `query` selects the key first, then the fields: `SELECT
    name, country FROM users WHERE name IN :keys`. Of several rows of a key any one is taken.
    """

    def __init__(
        self,
        url: str,
        table: str = "",
        key: str | Sequence[str] = (),
        *,
        columns: Mapping[str, str] | None = None,
        query: str = "",
        schema: str | None = None,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        self._url = database_url(url, "SqlLookup")
        self._secret = Secret("SqlLookup", password_file, password_env)
        self._key = read_names("SqlLookup", "key", key)
        if not isinstance(columns, Mapping | None):
            raise InvalidConfigError(
                f"SqlLookup: columns is {show(columns)}; write names of columns by field"
            )
        self._columns = dict(columns or {})
        self._query = query
        self._schema = schema
        if bool(table) == bool(query) or (table and not self._key):
            raise InvalidConfigError(
                "SqlLookup: name a table and the columns of its key, or a query; not both"
            )
        if query and (self._key or columns or schema):
            raise InvalidConfigError(
                "SqlLookup: key, columns and schema are those of a table; a query has its own, so drop them"
            )
        if query and ":keys" not in query:
            raise InvalidConfigError(
                f"SqlLookup: the query {show(query)} asks for no keys: it needs WHERE ... IN :keys"
            )
        self._table = plain_name(table, "SqlLookup") if table else ""

    def open(self, fields: Fields, context: TopologyContext) -> None:
        """Connect, to find a mistake before the first key; a database that is away may be back by
        then.
        """
        from sqlalchemy import exc

        self._fields = list(fields)
        if stray := [name for name in self._columns if name not in self._fields]:
            raise InvalidConfigError(
                f"SqlLookup: columns names the field '{stray[0]}'; those looked up are "
                f"{', '.join(self._fields)}{near_name(stray[0], self._fields)}"
            )
        self._where = f"{'table ' + self._table if self._table else 'the query'} at {self._url}"
        self._engine: Any = None
        self._statement: Any = None
        no_key: Any = (None,) * len(self._key) if len(self._key) > 1 else None
        try:
            with self._connect() as connection:
                if self._table:
                    connection.execute(self._statement, {"keys": [no_key]}).close()
        except exc.SQLAlchemyError as error:
            require_lasting_sql(error, self._where)

    def fetch(self, keys: Sequence[Any]) -> Mapping[Any, Any]:
        """Return the fields of the keys that are there; a key that the database refuses has its
        error.
        """
        from sqlalchemy import exc

        try:
            return self._select(keys)
        # of the conversion of a value, before the database was asked
        except (OverflowError, TypeError) as error:
            reason = str(error)
        except exc.SQLAlchemyError as error:
            if not is_of_values(error) or self._refuses_null(keys[0]):
                require_lasting_sql(error, self._where)
                raise ConnectionError(f"{self._where}: {sql_reason(error)}") from error
            reason = sql_reason(error)
        if len(keys) == 1:
            return {keys[0]: ValueError(f"{self._where}: {reason}")}
        answers: dict[Any, Any] = {}
        for key in keys:
            answers |= self.fetch([key])
        return answers

    def close(self) -> None:
        """Close the connections."""
        if self._engine is not None:
            self._engine.dispose()

    def _select(self, keys: Sequence[Any]) -> dict[Any, Any]:
        size = len(_parts(keys[0]))
        if self._table and size != len(self._key):
            raise InvalidConfigError(
                f"{self._where} is looked up by {', '.join(self._key)}, and the bolt's key has {size} fields"
            )
        with self._connect() as connection:
            rows = connection.execute(self._statement, {"keys": list(keys)}).fetchall()
        width = size + len(self._fields)
        if rows and len(rows[0]) != width:
            raise InvalidConfigError(
                f"{self._where} gives {len(rows[0])} columns; wanted are the key's {size}, then {', '.join(self._fields)}"
            )
        answers = {row[0] if size == 1 else tuple(row[:size]): tuple(row[size:]) for row in rows}
        # Left out: taking it for missing, which is what a database that converts would make of it.
        if other := answers.keys() - set(keys):
            raise TypeError(
                f"it answers the key {show(min(other, key=repr))}, which was not asked for: its type or case "
                "is not that of the field, so convert the field"
            )
        forms = {str(key).casefold() for key in answers}
        if any(str(key).casefold() in forms for key in set(keys) - answers.keys()):
            raise TypeError("a key has another one's row, or none: each is asked for alone")
        return answers

    def _connect(self) -> Any:
        self._engine = self._engine or make_engine(self._url, self._secret)
        if self._statement is None:
            self._statement = self._made()
        return self._engine.connect()

    def _refuses_null(self, key: Any) -> bool:
        """Return whether the statement fails by a key of NULLs too, so that no key is the cause; an
        IN of no keys has a type in PostgreSQL, that may not be the column's.
        """
        from sqlalchemy import exc

        null = (None,) * len(key) if isinstance(key, tuple) else None
        try:
            with self._engine.connect() as connection:
                connection.execute(self._statement, {"keys": [null]}).close()
        except exc.SQLAlchemyError:
            return True
        return False

    def _made(self) -> Any:
        import sqlalchemy as sa

        keys: Any = sa.bindparam("keys", expanding=True)
        if self._query:
            query = sa.text(self._query).bindparams(keys)
            if stray := query.compile().params.keys() - {"keys"}:
                raise InvalidConfigError(
                    f"{self._where} asks for :{min(stray)}, and is given :keys alone; write \\: for a colon of its text"
                )
            return query
        names = [self._columns.get(name, name) for name in self._fields]
        table = sa.table(
            self._table, *map(sa.column, dict.fromkeys([*self._key, *names])), schema=self._schema
        )
        by = [table.c[name] for name in self._key]
        key = by[0] if len(by) == 1 else sa.tuple_(*by)
        return sa.select(*by, *(table.c[name] for name in names)).where(key.in_(keys))


class RedisLookup:
    """Look-up in a Redis of yours: `pattern`, as "user:{}", makes the name of a key.

    The fields are those of a hash; with `text=True` the only one is the text under the key. Values
    are text, or of the field's type: bigint, double, boolean. A key of several fields fills as many
    places.
    """

    def __init__(
        self,
        url: str,
        pattern: str,
        *,
        text: bool = False,
        password_file: str | None = None,
        password_env: str | None = None,
    ) -> None:
        self._url = without_password(url, "RedisLookup")
        self._secret = Secret("RedisLookup", password_file, password_env)
        _check_pattern("RedisLookup", pattern)
        check_flags("RedisLookup", text=text)
        self._pattern = pattern
        self._is_text = text

    def open(self, fields: Fields, context: TopologyContext) -> None:
        """Connect, to find a wrong password; a server that is away may be back at the first key."""
        self._fields = list(fields)
        types = fields if isinstance(fields, Mapping) else dict.fromkeys(fields, "any")
        if stray := [name for name, kind in types.items() if kind not in _READERS]:
            raise InvalidConfigError(
                f"RedisLookup: field '{stray[0]}' is {show(types[stray[0]])}; of a text it can make {', '.join(_READERS)}"
            )
        self._readers = [_READERS[kind] for kind in types.values()]
        self._client: Any = None
        if self._is_text and len(self._fields) != 1:
            raise InvalidConfigError(
                f"RedisLookup: a text is one field, and {len(self._fields)} are wanted: {', '.join(self._fields)}"
            )
        with contextlib.suppress(ConnectionError), self._speaking() as client:
            client.ping()

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[Any]:
        """Give the client; what it raises is named."""
        self._client = self._client or connect(self._url, self._secret)
        try:
            yield self._client
        except redis.AuthenticationError as error:
            raise InvalidConfigError(
                f"Redis at {self._url}: {error}; name the password's place with password_file or password_env"
            ) from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise ConnectionError(f"Redis at {self._url}: {error}") from error

    def fetch(self, keys: Sequence[Any]) -> Mapping[Any, Any]:
        """Return the fields of the keys that are there, from one round trip."""
        with self._speaking() as client:
            return self._read(client, keys)

    def _read(self, client: Any, keys: Sequence[Any]) -> Mapping[Any, Any]:
        names = [_filled(self._pattern, key, _plain).encode(errors=_AS_IS) for key in keys]
        if self._is_text:
            answers = [[value] for value in client.mget(names)]
        else:
            pipeline = client.pipeline(transaction=False)
            for name in names:
                pipeline.hmget(name, self._fields)
            answers = pipeline.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, redis.ConnectionError):  # of the server, not of a key
                    raise answer
        return {
            key: answer if isinstance(answer, Exception) else self._row(answer)
            for key, answer in zip(keys, answers, strict=True)
            if isinstance(answer, Exception) or any(value is not None for value in answer)
        }

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()

    def _row(self, values: Sequence[bytes | None]) -> Any:
        try:
            return tuple(
                None if value is None else read(value)
                for read, value in zip(self._readers, values, strict=True)
            )
        except ValueError as error:
            return error


class HttpLookup:
    """Look-up by HTTP: a GET of each key's URL ("https://host/users/{}"), answered by an object of
    JSON with the fields; 404 means that there is none.

    With `post=True` the keys of a call are posted as one list of JSON, and answered by an object of
    such objects, by key as text.
    """

    def __init__(
        self,
        url: str,
        *,
        post: bool = False,
        headers: Mapping[str, str] | None = None,
        timeout_secs: float = 10.0,
        token_file: str | None = None,
        token_env: str | None = None,
    ) -> None:
        parts = urlsplit(without_password(url, "HttpLookup", "token"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfigError(
                f"HttpLookup: {url!r:.80} is no URL of the form https://host/path/{{}}"
            )
        if not post:
            _check_pattern("HttpLookup", url)
        elif "{}" in url:
            raise InvalidConfigError(
                f"HttpLookup: {url!r:.80} has a place for a key, but with post=True the keys travel in the body; "
                "drop the {} or post"
            )
        check_number("HttpLookup", "timeout_secs", timeout_secs)
        check_flags("HttpLookup", post=post)
        check_headers("HttpLookup", headers)
        self._url = url
        self._is_post = post
        self._headers = dict(headers or {})
        self._timeout = timeout_secs
        self._secret = Secret("HttpLookup", token_file, token_env)

    def open(self, fields: Fields, context: TopologyContext) -> None:
        """Connect to nothing yet."""
        token = self._secret.read()
        self._all = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            **self._headers,
            **({"Authorization": f"Bearer {token}"} if token else {}),
        }
        self._connection: http.client.HTTPConnection | None = None

    def fetch(self, keys: Sequence[Any]) -> Mapping[Any, Any]:
        """Return the objects of the keys that are there; a key that the server refuses has its
        error.
        """
        if not self._is_post:
            answers = {key: self._of_key(key) for key in keys}
            return {key: answer for key, answer in answers.items() if answer is not None}
        refused = {
            key: ValueError(f"{self._url} takes JSON, which has no place for the key {show(key)}")
            for key in keys
            if any(
                isinstance(part, bytes) or part in _NO_JSON or part != part for part in _parts(key)
            )
        }
        keys = [key for key in keys if key not in refused]
        if not keys:
            return refused
        keys_by_text = {_text(key): key for key in reversed(keys)}
        # 1 and "1" have one text: the answer of a call could be that of either.
        others = [key for key in keys if keys_by_text[_text(key)] is not key]
        asked = json.dumps(list(keys_by_text.values()), default=str).encode()
        status, text = self._ask("POST", self._url, asked)
        said = _require_service(status, f"{self._url} answers {status}: {text[:200]}")
        if status >= 300:
            raise ValueError(said)
        by_text = _parsed(text, self._url)
        answered = {key: by_text[name] for name, key in keys_by_text.items() if name in by_text}
        return {**answered, **refused, **(self.fetch(others) if others else {})}

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _of_key(self, key: Any) -> Any:
        url = _filled(self._url, key, lambda part: quote(_plain(part), "", errors=_AS_IS))
        # servers and proxies take such a part of a path for the folder above, which has other rows
        if not {".", ".."}.isdisjoint(urlsplit(url).path.split("/")):
            return ValueError(f"{url} has a path of dots, and the key is {show(key)}")
        try:
            status, text = self._ask("GET", url, None)
        except _TooLongError as error:
            return error
        if status == _MISSING_STATUS:
            return None
        said = _require_service(status, f"{url} answers {status}: {text[:200]}")
        if status >= 300:
            return ValueError(said)
        try:
            return _parsed(text, url)
        except ValueError as error:
            return error

    def _ask(self, method: str, url: str, body: bytes | None) -> tuple[int, str]:
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        # a server may have closed a connection that it has kept: another one is tried once
        for is_last in (self._connection is None, True):
            connection = self._connection = self._connection or self._connect(url)
            try:
                connection.request(method, path, body, self._all)
                answer = connection.getresponse()
                text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
                if answer.length or answer.read(1):
                    self.close()
                    raise _TooLongError(f"{url} answers more than {_MOST_BYTES:,} bytes")
                return answer.status, text
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if is_last or not isinstance(error, BrokenPipeError | ConnectionResetError):
                    raise ConnectionError(f"{url}: {reason_of(error) or repr(error)}") from error
        raise AssertionError("the last try returns or raises")

    def _connect(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        kind = (http.client.HTTPConnection, http.client.HTTPSConnection)[parts.scheme == "https"]
        return kind(parts.hostname or "", parts.port, timeout=self._timeout)


def _boolean(text: bytes) -> bool:
    """Return what a text says; ValueError for one that is neither true nor false."""
    lowered = text.lower()
    if lowered not in _TRUE + _FALSE:
        raise ValueError(
            f"{text!r:.60} is no boolean: neither 1, true, t, yes, y nor 0, false, f, no, n"
        )
    return lowered in _TRUE


_TRUE = (b"1", b"true", b"t", b"yes", b"y")
_FALSE = (b"0", b"false", b"f", b"no", b"n", b"")
_READERS: dict[str, Any] = {
    **dict.fromkeys(("any", "string"), bytes.decode),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), int),
    **dict.fromkeys(("float", "double"), float),
    "boolean": _boolean,
}


class _TooLongError(ValueError):
    """An answer that is too long to be a row."""


def _require_service(status: int, said: str) -> str:
    """Return what a server has said; ConnectionError where it is to be asked again later, and
    InvalidConfigError where it lets nobody in.
    """
    if status in _AGAIN:
        raise ConnectionError(said)
    if status in (401, 403):
        raise InvalidConfigError(f"{said}; name the token's place with token_file or token_env")
    return said


def _check_pattern(what: str, pattern: str) -> None:
    if "{}" not in pattern:
        raise InvalidConfigError(
            f"{what}: {pattern!r:.80} has no place for the key: write {{}} where it stands"
        )


def _filled(pattern: str, key: Any, write: Any) -> str:
    """Return a pattern with the parts of a key in its places."""
    parts = _parts(key)
    pieces = pattern.split("{}")
    if len(pieces) != len(parts) + 1:
        raise InvalidConfigError(
            f"{pattern!r:.80} has {len(pieces) - 1} places, and the key {len(parts)} fields"
        )
    return pieces[0] + "".join(
        write(part) + piece for part, piece in zip(parts, pieces[1:], strict=True)
    )


def _parts(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _plain(part: Any) -> str:
    """Return a part of a key as text; of bytes, one that `encode(errors=_AS_IS)` makes them of."""
    return part.decode(errors=_AS_IS) if isinstance(part, bytes) else str(part)


def _text(key: Any) -> str:
    return "/".join(map(str, _parts(key)))


def _parsed(text: str, url: str) -> Any:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:  # lists in lists, thousands deep
        raise ValueError(f"{url} answers no JSON: {text[:100]!r}") from error
    if not isinstance(answer, dict):
        raise ValueError(f"{url} answers no object of JSON: {text[:100]!r}")
    return answer
