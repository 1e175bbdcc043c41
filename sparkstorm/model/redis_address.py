"""RedisAddress: address and credentials of a cluster's Redis."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Address and credentials of a Redis; an empty password or user means none. A repr does not show the password.

    `socket` is the path of its Unix socket, for processes that see that file; "" where it has none.
    """

    host: str
    port: int
    password: str = field(default="", repr=False)
    user: str = ""
    db: int = 0
    tls: bool = False
    socket: str = field(default="", metadata={"may_miss": True})  # connection files of former versions have none
