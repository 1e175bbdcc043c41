"""Blob store: immutable bytes under their own sha256, signed, cut into chunks.

Laws: read after write; a key never changes its bytes; the signature is checked against the
cluster's key and the bytes against their address before they may be opened; bytes that were signed
as one kind are never handed out as another; metadata is written last and removed first, so a blob
that can be seen is whole.
"""

import contextlib
import hashlib
import hmac
from collections.abc import Iterable
from enum import StrEnum

from sparkstorm.common.errors import (
    ReadOnlyConnectionError,
    StoreInconsistentError,
    StoreUnavailableError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import BlobMetadata
from sparkstorm.control_plane.blobs.base import BytesStore
from sparkstorm.control_plane.cluster.storm_state import StormState

CHUNK_BYTES = 4 * 1024 * 1024
MAX_BLOB_BYTES = 2 * 1024**3


class BlobKind(StrEnum):
    """Kind of a blob, which has its own key: nothing that was signed as a file of a client
    passes for code.
    """

    CODE = "code"
    CONF = "configuration"
    OUTLINE = "outline"
    NAMED = "named blob"


class BlobStore:
    """Blobs of one cluster; `key` is the cluster's secret that signs them. Without one (None) no
    blob is read or written.
    """

    def __init__(self, state: StormState, bytes_store: BytesStore, key: bytes | None) -> None:
        self._state = state
        self._bytes = bytes_store
        self._secret = key

    def put(self, data: bytes, now_ms: int, kind: BlobKind = BlobKind.CODE) -> str:
        """Store bytes and return their key; the same bytes have one key, are stored once, and count
        as new again. TamperedBlobError when they are there as another kind.
        """
        if len(data) > MAX_BLOB_BYTES:
            raise ValueError(
                f"a blob of {len(data)} bytes is larger than the limit of {MAX_BLOB_BYTES}"
            )
        key = blob_key(data)
        chunks = [
            data[offset : offset + CHUNK_BYTES] for offset in range(0, len(data), CHUNK_BYTES)
        ]
        metadata = BlobMetadata(key, len(data), len(chunks), now_ms, self.sign(data, kind))
        former = self._state.read_blob_metadata(key)
        if former is not None:
            self._require_kind(former, data, kind)
        if former is not None and self._is_whole(metadata):
            self._state.write_blob_metadata(metadata)
            return key
        try:
            for number, chunk in enumerate(chunks):
                self._bytes.put(_chunk_key(key, number), chunk)
            self._state.write_blob_metadata(metadata)
        except BaseException:
            self._discard(metadata)
            raise
        return key

    def _require_kind(self, former: BlobMetadata, data: bytes, kind: BlobKind) -> None:
        """Refuse bytes that another kind uses: it could not be read under a new signature."""
        for other in BlobKind:
            if other is not kind and former.signature == self.sign(data, other):
                raise TamperedBlobError(
                    f"blob {former.key} is kept as {other} already, and cannot be {kind} too: change the {kind}"
                )

    def _discard(self, metadata: BlobMetadata) -> None:
        """Delete what a broken-off put left, as far as the stores allow; a sweep finds the rest."""
        with contextlib.suppress(StoreUnavailableError):
            self._remove(metadata)

    def repair(self, key: str, data: bytes, kind: BlobKind = BlobKind.CODE) -> None:
        """Put the bytes of a blob back whose chunks the bytes store has lost; TamperedBlobError
        when they are not its own.
        """
        metadata = self._state.read_blob_metadata(key)
        if metadata is None or self._is_whole(metadata):
            return
        self.check(key, data, metadata.signature, kind)
        for number in range(metadata.chunks):
            self._bytes.put(
                _chunk_key(key, number), data[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]
            )

    def _is_whole(self, metadata: BlobMetadata) -> bool:
        return all(
            self._bytes.has(_chunk_key(metadata.key, number)) for number in range(metadata.chunks)
        )

    def has(self, key: str) -> bool:
        """Return whether the blob is there."""
        return self._state.read_blob_metadata(key) is not None

    def get(self, key: str, kind: BlobKind = BlobKind.CODE) -> bytes:
        """The bytes, checked; StoreInconsistentError when some lack, TamperedBlobError when they
        are not ours.
        """
        metadata = self._state.read_blob_metadata(key)
        if metadata is None:
            raise StoreInconsistentError(f"blob {key}: there is no such blob")
        data = self._join(metadata)
        self.check(key, data, metadata.signature, kind)
        return data

    def _join(self, metadata: BlobMetadata) -> bytes:
        parts = []
        size = metadata.size_bytes
        chunks = metadata.chunks
        if not 0 <= size <= MAX_BLOB_BYTES or not 0 <= chunks <= size:
            raise StoreInconsistentError(f"blob {metadata.key}: {size} bytes in {chunks} chunks")
        for number in range(metadata.chunks):
            part = self._bytes.get(_chunk_key(metadata.key, number))
            if part is None:
                raise StoreInconsistentError(
                    f"blob {metadata.key}: chunk {number + 1} of {metadata.chunks} is missing: Redis "
                    "has lost it; kill what uses it, and submit it again"
                )
            parts.append(part)
        return b"".join(parts)

    def wait_copies(self, wanted: int, timeout_ms: int) -> int:
        """Wait until the chunks put so far are in that many copies; return the number reached in
        time.
        """
        return self._bytes.wait_copies(wanted, timeout_ms)

    def sign(self, data: bytes, kind: BlobKind = BlobKind.CODE) -> str:
        """The signature of bytes under this cluster's key for their kind."""
        if not self._secret:
            raise ReadOnlyConnectionError(
                "this connection has no key to check a blob with, so none is opened: use the cluster's connection.json"
            )
        own = hmac.digest(self._secret, f"sparkstorm blob {kind}".encode(), "sha256")
        return hmac.new(own, data, hashlib.sha256).hexdigest()

    def check(self, key: str, data: bytes, signature: str, kind: BlobKind = BlobKind.CODE) -> None:
        """Raise TamperedBlobError unless bytes, address and signature belong together; also for
        copies on a disk.
        """
        if not hmac.compare_digest(self.sign(data, kind).encode(), signature.encode()):
            raise TamperedBlobError(
                f"blob {key} does not carry this cluster's signature of {kind}; it was not opened"
            )
        if blob_key(data) != key:
            raise TamperedBlobError(
                f"blob {key} holds other bytes than its address says; it was not opened"
            )

    def stray_chunks(self) -> set[str]:
        """Return the keys of chunks without metadata: of a put under way, or left by a put or
        delete that was cut.
        """
        chunks = self._bytes.list_keys()
        known_keys = set(self._state.blob_keys())
        return {key for key in chunks if key.partition(":")[0] not in known_keys}

    def delete_chunks(self, keys: Iterable[str]) -> None:
        """Delete chunks that belong to no blob."""
        for key in keys:
            self._bytes.delete(key)

    def delete(self, key: str) -> None:
        """Delete a blob; absent is fine."""
        metadata = self._state.read_blob_metadata(key)
        if metadata is not None:
            self._remove(metadata)

    def _remove(self, metadata: BlobMetadata) -> None:
        self._state.remove_blob_metadata(metadata.key)
        for number in range(metadata.chunks):
            self._bytes.delete(_chunk_key(metadata.key, number))


def blob_key(data: bytes) -> str:
    """The address of bytes: sha256 in hex."""
    return hashlib.sha256(data).hexdigest()


def _chunk_key(key: str, number: int) -> str:
    return f"{key}:{number}"
