"""One-time tickets: they carry a slot's spec, secrets included, to a process that has a random text
only.

Spark keeps what a task is sent (closures) in its block managers, so the closure of a slot carries a
ticket and no secret. The spec lies in an ephemeral node below `<root>/tickets`. The first process
that shows the ticket reads and deletes it. Three values are derived from a ticket's 256 random bits
by HMAC-SHA256: the node's name, the password that may read the node, and the key that seals it.
ZooKeeper, its disk and its network therefore see neither the ticket nor the spec.
"""

import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import ACL, make_digest_acl

from sparkstorm.common.errors import (
    SlotsUnavailableError,
    StoreInconsistentError,
    StoreUnavailableError,
)
from sparkstorm.common.tls import TlsFiles
from sparkstorm.control_plane.cluster.paths import TICKETS
from sparkstorm.control_plane.cluster.zookeeper import QUIET, ZooKeeperAddress, ZooKeeperStateStore

REDEEM_LIMIT_S = 15.0
_USER = "ticket"
_TAG_BYTES = 32


@dataclass(frozen=True, slots=True)
class Ticket:
    """Address of ZooKeeper ("host:port,host:port"), root of the cluster's nodes, 64 random
    hexadecimal digits, files of TLS.
    """

    hosts: str
    root: str
    text: str = field(repr=False)
    tls: TlsFiles | None = None

    def derived(self, purpose: str) -> bytes:
        """32 bytes for one purpose; they reveal nothing of the ticket."""
        return hmac.digest(
            bytes.fromhex(self.text), f"sparkstorm ticket {purpose}".encode(), "sha256"
        )

    @property
    def name(self) -> str:
        """Name of the ticket's node."""
        return self.derived("name").hex()

    @property
    def password(self) -> str:
        """Password of the digest identity that may read the node."""
        return self.derived("access").hex()


class TicketOffice:
    """The driver's side: makes tickets in its own ZooKeeper session, with which unused ones end."""

    def __init__(self, store: ZooKeeperStateStore, address: ZooKeeperAddress) -> None:
        self._store = store
        self._address = address

    @contextlib.contextmanager
    def ticket(self, spec: bytes) -> Iterator[Ticket]:
        """A ticket for that spec, good until it is used or the context ends. StoreUnavailableError
        without ZooKeeper.
        """
        address = self._address
        ticket = Ticket(address.hosts, address.root, secrets.token_hex(32), address.tls)
        # what a slot needs to delete the node
        credential = f"{address.user or ''}:{address.password or ''}\n".encode()
        acl = _acl(address, make_digest_acl(_USER, ticket.password, read=True))
        self._store.ensure_hidden(TICKETS)
        self._store.create_ephemeral(
            f"{TICKETS}/{ticket.name}", seal(ticket, credential + spec), acl
        )
        try:
            yield ticket
        finally:
            self._store.delete(f"{TICKETS}/{ticket.name}")


def _acl(address: ZooKeeperAddress, reader: ACL) -> list[ACL] | None:
    """Return the ACL of a ticket's node: all rights for the cluster's identity, read for the
    ticket's; None without passwords.
    """
    return (
        [make_digest_acl(address.user, address.password, all=True), reader]
        if address.user and address.password
        else None
    )


def redeem(ticket: Ticket, limit_s: float = REDEEM_LIMIT_S) -> bytes:
    """Use a ticket up and return its spec.

    Raises SlotsUnavailableError when it was used, or has ended with the driver's session;
    StoreInconsistentError when the node is not what its driver wrote; StoreUnavailableError when
    ZooKeeper does not answer within `limit_s`.
    """
    auth = [("digest", f"{_USER}:{ticket.password}")]
    tls = ticket.tls.for_kazoo() if ticket.tls else {}
    client = KazooClient(ticket.hosts, timeout=limit_s, auth_data=auth, logger=QUIET, **tls)
    path = f"{ticket.root.rstrip('/')}{TICKETS}/{ticket.name}"
    try:
        client.start(limit_s)
        credential, _, spec = unseal(
            ticket, bytes(client.get_async(path).get(timeout=limit_s)[0])
        ).partition(b"\n")
        if credential != b":":
            client.add_auth("digest", credential.decode())
        # of two that have read it one deletes it, and the other fails
        client.delete_async(path).get(timeout=limit_s)
        return spec
    except (NoNodeError, NoAuthError) as fault:
        raise SlotsUnavailableError(
            "this slot's ticket was used before, or its driver is gone"
        ) from fault
    except (KazooTimeoutError, KazooException) as fault:
        raise StoreUnavailableError(
            f"ZooKeeper at {ticket.hosts} does not answer ({type(fault).__name__})"
        ) from fault
    finally:
        client.stop()
        client.close()


def seal(ticket: Ticket, plain: bytes) -> bytes:
    """Encrypt and authenticate with keys that serve this one text: SHAKE-256 as key stream, then
    HMAC-SHA256.
    """
    body = _masked(ticket, plain)
    return hmac.digest(ticket.derived("tag"), body, "sha256") + body


def unseal(ticket: Ticket, sealed: bytes) -> bytes:
    """The inverse of `seal`; StoreInconsistentError when one bit differs."""
    tag = sealed[:_TAG_BYTES]
    body = sealed[_TAG_BYTES:]
    if not hmac.compare_digest(tag, hmac.digest(ticket.derived("tag"), body, "sha256")):
        raise StoreInconsistentError(f"{TICKETS}/{ticket.name}: the sealed spec was changed")
    return _masked(ticket, body)


def _masked(ticket: Ticket, data: bytes) -> bytes:
    stream = hashlib.shake_256(ticket.derived("stream")).digest(len(data))
    return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(len(data))
