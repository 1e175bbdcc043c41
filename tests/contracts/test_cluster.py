"""The laws of the transport on a Redis Cluster of two nodes: all tests of one Redis, through the
same proxies, to which the cluster sends its clients.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contracts.benches import ClusterBench
from tests.contracts.test_endings import *  # noqa: F403 - as the next
from tests.contracts.test_transport import *  # noqa: F403 - its tests, over the fixture below
from tests.transport.cluster_redis import ClusterRedis

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRedis]:
    made = ClusterRedis(tmp_path_factory.mktemp("cluster"), has_proxies=True)
    yield made
    made.close()


@pytest.fixture  # type: ignore[no-redef]
def bench(cluster: ClusterRedis) -> Iterator[ClusterBench]:
    """Owners of a topology whose slot one of the nodes has; they are told of all nodes."""
    made = ClusterBench(cluster)
    yield made
    made.close()
