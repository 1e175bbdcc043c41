"""Passwords of a user's own Redis and ZooKeeper: from a key, a file or the environment; warnings
where others can read them.

Law: a password is never quoted in a message. Passwords in the command line, as redis-cli allows
them, are taken, since users will give them, and warned of.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sparkstorm.common.config import secret_keys
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.stores.connection import read_private

_URLS: Final = ("sparkstorm.redis.url", "sparkstorm.redis.urls")


@dataclass(frozen=True, slots=True)
class Places:
    """Sources of one password: its key, the key that names its file, its environment variable."""

    key: str
    file_key: str
    variable: str


REDIS: Final = Places(
    "sparkstorm.redis.password", "sparkstorm.redis.password.file", "SPARKSTORM_REDIS_PASSWORD"
)
REDIS_VIEWER: Final = Places(
    "sparkstorm.redis.viewer.password",
    "sparkstorm.redis.viewer.password.file",
    "SPARKSTORM_REDIS_VIEWER_PASSWORD",
)
REDIS_SENTINEL: Final = Places(
    "sparkstorm.redis.sentinel.password",
    "sparkstorm.redis.sentinel.password.file",
    "SPARKSTORM_REDIS_SENTINEL_PASSWORD",
)
ZOOKEEPER: Final = Places(
    "storm.zookeeper.auth.password",
    "storm.zookeeper.auth.password.file",
    "SPARKSTORM_ZOOKEEPER_PASSWORD",
)


def password_of(
    conf: Mapping[str, Any], places: Places, environ: Mapping[str, str] | None = None
) -> str | None:
    """The password of the key or of the file, else of the environment; None when it is nowhere.

    Raises InvalidConfigError when both keys are set, or the file is unfit (`read_private`) or not
    one line of text.
    """
    # Two places with different values are a mistake which should not be found only by a refused
    # connection.
    given = conf[places.key]
    file = conf[places.file_key]
    if given and file:
        raise InvalidConfigError(
            f"{places.key} and {places.file_key} are both set: keep one of them"
        )
    # The environment last: it is set for a whole host, a key for one cluster.
    if not file:
        return given or (os.environ if environ is None else environ).get(places.variable) or None
    try:
        text = read_private(Path(file).expanduser(), "password file").decode()
    except UnicodeDecodeError:
        raise InvalidConfigError(f"password file {file} is not UTF-8 text") from None
    password = text.rstrip("\r\n")
    if not password or "\n" in password:
        raise InvalidConfigError(
            f"password file {file} must hold one line, the password; see {places.file_key}"
        )
    return password


def exposed(overrides: Mapping[str, Any], own_conf: Mapping[str, Any], path: str) -> list[str]:
    """Sentences on passwords that others can read: in the command line (`overrides`), in the job
    file at `path`.
    """
    holding = [
        key for key in own_conf if key in secret_keys() and _has_password(key, own_conf[key])
    ]
    sentences = [
        f"{key} on the command line shows a password to every user of this machine; {_advice(key)}"
        for key in holding
        if key in overrides
    ]
    # Only a file that others can read is worth a warning; one of mode 0600 is as good as a password
    # file.
    in_file = [key for key in holding if key not in overrides]
    if in_file and Path(path).exists() and Path(path).stat().st_mode & 0o077:
        held = f"{path} holds a password ({in_file[0]}) and others may read it"
        sentences.append(f"{held}: chmod 600 {path}, or {_advice(in_file[0])}")
    return sentences


def _advice(key: str) -> str:
    places = next(
        (
            candidate
            for candidate in (ZOOKEEPER, REDIS_VIEWER, REDIS_SENTINEL)
            if key == candidate.key
        ),
        REDIS,
    )
    return (
        f"put it into a file of mode 0600 that {places.file_key} names, or into {places.variable}"
    )


def _has_password(key: str, value: Any) -> bool:
    if key not in _URLS:
        return bool(value)
    try:
        return any(
            urlsplit(str(url or "")).password
            for url in (value if isinstance(value, list) else [value])
        )
    # An URL that cannot be read may hold a password all the same.
    except ValueError:
        return True
