"""Embedded servers, started when no addresses are configured: Redis and ZooKeeper.

A guest: only what puts a cluster together (app, testing, the command line) imports it. What every
process needs to reach stores, its own or the user's, is in `sparkstorm.common.stores`.
"""

from sparkstorm.extensions.embedded.redis import RedisServer, start_redis
from sparkstorm.extensions.embedded.stores import RunningStores, open_stores
from sparkstorm.extensions.embedded.zookeeper import ZooKeeperServer, start_zookeeper

__all__ = [
    "RedisServer",
    "RunningStores",
    "ZooKeeperServer",
    "open_stores",
    "start_redis",
    "start_zookeeper",
]
