"""Checks blobs over the dict twin and over a real Redis: addresses, signatures, chunks, damage."""

import hmac
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sparkstorm.common.errors import (
    ReadOnlyConnectionError,
    StoreInconsistentError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import BlobMetadata
from sparkstorm.control_plane.blobs import store as blob_module
from sparkstorm.control_plane.blobs.base import BytesStore
from sparkstorm.control_plane.blobs.local import LocalBytesStore
from sparkstorm.control_plane.blobs.redis import RedisBytesStore
from sparkstorm.control_plane.blobs.store import BlobKind, BlobStore, blob_key
from sparkstorm.control_plane.cluster.envelope import seal, unseal
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.data_plane.transport.servers.opening import AccessRefusedError

KEY = b"k" * 32
LARGE = bytes(range(256)) * 40_000  # three chunks


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.system)])
def bytes_store(request: pytest.FixtureRequest) -> Iterator[BytesStore]:
    if request.param == "local":
        yield LocalBytesStore()
        return
    server: Any = request.getfixturevalue("redis_server")
    store = RedisBytesStore(Link(server.address, 10), f"test:{request.node.name}:")
    yield store
    store.close()


@pytest.fixture
def state() -> StormState:
    return StormState(LocalStateStore(), KEY)


@pytest.fixture
def blobs(state: StormState, bytes_store: BytesStore) -> BlobStore:
    return BlobStore(state, bytes_store, KEY)


@pytest.mark.parametrize("data", [b"", b"x", LARGE], ids=["empty", "small", "chunks"])
def test_a_blob_is_read_as_it_was_put_under_its_own_address(blobs: BlobStore, data: bytes) -> None:
    key = blobs.put(data, 5)
    assert key == blob_key(data)
    assert blobs.put(data, 6) == key
    assert blobs.get(key) == data


def test_deleting_leaves_neither_metadata_nor_chunks(
    blobs: BlobStore, bytes_store: BytesStore, state: StormState
) -> None:
    key = blobs.put(LARGE, 5)
    assert len(bytes_store.list_keys()) == -(-len(LARGE) // blob_module.CHUNK_BYTES)
    blobs.delete(key)
    blobs.delete(key)
    assert bytes_store.list_keys() == []
    assert state.blob_keys() == []
    with pytest.raises(StoreInconsistentError, match=key):
        blobs.get(key)


def test_changed_bytes_are_not_handed_out(blobs: BlobStore, bytes_store: BytesStore) -> None:
    key = blobs.put(b"honest", 5)
    bytes_store.put(f"{key}:0", b"forged")
    with pytest.raises(TamperedBlobError, match=key):
        blobs.get(key)


def test_a_blob_signed_with_another_key_is_not_handed_out(
    state: StormState, bytes_store: BytesStore
) -> None:
    key = BlobStore(state, bytes_store, b"stranger").put(b"code", 5)
    with pytest.raises(TamperedBlobError, match="signature"):
        BlobStore(state, bytes_store, KEY).get(key)


def test_a_signed_blob_under_a_false_address_is_not_handed_out(blobs: BlobStore) -> None:
    with pytest.raises(TamperedBlobError, match="address"):
        blobs.check("0" * 64, b"code", blobs.sign(b"code"))


def test_a_missing_chunk_is_named(blobs: BlobStore, bytes_store: BytesStore) -> None:
    key = blobs.put(LARGE, 5)
    bytes_store.delete(f"{key}:1")
    sentence = "chunk 2 of 3 is missing: Redis has lost it; kill what uses it"
    with pytest.raises(StoreInconsistentError, match=sentence):
        blobs.get(key)


def test_only_chunks_that_no_metadata_names_are_stray(
    blobs: BlobStore, bytes_store: BytesStore
) -> None:
    key = blobs.put(b"kept", 5)
    bytes_store.put("f00:0", b"left over")
    assert blobs.stray_chunks() == {"f00:0"}
    blobs.delete_chunks({"f00:0"})
    assert blobs.stray_chunks() == set() and blobs.get(key) == b"kept"


@pytest.mark.system
def test_a_wrong_password_is_no_absence_of_redis(redis_server: Any) -> None:
    store = RedisBytesStore(Link(replace(redis_server.address, password="wrong"), 10))
    sentence = "Redis refuses the password and did not store blob chunk a"
    with pytest.raises(AccessRefusedError, match=sentence):
        store.put("a", b"1")


@pytest.mark.parametrize("data", [b"x", LARGE], ids=["small", "chunks"])
def test_bytes_that_the_store_has_lost_are_put_again(
    blobs: BlobStore, bytes_store: BytesStore, data: bytes
) -> None:
    key = blobs.put(data, 5)
    for lose_all in (True, False):
        for chunk in bytes_store.list_keys()[0 if lose_all else -1 :]:
            bytes_store.delete(chunk)
        assert blobs.put(data, 6) == key
        assert blobs.get(key) == data
    bytes_store.delete(bytes_store.list_keys()[-1])
    with pytest.raises(TamperedBlobError):
        blobs.repair(key, data + b"!")
    blobs.repair(key, data)
    assert blobs.get(key) == data


def test_bytes_that_were_signed_as_one_kind_are_not_handed_out_as_another(
    state: StormState, bytes_store: BytesStore
) -> None:
    blobs = BlobStore(state, bytes_store, KEY)
    for kind in BlobKind:
        key = blobs.put(f"bytes of {kind}".encode(), 5, kind)
        for other in BlobKind:
            if other is kind:
                assert blobs.get(key, kind) == f"bytes of {kind}".encode()
            else:
                with pytest.raises(TamperedBlobError, match=f"signature of {other}"):
                    blobs.get(key, other)


def test_a_file_of_a_client_with_the_right_bytes_has_no_signature_of_a_record(
    blobs: BlobStore, state: StormState
) -> None:
    body = b'{"a record":"that Nimbus never wrote"}'
    sealed = seal("/a", body, KEY)
    head, signature = sealed.partition(b"\n")[0].rsplit(b" ", 1)
    for file in (b"/a\0" + body, head + b" /a\0" + body, body, sealed):
        metadata = state.read_blob_metadata(blobs.put(file, 5, BlobKind.NAMED))
        assert metadata and metadata.signature != signature.decode()
        forged = head + b" " + metadata.signature.encode() + b"\n" + body
        with pytest.raises(TamperedBlobError, match="/a"):
            unseal("/a", forged, KEY)


def test_bytes_that_a_topology_uses_stay_readable_when_a_client_stores_them_as_a_file(
    blobs: BlobStore,
) -> None:
    key = blobs.put(b"code", 5)
    with pytest.raises(TamperedBlobError, match="kept as code already, and cannot be named blob"):
        blobs.put(b"code", 6, BlobKind.NAMED)
    assert blobs.get(key) == b"code"


@pytest.mark.parametrize("key", [None, b""])
def test_without_a_key_nothing_is_opened_that_is_signed_with_the_empty_one(
    state: StormState, bytes_store: BytesStore, key: bytes | None
) -> None:
    code = b"code of a stranger"
    address = blob_key(code)
    bytes_store.put(f"{address}:0", code)
    for signature in (hmac.new(b"", code, "sha256").hexdigest(), "", "unsigned"):
        state.write_blob_metadata(BlobMetadata(address, len(code), 1, 0, signature))
        with pytest.raises(ReadOnlyConnectionError, match="no key to check a blob with"):
            BlobStore(state, bytes_store, key).get(address)
