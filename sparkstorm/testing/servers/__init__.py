"""Servers for tests and for `sparkstorm dev`: Kafka, PostgreSQL and an object store with S3's
interface (docs/servers.md).
"""

from sparkstorm.testing.servers.kafka import KafkaServer
from sparkstorm.testing.servers.object_store import ObjectStore
from sparkstorm.testing.servers.postgres import PostgresServer

__all__ = ["KafkaServer", "ObjectStore", "PostgresServer"]
