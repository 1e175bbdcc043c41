"""Levels of a worker's loggers: INFO, until others are set from outside; they hold until they are
asked for no longer.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparkstorm.data_plane.worker import loop
from sparkstorm.data_plane.worker.loop import LogLevels


@contextmanager
def levels_of_a_worker() -> Iterator[LogLevels]:
    """Give the root logger no handler: pytest adds some to it."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    root.handlers.clear()
    levels = LogLevels()
    try:
        yield levels
    finally:
        levels.close()
        root.handlers[:] = handlers


def test_levels_are_set_and_put_back() -> None:
    with levels_of_a_worker() as levels:
        mine = logging.getLogger("tests.mine")
        mine.setLevel(logging.ERROR)
        levels.apply({"tests.mine": "DEBUG", "": "WARNING"})
        levels.apply({"tests.mine": "INFO", "": "WARNING"})
        assert (mine.level, logging.getLogger().level) == (logging.INFO, logging.WARNING)
        levels.apply({})
        assert (mine.level, logging.getLogger().level) == (logging.ERROR, logging.INFO)
        mine.setLevel(logging.NOTSET)


def test_a_worker_prints_info_and_what_else_it_is_asked_for(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with levels_of_a_worker() as levels:
        mine = logging.getLogger("tests.mine")
        mine.info("seen")
        mine.debug("not asked for")
        levels.apply({"tests.mine": "DEBUG"})
        mine.debug("asked for")
        assert capfd.readouterr().err == "INFO tests.mine: seen\nDEBUG tests.mine: asked for\n"


def test_handlers_of_user_code_take_the_place_of_the_workers(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with levels_of_a_worker():
        logging.basicConfig(format="mine: %(message)s", level=logging.WARNING)
        logging.getLogger("tests.mine").info("not wanted")
        logging.getLogger("tests.mine").warning("seen")
        assert capfd.readouterr().err == "mine: seen\n"


def test_a_line_for_each_tuple_is_bounded_until_an_operator_asks_for_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with levels_of_a_worker() as levels:

        def log(count: int) -> list[str]:
            for number in range(count):
                record = mine.makeRecord(mine.name, logging.INFO, "", 0, "%d", (number,), None)
                record.created = 1_000.5
                mine.handle(record)
            return capfd.readouterr().err.splitlines()

        mine, most = logging.getLogger("tests.mine"), loop._LINES_A_SECOND
        lines = log(5 * most)
        assert len(lines) == most + 1 and "the rest is left out" in lines[-1]
        mine.warning("seen")
        assert capfd.readouterr().err == "WARNING tests.mine: seen\n"
        levels.apply({"tests.mine": "INFO"})
        assert len(log(5 * most)) == 5 * most
