"""Helpers of sources and sinks that talk to servers: outages that are waited for, and secrets that
stay out of URLs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError, reason_of, show
from sparkstorm.common.model.strict import near_name

_FIRST_PAUSE_MS = 100
_LONGEST_PAUSE_MS = 5_000
_MOST_BYTES = 4096
PASSWORDS = ("password", "passwd", "pwd")
SECRETS = (*PASSWORDS, "secret", "token", "credential")
# sqlite3's, and PostgreSQL's of a key that is deferrable
_MISTAKES = (
    "no such",
    "syntax error",
    "unrecognized token",
    "cannot modify",
    "cannot INSERT",
    "unknown database",
    "ON CONFLICT",
)
_DENIED = (
    "authentication failed",
    "Access denied",
    "does not exist",
    "no password supplied",
    "unable to open database file",
)
# MySQL's and MariaDB's numbers of a value, a trigger's SIGNAL, a text that is no JSON, and a CHECK,
# which their drivers take for an error of the server
_VALUES = (1292, 1366, 1644, 3140, 3819, 4025)
_DIALECTS = ("postgresql", "sqlite", "mysql", "mariadb", "cockroachdb", "duckdb", "oracle", "mssql")
# of "host=h password=p", "h;Pwd=p" and "?password=p"
_DSN_WORD = re.compile(r"(?:^|[\s?&;])([\w.%-]+)\s*=")


class Patience:
    """Treatment of an outage by a source: growing pauses between tries, a sentence now and then,
    and an end.
    """

    def __init__(
        self,
        where: str,
        now_ms: Callable[[], int],
        report: Callable[[str], None],
        most_secs: float = 60.0,
    ) -> None:
        self._where = where
        self._now_ms = now_ms
        self._report = report
        self._most_ms = round(most_secs * 1000)
        self._since_ms: int | None = None
        self._due_ms = self._tries = 0

    @property
    def is_resting(self) -> bool:
        """Return whether the next try is not due yet."""
        return self._since_ms is not None and self._now_ms() < self._due_ms

    def bear(self, error: BaseException) -> None:
        """Put the next try off; WorkerFailedError when the outage has lasted too long."""
        now_ms = self._now_ms()
        reason = " ".join(str(error).split())[:300]
        if self._since_ms is None:
            self._since_ms = now_ms
            self._tries = 0
        if now_ms - self._since_ms >= self._most_ms:
            raise WorkerFailedError(
                f"{self._where} cannot be reached for {self._most_ms / 1000:g} s: {reason}"
            )
        if self._tries % 10 == 0:
            self._report(f"{self._where} cannot be reached: {reason}")
        self._due_ms = now_ms + min(_FIRST_PAUSE_MS * 2**self._tries, _LONGEST_PAUSE_MS)
        self._tries += 1

    def succeed(self) -> None:
        """Note that the server answers."""
        self._since_ms = None


class Secret:
    """Place of a password: a file of mode 0600, or an environment variable. It is read where it
    is used, and never travels.
    """

    def __init__(
        self, what: str, file: str | os.PathLike[str] | None, variable: str | None
    ) -> None:
        file = os.fspath(file) if isinstance(file, os.PathLike) else file
        for given in (file, variable):
            if not isinstance(given, str | None):
                raise InvalidConfigError(
                    f"{what}: {show(given)} is no place of a secret; write a path or the name of a variable"
                )
        if file and variable:
            raise InvalidConfigError(
                f"{what}: a password file and a variable are both given: keep one of them"
            )
        self._what = what
        # "~" is that of the user of the worker
        self._file = os.path.abspath(file) if file and not file.startswith("~") else file
        self._variable = variable

    def read(self) -> str | None:
        """Return the password; None when no place was given."""
        if self._file:
            return self._read_file(Path(self._file).expanduser())
        if not self._variable:
            return None
        if (secret := os.environ.get(self._variable)) is None:
            raise InvalidConfigError(
                f"{self._what}: the environment variable {self._variable} is not set on this host"
            )
        return secret

    def _read_file(self, path: Path) -> str:
        try:
            mode = path.stat().st_mode
            text = path.read_bytes()[:_MOST_BYTES].decode().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfigError(
                f"{self._what}: the password file {path} cannot be read: {reason_of(error)}"
            ) from error
        if mode & 0o077:
            raise InvalidConfigError(
                f"{self._what}: others may read the password file {path}; chmod 600 {path}"
            )
        if not text or "\n" in text:
            raise InvalidConfigError(
                f"{self._what}: the password file {path} must hold one line, the password"
            )
        return text


def check_number(what: str, name: str, value: Any, least: int = 0, is_whole: bool = False) -> None:
    """Raise InvalidConfigError for an option that is no number, or is too small."""
    kinds = (int,) if is_whole else (int, float)
    # comparisons with not-a-number are false
    if type(value) not in kinds or not value >= least:
        number = "a whole number" if is_whole else "a number"
        raise InvalidConfigError(
            f"{what}: {name} is {value!r:.40}; write {number} of at least {least}"
        )


def check_flags(what: str, **flags: Any) -> None:
    """Raise InvalidConfigError for an option that is not True or False: a text such as "no" would
    be true.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InvalidConfigError(
                f"{what}: {name} is {show(flag)}; write {name}=True or {name}=False"
            )


def check_headers(what: str, headers: Any) -> None:
    """Raise InvalidConfigError for headers that are no texts by name, as a request has them."""
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidConfigError(f"{what}: headers is {show(headers)}; write texts by name")
    for name, text in (headers or {}).items():
        is_text = isinstance(name, str) and isinstance(text, str)
        if not is_text or not name or not (f"{name}{text}".isascii() and text.isprintable()):
            raise InvalidConfigError(
                f"{what}: headers has {show(name)}: {show(text)}; write one line of ASCII text"
            )


