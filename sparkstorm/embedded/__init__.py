"""Embedded servers, started when no addresses are configured: Redis and ZooKeeper."""

from sparkstorm.embedded.connection import Connection, load_connection, save_connection, signing_key
from sparkstorm.embedded.redis import RedisServer, check_redis_settings, start_redis
from sparkstorm.embedded.stores import Stores, open_stores
from sparkstorm.embedded.zookeeper import ZooKeeperServer, start_zookeeper

__all__ = [
    "Connection",
    "RedisServer",
    "Stores",
    "ZooKeeperServer",
    "check_redis_settings",
    "load_connection",
    "open_stores",
    "save_connection",
    "signing_key",
    "start_redis",
    "start_zookeeper",
]
