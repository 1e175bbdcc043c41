"""First snapshot of an embedded ZooKeeper: an empty tree in which one identity alone has rights.

A server without data would begin with a root that is open to the world, and any process on the host
could fill it before a client of ours had changed that. The format is ZooKeeper's own (FileSnap,
DataTree.serialize; big-endian Jute records).
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

OWN_PATHS: Final = ("/", "/zookeeper", "/zookeeper/quota")
_HEADER = b"ZKSN" + struct.pack(">iq", 2, -1)  # magic, version, database id
_ACL_ID = 1


def first_snapshot(perms: int, scheme: str, identity: str) -> bytes:
    """Bytes of `snapshot.0`: the nodes that every server has, each with that one ACL entry."""
    acls = struct.pack(">iqii", 1, _ACL_ID, 1, perms) + _text(scheme) + _text(identity)
    nodes = b"".join(_text(path.rstrip("/")) + _empty_node() for path in OWN_PATHS)
    # no sessions; "/" ends the nodes
    body = _HEADER + struct.pack(">i", 0) + acls + nodes + _text("/")
    return body + struct.pack(">q", zlib.adler32(body)) + _text("/")


def _empty_node() -> bytes:
    """A node's data, ACL and persisted stat: four transaction ids and times, three versions, owner,
    last child's id.
    """
    return struct.pack(">iqqqqqiiiqq", 0, _ACL_ID, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">i", len(data)) + data
