"""A store that the contracts of the transport are checked on, where a file has none of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contracts.benches import Bench, LocalBench, RedisBench


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.system)])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    local = request.param == "local"
    made: Bench = LocalBench() if local else RedisBench(request.getfixturevalue("redis_server"))
    yield made
    made.close()
