"""Storm's MultitenantScheduler: assigns topologies to pools, then each pool schedules its own."""

from collections.abc import Mapping
from dataclasses import dataclass

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.control_plane.scheduling.multitenant.isolated_pool import IsolatedPool
from sparkstorm.control_plane.scheduling.multitenant.node import nodes_of
from sparkstorm.control_plane.scheduling.multitenant.shared_pools import DefaultPool, FreePool
from sparkstorm.control_plane.scheduling.records import Conf, Topologies
from sparkstorm.control_plane.scheduling.settings import MultitenantSettings
from sparkstorm.control_plane.scheduling.view import ClusterView

POOLS_KEY = "multitenant.scheduler.user.pools"


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Node counts after a round."""

    free: int
    default: int
    isolated: Mapping[str, int]


class MultitenantScheduler:
    """Users named in `multitenant.scheduler.user.pools` ({user: nodes}) get nodes of their own, up
    to that many.
    """

    def __init__(self) -> None:
        self._max_nodes_by_user: dict[str, int] = {}
        self.pool_sizes: PoolSizes | None = None

    def prepare(self, conf: Conf) -> None:
        """Read the users' limits; InvalidConfigError when they are not a map of user to a count."""
        pools = MultitenantSettings.of_partial(conf).pools or {}
        if not isinstance(pools, Mapping):
            raise InvalidConfigError(f"{POOLS_KEY}: expected a map of user to nodes, got {pools!r}")
        for user, nodes in pools.items():
            if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 0:
                raise InvalidConfigError(
                    f"{POOLS_KEY}: {user}: expected a count of nodes, got {nodes!r}"
                )
        self._max_nodes_by_user = dict(sorted(pools.items()))

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """User pools first, by user, borrowing from the free pool and then the default one; the
        default pool last.
        """
        nodes = nodes_of(cluster)
        free = FreePool(nodes)
        default = DefaultPool(cluster, nodes)
        by_user = {
            user: IsolatedPool(limit, cluster, nodes)
            for user, limit in self._max_nodes_by_user.items()
        }
        for _, topology in sorted(topologies.items()):
            own = by_user.get(topology.owner)
            (own if own is not None and own.can_add(topology) else default).add_topology(topology)
        for pool in by_user.values():
            pool.schedule((free, default))
        default.schedule((free,))
        self.pool_sizes = PoolSizes(
            len(free.nodes),
            len(default.nodes),
            {user: len(pool.nodes) for user, pool in by_user.items()},
        )
