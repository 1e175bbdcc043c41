"""Contexts: clusters by name, in one file of the user's configuration folder.

The file has paths of connection files and the name of the current context; the secrets stay in the
connection files. A process that can write it chooses the cluster that a verb changes, so it is
written with mode 0600 and refused with any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.stores.connection import load_any_connection, read_private

VARIABLE: Final = "SPARKSTORM_CLUSTER"
"""Variable of the environment that names a connection file."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Contexts:
    """Paths of connection files by the name of their context, and which one is current ("" for
    none).
    """

    files: Mapping[str, str] = field(default_factory=dict)
    current: str = ""


def contexts_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where contexts are kept: `sparkstorm/contexts.json` in XDG_CONFIG_HOME, else in
    ~/.config.
    """
    named = environ.get("XDG_CONFIG_HOME", "")
    return (
        (Path(named) if os.path.isabs(named) else Path("~/.config").expanduser())
        / "sparkstorm"
        / "contexts.json"
    )


def read_contexts() -> Contexts:
    """Return the user's contexts, none without a file; InvalidConfigError when it may be read by
    others or is damaged.
    """
    path = contexts_file()
    if not path.exists():
        return Contexts()
    try:
        content = json.loads(read_private(path, "file of contexts"))
        files = content["contexts"]
        current = content["current"]
        is_whole = all(
            _NAME.fullmatch(name) and isinstance(file, str) and os.path.isabs(file)
            for name, file in files.items()
        )
        if not is_whole or not isinstance(current, str) or (current and current not in files):
            raise ValueError("it names no connection files")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidConfigError(
            f"{path} is damaged ({error}): delete it, and add the contexts again"
        ) from error
    return Contexts(dict(sorted(files.items())), current)


def file_of_context(name: str) -> str:
    """Return the path of a context's connection file; InvalidConfigError names those there are."""
    return _require(read_contexts(), name)


def file_of_current_context() -> str | None:
    """Return the path of the current context's connection file; None when there is no current
    context.
    """
    contexts = read_contexts()
    return contexts.files.get(contexts.current)


def add_context(name: str, connection: str, is_forced: bool = False) -> Contexts:
    """Keep a connection file under a name, and return all; the first context is current at once.

    InvalidConfigError when the name is taken and `is_forced` is not set, or when the file is no
    connection file.
    """
    if not _NAME.fullmatch(name):
        raise InvalidConfigError(
            f"context {name!r:.80}: its name must have letters, digits, '.', '_' and '-' only, 64 at most"
        )
    contexts = read_contexts()
    if name in contexts.files and not is_forced:
        raise InvalidConfigError(
            f"context {name} is {contexts.files[name]} already: give --force to replace it"
        )
    path = Path(connection).expanduser().absolute()
    load_any_connection(path)
    return _written(Contexts({**contexts.files, name: str(path)}, contexts.current or name))


def use_context(name: str) -> Contexts:
    """Make a context current, and return all; InvalidConfigError names those there are."""
    contexts = read_contexts()
    _require(contexts, name)
    return _written(replace(contexts, current=name))


def remove_context(name: str) -> Contexts:
    """Forget a context, and return the others; its connection file stays. InvalidConfigError names
    those there are.
    """
    contexts = read_contexts()
    _require(contexts, name)
    files = {other: file for other, file in contexts.files.items() if other != name}
    return _written(Contexts(files, "" if contexts.current == name else contexts.current))


def _require(contexts: Contexts, name: str) -> str:
    if name not in contexts.files:
        existing = (
            f"there are {', '.join(contexts.files)}"
            if contexts.files
            else "none is there: sparkstorm context add NAME FILE"
        )
        raise InvalidConfigError(f"there is no context {name!r:.80}; {existing}")
    return contexts.files[name]


def _written(contexts: Contexts) -> Contexts:
    """Write the file, whole or not at all."""
    path = contexts_file()
    content = json.dumps(
        {"contexts": dict(sorted(contexts.files.items())), "current": contexts.current}, indent=2
    )
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        with os.fdopen(
            os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w"
        ) as file:
            file.write(content + "\n")
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise InvalidConfigError(f"{path} cannot be written: {error.strerror}") from error
    return contexts


def named(connection: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """Return the path of a connection file: the one given, of the environment, or of the current
    context; None without.
    """
    return connection or os.environ.get(VARIABLE) or file_of_current_context()
