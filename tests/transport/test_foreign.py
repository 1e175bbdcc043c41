"""Freeing entries in another cell's store, on each version of Redis and Valkey that is found
here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.data_plane.transport.base import START
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.extensions.cells.cells import Trim
from sparkstorm.extensions.cells.foreign import RedisForeign
from tests.transport.bare_redis import BareRedis, binaries

pytestmark = pytest.mark.system
TOPOLOGY, TASK = "words-1-1", 7
KEYS = Keys(TOPOLOGY)


@pytest.mark.parametrize("binary", binaries().values(), ids=binaries())
@pytest.mark.parametrize("size", [0, 3])
def test_what_was_consumed_is_freed_and_counted_no_more(
    binary: str, size: int, tmp_path: Path
) -> None:
    """Messages of ackers count no bytes: Redis before 7.2 knows no number -0."""
    with BareRedis(binary, tmp_path, appendonly="no") as server:
        client: Any = server.client
        foreign = RedisForeign(server.address, TOPOLOGY, 1)
        with contextlib.closing(foreign):
            first, last = (client.xadd(KEYS.stream(TASK), {"f": b"row"}) for _ in range(2))
            client.hset(KEYS("backlog"), TASK, 5)
            foreign.trim([Trim(TASK, START.entry, first.decode(), size, first.decode())])
            assert client.hget(KEYS("backlog"), TASK) == b"%d" % (5 - size)
            assert client.hget(KEYS("passed"), TASK) == first
            foreign.trim([Trim(TASK, first.decode(), last.decode(), 0, last.decode())])
            assert [entry for entry, _ in client.xrange(KEYS.stream(TASK))] == [last]
