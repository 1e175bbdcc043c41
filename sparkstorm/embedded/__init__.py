"""Owns the servers that a run brings along when no addresses are configured: Redis and ZooKeeper."""

from sparkstorm.embedded.redis import RedisServer, check_redis_settings, start_redis
from sparkstorm.embedded.zookeeper import ZooKeeperServer, start_zookeeper

__all__ = ["RedisServer", "ZooKeeperServer", "check_redis_settings", "start_redis", "start_zookeeper"]
