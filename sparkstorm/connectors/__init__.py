"""Ready-made sources and sinks for topologies; they use the public API only.

Each is imported when its name is asked for: their libraries take half a second together, and a job
uses one or two.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkstorm.connectors.file_sinks import FileSink
    from sparkstorm.connectors.file_source import Files
    from sparkstorm.connectors.files import FileLines, find_files
    from sparkstorm.connectors.http import Webhook
    from sparkstorm.connectors.http_sink import HttpSink
    from sparkstorm.connectors.kafka import KafkaSource
    from sparkstorm.connectors.kafka_sink import KafkaSink
    from sparkstorm.connectors.redis_streams import RedisSink, RedisSource
    from sparkstorm.connectors.simple import Console, Rate
    from sparkstorm.connectors.spark import SparkSink, SparkSource
    from sparkstorm.connectors.spark_frame import SparkFrame, send_frame
    from sparkstorm.connectors.sql import SqlSource
    from sparkstorm.connectors.sql_sink import SqlSink
    from sparkstorm.connectors.table_sinks import DeltaSink, IcebergSink

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

_PLACES = {
    "Console": "simple",
    "DeltaSink": "table_sinks",
    "FileLines": "files",
    "FileSink": "file_sinks",
    "Files": "file_source",
    "HttpSink": "http_sink",
    "IcebergSink": "table_sinks",
    "KafkaSink": "kafka_sink",
    "KafkaSource": "kafka",
    "Rate": "simple",
    "RedisSink": "redis_streams",
    "RedisSource": "redis_streams",
    "SparkFrame": "spark_frame",
    "SparkSink": "spark",
    "SparkSource": "spark",
    "SqlSink": "sql_sink",
    "SqlSource": "sql",
    "Webhook": "http",
    "find_files": "files",
    "send_frame": "spark_frame",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    # the next time it is there
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
