"""Ready-made sources and sinks for topologies; docs/connectors.md explains their options and
promises.

Each is imported when its name is asked for: their libraries take half a second together.
"""

from typing import TYPE_CHECKING

from sparkstorm.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparkstorm.connectors.file_sinks import FileSink as FileSink
    from sparkstorm.connectors.file_source import Files as Files
    from sparkstorm.connectors.files import FileLines as FileLines
    from sparkstorm.connectors.files import find_files as find_files
    from sparkstorm.connectors.http import Webhook as Webhook
    from sparkstorm.connectors.http_sink import HttpSink as HttpSink
    from sparkstorm.connectors.kafka.debezium import Debezium as Debezium
    from sparkstorm.connectors.kafka.schemas import SchemaRegistry as SchemaRegistry
    from sparkstorm.connectors.kafka.sink import KafkaSink as KafkaSink
    from sparkstorm.connectors.kafka.source import KafkaSource as KafkaSource
    from sparkstorm.connectors.lookups import HttpLookup as HttpLookup
    from sparkstorm.connectors.lookups import RedisLookup as RedisLookup
    from sparkstorm.connectors.lookups import SqlLookup as SqlLookup
    from sparkstorm.connectors.redis_streams import RedisSink as RedisSink
    from sparkstorm.connectors.redis_streams import RedisSource as RedisSource
    from sparkstorm.connectors.simple import Console as Console
    from sparkstorm.connectors.simple import Rate as Rate
    from sparkstorm.connectors.spark import SparkSink as SparkSink
    from sparkstorm.connectors.spark import SparkSource as SparkSource
    from sparkstorm.connectors.spark_frame import SparkFrame as SparkFrame
    from sparkstorm.connectors.spark_frame import send_frame as send_frame
    from sparkstorm.connectors.sql import SqlSource as SqlSource
    from sparkstorm.connectors.sql_sink import SqlSink as SqlSink
    from sparkstorm.connectors.tables.delta import DeltaSink as DeltaSink
    from sparkstorm.connectors.tables.iceberg import IcebergSink as IcebergSink

__all__, __getattr__, __dir__ = lazy_names(
    globals(),
    {
        "sparkstorm.connectors.file_sinks": ["FileSink"],
        "sparkstorm.connectors.file_source": ["Files"],
        "sparkstorm.connectors.files": ["FileLines", "find_files"],
        "sparkstorm.connectors.http": ["Webhook"],
        "sparkstorm.connectors.http_sink": ["HttpSink"],
        "sparkstorm.connectors.kafka.debezium": ["Debezium"],
        "sparkstorm.connectors.kafka.schemas": ["SchemaRegistry"],
        "sparkstorm.connectors.kafka.source": ["KafkaSource"],
        "sparkstorm.connectors.kafka.sink": ["KafkaSink"],
        "sparkstorm.connectors.lookups": ["HttpLookup", "RedisLookup", "SqlLookup"],
        "sparkstorm.connectors.redis_streams": ["RedisSink", "RedisSource"],
        "sparkstorm.connectors.simple": ["Console", "Rate"],
        "sparkstorm.connectors.spark": ["SparkSink", "SparkSource"],
        "sparkstorm.connectors.spark_frame": ["SparkFrame", "send_frame"],
        "sparkstorm.connectors.sql": ["SqlSource"],
        "sparkstorm.connectors.sql_sink": ["SqlSink"],
        "sparkstorm.connectors.tables.delta": ["DeltaSink"],
        "sparkstorm.connectors.tables.iceberg": ["IcebergSink"],
    },
)
