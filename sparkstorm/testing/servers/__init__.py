"""Real servers of your own for tests and for `sparkstorm dev`: Kafka, PostgreSQL and an object
store with S3's interface.

They come from packages: Kafka's jars from Maven Central, PostgreSQL from Debian or from PATH, the
object store from PyPI (moto). docs/testing.md shows their use.
"""

from sparkstorm.testing.servers.kafka import KafkaServer
from sparkstorm.testing.servers.object_store import ObjectStore
from sparkstorm.testing.servers.postgres import PostgresServer

__all__ = ["KafkaServer", "ObjectStore", "PostgresServer"]
