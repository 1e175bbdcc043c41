"""Real stores that lose power: whatever a server has not synced is gone.

A kill alone takes nothing that the server has written, since the kernel keeps it. So a library is
preloaded (held_writes.c) that keeps what is written to append-only files inside the process until
they are synced. It is compiled when it is used; machines without a C compiler skip such tests.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from sparkstorm.extensions.embedded.process import free_port
from tests.sim.watched_redis import Server

_PASSWORD = "of-the-power-cut"
_SOURCE = Path(__file__).with_name("held_writes.c")


@cache
def _compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        pytest.skip("no C compiler here, which a power cut of a server needs: apt-get install gcc")
    return found


def server_without_a_battery(folder: Path, appendfsync: str, binary: str = "") -> Server:
    """Start a server whose `kill` takes all that it has not synced; it comes back by `start`."""
    server = Server(folder, free_port(), _PASSWORD, f"appendfsync {appendfsync}")
    library = folder / "held.so"
    subprocess.run(
        [_compiler(), "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl", "-lpthread"], check=True
    )
    started = folder / "redis-server"
    started.write_text(f'#!/bin/sh\nLD_PRELOAD={library} exec {binary or server.binary} "$@"\n')
    started.chmod(0o755)
    server.binary = str(started)
    server.start()
    return server
