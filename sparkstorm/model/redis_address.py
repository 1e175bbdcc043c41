"""Owns where a cluster's Redis is: the one record that everybody who connects is handed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where Redis is and how to enter; no password and no user are empty. The password never shows in a repr."""

    host: str
    port: int
    password: str = field(default="", repr=False)
    user: str = ""
    db: int = 0
    tls: bool = False