def without_password(url: str, what: str, secret: str = "password") -> str:
    """Return a URL that holds no password; InvalidConfigError for one that does, since URLs are
    logged, with the options that name the place of its `secret`.
    """
    if not isinstance(url, str):
        raise InvalidConfigError(f"{what}: the URL is {show(url)}; write it as a text")
    try:
        urlsplit(url)
    except ValueError as error:
        raise InvalidConfigError(f"{what}: this is no URL: {error}") from error
    if holds_secret(url, PASSWORDS):
        raise InvalidConfigError(
            f"{what}: take the password out of the URL, and name its place with {secret}_file or {secret}_env"
        )
    return url


def database_url(url: str, what: str) -> str:
    """Return a database's URL without a password that means the same in another working directory:
    a relative path of SQLite is made absolute.
    """
    scheme, _, file_part = without_password(url, what).partition(":///")
    _check_dialect(url, what)
    path, mark, query = file_part.partition("?")
    is_file = path.strip() and not path.startswith(("/", ":memory:", "file:"))
    if scheme.partition("+")[0] != "sqlite" or not is_file:
        return url
    return f"{scheme}:///{os.path.abspath(os.path.expanduser(path))}{mark}{query}"


def _check_dialect(url: str, what: str) -> None:
    """Raise InvalidConfigError for a URL of no database, and a dialect that is misspelt; one that
    is not installed here may be where the workers are.
    """
    try:
        import sqlalchemy as sa
    except ImportError:
        return
    from sqlalchemy import exc

    try:
        sa.make_url(url).get_dialect()
    except exc.NoSuchModuleError as error:
        name = url.partition(":")[0].partition("+")[0]
        if name not in _DIALECTS and (hint := near_name(name, _DIALECTS)):
            raise InvalidConfigError(
                f"{what}: {url:.80} names the dialect {name!r:.40}, which SQLAlchemy has not{hint}"
            ) from error
    except exc.ArgumentError as error:
        raise InvalidConfigError(f"{what}: {url:.80} is no URL of a database: {error}") from error


def plain_name(name: str, what: str) -> str:
    """Return a name of a table or folder; InvalidConfigError for one with characters that no system
    takes.
    """
    try:
        is_plain = isinstance(name, str) and bool(name.strip()) and b"\0" not in name.encode()
    except UnicodeEncodeError:
        is_plain = False
    if not is_plain:
        raise InvalidConfigError(
            f"{what}: {name!r:.80} is no name: it is no text, empty, holds a NUL, or is not UTF-8"
        )
    return name


def holds_secret(text: str, signs: Sequence[str]) -> bool:
    """Return whether a URL has a password, or its query, or a DSN of words ("host=h password=p"), a
    word with such a sign.
    """
    if any(sign in word.lower() for word in _DSN_WORD.findall(unquote(text)) for sign in signs):
        return True
    try:
        return urlsplit(text).password is not None
    except ValueError:
        return False


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
        return sa.create_engine(
            address if password is None else address.set(password=password), pool_pre_ping=True
        )
    except exc.ArgumentError as error:
        raise InvalidConfigError(f"{url:.80} is no URL of a database: {error}") from error
    except ImportError as error:
        raise InvalidConfigError(f"{url:.80}: its driver is not installed here: {error}") from error


def is_of_values(error: Exception) -> bool:
    """Return whether a statement may have failed by a row's values; False for what the server's
    state causes: a lost connection, a full disk, a lock.
    """
    from sqlalchemy import exc

    if not isinstance(error, exc.DBAPIError):
        # raised before the driver was asked, or by its conversion
        return isinstance(error, exc.StatementError | OverflowError | ValueError | TypeError)
    if error.connection_invalidated:
        return False
    if not isinstance(error, exc.OperationalError | exc.InterfaceError):
        return True
    # sqlite3 has one code for all errors of a statement; PostgreSQL's class 54 is a limit that a
    # row exceeds, as that of an index
    code = str(getattr(error.orig, "sqlstate", None) or getattr(error.orig, "sqlite_errorname", ""))
    if (getattr(error.orig, "args", None) or ("",))[0] in _VALUES:
        return True
    return code == "SQLITE_ERROR" or code[:2] == "54" or "binding parameter" in str(error.orig)


def require_lasting_sql(error: Any, where: str) -> None:
    """Raise InvalidConfigError for what another try will not change: credentials, a table or column
    that is not there.
    """
    from sqlalchemy import exc

    reason, text = sql_reason(error), str(getattr(error, "orig", None) or error)
    if isinstance(error, exc.NoSuchTableError):
        raise InvalidConfigError(f"{where}: there is no such table") from error
    is_wrong = isinstance(error, exc.ProgrammingError) or (
        isinstance(error, exc.OperationalError) and any(s in text for s in _MISTAKES)
    )
    if is_wrong or any(sign in text for sign in _DENIED):
        raise InvalidConfigError(f"{where}: {reason}") from error


def sql_reason(error: Any) -> str:
    """Return a database's sentence, with PostgreSQL's detail and hint; its other lines repeat the
    statement, or the values.
    """
    first, *rest = (str(getattr(error, "orig", None) or error).strip() or "").split("\n")
    lines = [first, *(line for line in rest if line.startswith(("DETAIL:", "HINT:")))]
    return " ".join(" ".join(lines).split())[:400]
