"""RedisAddress: address and credentials of a cluster's Redis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparkstorm.model.strict import ADDED_LATER
from sparkstorm.tls import NO_FILES, TlsFiles


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Address and credentials of a Redis; an empty password or user means none. A repr does not show the password."""

    host: str
    port: int
    password: str = field(default="", repr=False)
    user: str = ""
    db: int = 0
    tls: bool = False
    tls_files: TlsFiles = field(default=NO_FILES, metadata=ADDED_LATER)

    def tls_options(self) -> dict[str, Any]:
        """Return redis-py's options for `tls`; InvalidConfigError names a file that this host cannot use."""
        return self.tls_files.for_redis() if self.tls else {}
