"""Choice of the primary that a connection is made to: order of the Sentinels and nodes that are
asked, and the newest of the Sentinels' configurations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import TimeoutError as LateError

from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.data_plane.transport.reader import names_of
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.data_plane.transport.servers import opening
from sparkstorm.extensions.embedded import start_redis

PLACES = ("a:1", "b:2", "c:3")
ADDRESS = RedisAddress("a", 1, master="words", sentinels=PLACES)


class Watcher:
    """A Sentinel with that configuration; None: it does not answer."""

    def __init__(self, epoch: int | None, host: str = "") -> None:
        self.epoch, self.host = epoch, host
        self.takes_it_for_dead = False
        self.questions = 0

    def sentinel_masters(self) -> Mapping[str, Mapping[str, Any]]:
        self.questions += 1
        if self.epoch is None:
            raise LateError("it does not answer")
        state = {"ip": self.host, "port": 6379, "config-epoch": self.epoch}
        return {"words": {**state, "is_dead": self.takes_it_for_dead}}

    def close(self) -> None:
        """Do nothing: there is no connection."""


@pytest.fixture
def watchers(monkeypatch: pytest.MonkeyPatch) -> list[Watcher]:
    """Sentinels of the test: their states are not to be had of real ones at will."""
    made: list[Watcher] = []

    class Sentinels:
        def __init__(self, *_: object, **__: object) -> None:
            self.sentinels = made

        def check_master_state(self, state: Mapping[str, Any], _: str) -> bool:
            return not state["is_dead"]

    monkeypatch.setattr(opening, "Sentinel", Sentinels)
    monkeypatch.setattr(opening, "_away", {})
    return made


def test_the_newest_configuration_of_the_sentinels_names_the_primary(
    watchers: list[Watcher],
) -> None:
    watchers += [Watcher(1, "cut-off"), Watcher(2, "promoted"), Watcher(1, "cut-off")]
    assert opening.server_of(ADDRESS, "") == ("promoted", 6379)
    watchers[1].takes_it_for_dead = True
    with pytest.raises(StoreUnavailableError, match="takes it for dead"):
        opening.server_of(ADDRESS, "")


def test_a_sentinel_that_did_not_answer_is_not_waited_for_again_while_others_answer(
    watchers: list[Watcher],
) -> None:
    watchers += [Watcher(None), Watcher(2, "there"), Watcher(2, "there")]
    for _ in range(3):
        assert opening.server_of(ADDRESS, "") == ("there", 6379)
    assert [each.questions for each in watchers] == [1, 3, 3]
    for each in watchers[1:]:
        each.epoch = None
    watchers[0].epoch, watchers[0].host = 3, "again"
    assert opening.server_of(ADDRESS, "") == ("again", 6379)


def test_places_that_did_not_answer_are_asked_last_until_they_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "_away", {})
    opening.note_answer("a:1", has_answered=False)
    assert opening.in_order(PLACES) == [1, 2, 0]
    opening.note_answer("a:1", has_answered=True)
    assert opening.in_order(PLACES) == [0, 1, 2]


@pytest.mark.system
def test_only_a_reading_that_waited_in_vain_asks_whether_the_store_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkstorm.data_plane.transport.reading._BLOCK_MS", 50)
    looks: list[Link] = []

    def noted(link: Link) -> bool:
        looks.append(link)
        return False

    monkeypatch.setattr(Link, "leave_if_moved", noted)
    server = start_redis(tmp_path, password="trial")
    address = RedisAddress(server.host, server.port, server.password)
    transport = RedisTransport(address, "words-1-1")
    try:
        transport.claim("owner", {1: 1, 2: 1})
        for _ in range(20):  # one task has no room: nothing may block
            assert transport.poll({1: "0-0"}, 10) == []
            transport.wait(20)
        assert not looks
        deadline = time.monotonic() + 30
        while not looks and time.monotonic() < deadline:
            assert transport.poll({1: "0-0", 2: "0-0"}, 10) == []
            transport.wait(20)
        assert looks
    finally:
        transport.close()
        server.stop()


@pytest.mark.system
def test_the_names_of_a_server_alone_are_listed_once(tmp_path: Path) -> None:
    server = start_redis(tmp_path, password="trial")
    asked: list[str] = []

    class Counted(Link):
        def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
            asked.extend(str(words[0]) for words in commands)
            return super().ask(*commands)

    link = Counted(RedisAddress(server.host, server.port, server.password), 5.0)
    try:
        assert names_of(link, "{words}") == []
        assert asked.count("SCAN") == 1
    finally:
        link.close()
        server.stop()
