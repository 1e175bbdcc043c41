"""RedisAddress: address and credentials of a cluster's Redis."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Address and credentials of a Redis; an empty password or user means none. A repr does not show the password."""

    host: str
    port: int
    password: str = field(default="", repr=False)
    user: str = ""
    db: int = 0
    tls: bool = False
