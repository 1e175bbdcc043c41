"""Checks that the other end of a connection within the host is known by its user."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from sparkstorm.driver.hosting.peers import is_of_another_user, uid_of_peer

CALL = (
    "import encodings.idna, os, socket, sys; os.setuid(int(sys.argv[1])); "
    "line = socket.create_connection((sys.argv[2], int(sys.argv[3]))); line.recv(1)"
)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_the_user_of_a_connection_is_read_from_the_kernel(
    family: socket.AddressFamily, is_mapped: bool
) -> None:
    """A JVM reaches 127.0.0.1 through a socket of IPv6."""
    if is_mapped and family == socket.AF_INET6:
        pytest.skip("one address has no two forms")
    with socket.create_server(
        ("127.0.0.1", 0) if family == socket.AF_INET else ("::1", 0), family=family
    ) as server:
        port = server.getsockname()[1]
        caller = socket.socket(socket.AF_INET6 if is_mapped else family)
        caller.connect(("::ffff:127.0.0.1" if is_mapped else server.getsockname()[0], port))
        accepted, _ = server.accept()
        with caller, accepted:
            assert uid_of_peer(accepted) == os.geteuid() and not is_of_another_user(accepted)
        assert not is_of_another_user(accepted)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_connection_of_another_user_is_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        caller = subprocess.Popen([sys.executable, "-c", CALL, "65534", "127.0.0.1", port])
        accepted, _ = server.accept()
        with accepted:
            assert uid_of_peer(accepted) == 65534 and is_of_another_user(accepted)
        caller.wait(60)
