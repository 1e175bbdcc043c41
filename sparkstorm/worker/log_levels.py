"""Log levels that an operator sets in a running worker: by logger, put back when they are no longer asked for."""

from __future__ import annotations

import logging
from collections.abc import Mapping


class LogLevels:
    """Levels of this process's loggers that are set from outside."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def apply(self, level_by_logger: Mapping[str, str]) -> None:
        """Set these levels, and put loggers that are not among them back to what they were ("" is the root logger)."""
        if level_by_logger and not logging.getLogger().handlers:
            # Without a handler Python prints warnings and errors only, whatever the level.
            logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.getLogger().level)
        for name in [each for each in self._before if each not in level_by_logger]:
            logging.getLogger(name).setLevel(self._before.pop(name))
        for name, level in level_by_logger.items():
            logger = logging.getLogger(name)
            self._before.setdefault(name, logger.level)
            logger.setLevel(level)
