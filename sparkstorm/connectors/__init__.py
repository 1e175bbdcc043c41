"""Owns ready-made sources and sinks that user topologies may use; they know the API only."""

from sparkstorm.connectors.files import FileLines, find_files

__all__ = ["FileLines", "find_files"]
