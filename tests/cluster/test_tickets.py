"""One-time tickets on a real ZooKeeper: good for one use, for nobody without them, and gone with
their driver.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from sparkstorm.common.errors import (
    SlotsUnavailableError,
    StoreInconsistentError,
    StoreUnavailableError,
)
from sparkstorm.control_plane.cluster.paths import TICKETS
from sparkstorm.control_plane.cluster.tickets import Ticket, TicketOffice, redeem, seal, unseal
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.extensions.embedded import ZooKeeperServer

SPEC = b'{"hmac_key": "the key of the cluster", "lines": "\\n"}\nand more'
TICKET = Ticket("127.0.0.1:1", "/root", "ab" * 32)


@pytest.fixture
def address(zookeeper_server: ZooKeeperServer, request: pytest.FixtureRequest) -> ZooKeeperAddress:
    user, password = zookeeper_server.identity
    return ZooKeeperAddress(
        zookeeper_server.hosts, f"/tickets-{os.getpid()}-{request.node.name}", user, password, 4_000
    )


@pytest.fixture
def store(address: ZooKeeperAddress) -> Iterator[ZooKeeperStateStore]:
    made = ZooKeeperStateStore(address)
    yield made
    made.close()


@pytest.mark.system
def test_a_ticket_brings_its_spec_once(
    address: ZooKeeperAddress, store: ZooKeeperStateStore
) -> None:
    with TicketOffice(store, address).ticket(SPEC) as ticket:
        assert redeem(ticket) == SPEC
        with pytest.raises(SlotsUnavailableError, match="ticket was used before"):
            redeem(ticket)
        assert store.children(TICKETS) == []


@pytest.mark.system
def test_a_ticket_ends_with_its_job_and_with_its_driver(
    address: ZooKeeperAddress, store: ZooKeeperStateStore
) -> None:
    with TicketOffice(store, address).ticket(SPEC) as unused:
        assert store.children(TICKETS) == [unused.name]
    assert store.children(TICKETS) == []
    driver = ZooKeeperStateStore(address)
    with pytest.raises(StoreUnavailableError), TicketOffice(driver, address).ticket(SPEC) as left:
        driver.close()  # so the node cannot be deleted by hand
    with pytest.raises(SlotsUnavailableError, match="its driver is gone"):
        redeem(left)


@pytest.mark.system
def test_neither_the_node_nor_the_pickled_ticket_holds_a_secret_and_strangers_see_nothing(
    address: ZooKeeperAddress, store: ZooKeeperStateStore
) -> None:
    with TicketOffice(store, address).ticket(SPEC) as ticket:
        path = f"{TICKETS}/{ticket.name}"
        found = store.get(path)
        assert found is not None and b"key of the cluster" not in found.data
        assert address.password is not None
        assert address.password.encode() not in found.data + pickle.dumps(ticket)
        assert ticket.text not in repr(ticket)
        assert ticket.text.encode() not in found.data + path.encode()
        for auth in ([], [("digest", "ticket:guess")], [("digest", f"{address.user}:guess")]):
            stranger = KazooClient(address.hosts, auth_data=auth)
            stranger.start(10)
            for attempt in (stranger.get, stranger.delete, stranger.get_children):
                with pytest.raises(NoAuthError):
                    attempt(address.root + (path if attempt != stranger.get_children else TICKETS))
            stranger.stop()
            stranger.close()
        assert redeem(ticket) == SPEC


def test_a_sealed_spec_opens_with_its_own_ticket_alone() -> None:
    sealed = seal(TICKET, SPEC)
    assert unseal(TICKET, sealed) == SPEC
    for wrong in (
        sealed[:-1] + bytes([sealed[-1] ^ 1]),
        sealed[:40],
        b"",
        bytes([sealed[0] ^ 1]) + sealed[1:],
    ):
        with pytest.raises(StoreInconsistentError, match="sealed spec was changed"):
            unseal(TICKET, wrong)
    with pytest.raises(StoreInconsistentError):
        unseal(replace(TICKET, text="ac" * 32), sealed)


def test_without_zookeeper_the_answer_is_a_sentence_within_the_limit() -> None:
    with pytest.raises(StoreUnavailableError, match=r"ZooKeeper at 127\.0\.0\.1:1 does not answer"):
        redeem(TICKET, limit_s=0.3)
