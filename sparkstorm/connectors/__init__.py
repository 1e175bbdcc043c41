"""Ready-made sources and sinks for topologies; they use the public API only."""

from sparkstorm.connectors.file_sinks import FileSink
from sparkstorm.connectors.file_source import Files
from sparkstorm.connectors.files import FileLines, find_files
from sparkstorm.connectors.spark import SparkSink, SparkSource

__all__ = ["FileLines", "FileSink", "Files", "SparkSink", "SparkSource", "find_files"]
