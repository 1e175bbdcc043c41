"""Ready-made sources and sinks for topologies; they use the public API only."""

from sparkstorm.connectors.delta import DeltaSink
from sparkstorm.connectors.file_sinks import FileSink
from sparkstorm.connectors.file_source import Files
from sparkstorm.connectors.files import FileLines, find_files
from sparkstorm.connectors.http import HttpSink, Webhook
from sparkstorm.connectors.iceberg import IcebergSink
from sparkstorm.connectors.kafka import KafkaSource
from sparkstorm.connectors.kafka_sink import KafkaSink
from sparkstorm.connectors.redis_streams import RedisSink, RedisSource
from sparkstorm.connectors.simple import Console, Rate
from sparkstorm.connectors.spark import SparkSink, SparkSource
from sparkstorm.connectors.spark_frame import SparkFrame, send_frame
from sparkstorm.connectors.sql import SqlSource
from sparkstorm.connectors.sql_sink import SqlSink

__all__ = [
    "Console",
    "DeltaSink",
    "FileLines",
    "FileSink",
    "Files",
    "HttpSink",
    "IcebergSink",
    "KafkaSink",
    "KafkaSource",
    "Rate",
    "RedisSink",
    "RedisSource",
    "SparkFrame",
    "SparkSink",
    "SparkSource",
    "SqlSink",
    "SqlSource",
    "Webhook",
    "find_files",
    "send_frame",
]
