"""Uid of the process at the other end of a loopback connection, from the kernel's tables: PySpark's
ports admit every user.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
_MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address in a socket of IPv6, which a JVM makes


def is_of_another_user(connection: socket.socket) -> bool:
    """Return whether the other end is known to belong to another user; False where the system does
    not show it.
    """
    try:
        uid = uid_of_peer(connection)
    except OSError:  # the connection is gone already
        return False
    return uid not in (None, os.geteuid())


def uid_of_peer(connection: socket.socket) -> int | None:
    """Return the uid of the socket at the other end of a TCP connection within this host; None when
    no table has it.
    """
    peers = _written(connection.getpeername())
    owns = _written(connection.getsockname())
    for table in _TABLES:
        with contextlib.suppress(OSError), table.open(encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if fields[1] in peers and fields[2] in owns and fields[3] == _ESTABLISHED:
                    return int(fields[7])
    return None


def _written(address: tuple[str, int]) -> set[str]:
    """Return an address as the tables write it: words in the order of the machine's bytes, and the
    port, in hexadecimal.
    """
    host, port = address[:2]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    forms = {packed, packed.removeprefix(_MAPPED)} if ":" in host else {packed, _MAPPED + packed}
    return {f"{_words(form)}:{port:04X}" for form in forms}


def _words(packed: bytes) -> str:
    parts = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(part, sys.byteorder):08X}" for part in parts)
