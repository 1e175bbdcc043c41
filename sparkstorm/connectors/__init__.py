"""Ready-made spouts for user topologies."""

from sparkstorm.connectors.files import FileLines, find_files

__all__ = ["FileLines", "find_files"]
