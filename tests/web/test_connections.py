"""Connections of the web server: one for what is read, one for each action, and no more than there
may be.
"""

from __future__ import annotations

import queue
import threading
from typing import Any, cast

import pytest

from sparkstorm.client import ClusterClient
from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.web.commands import _MOST_ACTING, _MOST_READING, Connections


class Opened:
    """A connection that is counted."""

    made: list[Opened]

    def __init__(self, made: list[Opened]) -> None:
        self.is_open = True
        made.append(self)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self.is_open = False


def connections() -> tuple[Connections, list[Opened]]:
    made: list[Opened] = []
    return Connections(lambda: cast(ClusterClient, Opened(made))), made


def test_reads_share_one_connection_and_actions_have_their_own() -> None:
    at, made = connections()
    assert at.read(id) == at.read(id) and len(made) == 1
    assert at.act(id) != at.read(id)
    assert [each.is_open for each in made] == [True, False]
    at.close()
    assert not made[0].is_open


def test_no_more_actions_are_under_way_than_there_may_be() -> None:
    at, made = connections()

    def deeper(left: int) -> None:
        at.act(lambda _: deeper(left - 1) if left else None)

    deeper(_MOST_ACTING - 1)
    with pytest.raises(StoreUnavailableError, match="4 actions are under way already"):
        deeper(_MOST_ACTING)
    assert len(made) == 2 * _MOST_ACTING and not any(each.is_open for each in made)


def test_a_store_that_hangs_takes_a_bounded_number_of_threads() -> None:
    at, made = connections()
    going_on, refused, done = threading.Event(), queue.Queue[str](), queue.Queue[str]()

    def ask() -> None:
        try:
            at.read(lambda _: going_on.wait())
        except StoreUnavailableError as error:
            refused.put(str(error))
        else:
            done.put("")

    threads = [threading.Thread(target=ask) for _ in range(_MOST_READING + 3)]
    for thread in threads:
        thread.start()
    sentences = {refused.get(timeout=10) for _ in range(3)}  # at once, while the others wait
    going_on.set()
    for thread in threads:
        thread.join()
    assert sentences == {"8 questions wait for the stores already: try again in a moment"}
    assert done.qsize() == _MOST_READING and len(made) == 1
