"""Log levels set from outside: they hold until they are asked for no longer, then loggers are as
they were.
"""

import logging
from collections.abc import Iterator

import pytest

from sparkstorm.worker.loop import LogLevels


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


def test_levels_are_set_and_put_back() -> None:
    mine, levels = logging.getLogger("tests.mine"), LogLevels()
    mine.setLevel(logging.ERROR)
    levels.apply({"tests.mine": "DEBUG", "": "INFO"})
    levels.apply({"tests.mine": "INFO", "": "INFO"})
    assert (mine.level, logging.getLogger().level) == (logging.INFO, logging.INFO)
    levels.apply({})
    assert (mine.level, logging.getLogger().level) == (logging.ERROR, logging.WARNING)


def test_a_worker_without_handlers_prints_what_it_is_asked_for(
    capfd: pytest.CaptureFixture[str],
) -> None:
    logging.getLogger().handlers.clear()
    LogLevels().apply({"tests.mine": "DEBUG"})
    logging.getLogger("tests.mine").debug("seen")
    logging.getLogger("tests.other").info("not asked for")
    assert capfd.readouterr().err == "DEBUG tests.mine: seen\n"
