"""Listening sockets of the project's HTTP servers, and one sentence when a port cannot be had."""

from __future__ import annotations

import errno
import socket

from sparkstorm.common.errors import InvalidConfigError, reason_of


def listen(address: str, port: int, option: str) -> socket.socket:
    """Return a socket that listens there; InvalidConfigError, which names the option of the port,
    when it cannot be had.
    """
    if not 0 <= port < 1 << 16:
        raise InvalidConfigError(f"{option} {port} is no port: there are 0 to 65535")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InvalidConfigError(
                f"port {port} of {address} is in use: give another with {option} PORT, or end the process that has it"
            ) from error
        raise InvalidConfigError(
            f"the web UI cannot listen on port {port} ({option}) of {address}: {reason_of(error)}"
        ) from error
