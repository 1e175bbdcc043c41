"""Ready-made sources and sinks for topologies; they use the public API only."""

from sparkstorm.connectors.files import FileLines, find_files

__all__ = ["FileLines", "find_files"]
