"""Envelope of signed records: a header line with the signature, then the record's JSON (deflated
when large).

Laws: the key is derived from the cluster's for records alone, and the signature covers the header,
the path and the body, so a record cannot be moved to another node; it is checked before the body is
opened; a body never unfolds beyond a fixed size.
"""

import hmac
import zlib

from sparkstorm.common.errors import StoreInconsistentError, TamperedBlobError

FAMILY = b"sparkstorm-"
VERSION = 2
_MAGIC = b"%s%d" % (FAMILY, VERSION)
_PLAIN = b"json"
_DEFLATED = b"zlib"
# ZooKeeper takes nodes up to 1 MiB: a large assignment is a few of those as text and a tenth of
# that deflated.
_DEFLATE_ABOVE_BYTES = 100_000
_MAX_BODY_BYTES = 64 * 1024 * 1024


def seal(path: str, body: bytes, key: bytes | None) -> bytes:
    """Wrap a record for its path; without a key it is marked as unsigned."""
    form, packed = (
        (_DEFLATED, zlib.compress(body, 6)) if len(body) > _DEFLATE_ABOVE_BYTES else (_PLAIN, body)
    )
    return b" ".join((_MAGIC, form, _signature(path, form, packed, key))) + b"\n" + packed


def unseal(path: str, sealed: bytes, key: bytes | None) -> bytes:
    """Check and unwrap; TamperedBlobError when the signature is not this cluster's. Without a key
    none is asked for.
    """
    header, _, packed = sealed.partition(b"\n")
    parts = header.split(b" ")
    if parts[0] != _MAGIC and parts[0].startswith(FAMILY):
        raise StoreInconsistentError(
            f"{path}: the record has the format {parts[0][:24]!r} of another version of SparkStorm; this one reads {_MAGIC!r}: "
            "end its topologies with that version, and start on an empty storm.zookeeper.root"
        )
    if len(parts) != 3 or parts[0] != _MAGIC or parts[1] not in (_PLAIN, _DEFLATED):
        raise StoreInconsistentError(
            f"{path}: not a record of SparkStorm (it begins with {sealed[:24]!r})"
        )
    if key is not None and not hmac.compare_digest(
        parts[2], _signature(path, parts[1], packed, key)
    ):
        raise TamperedBlobError(
            f"{path}: the record does not carry this cluster's signature; it was not opened"
        )
    return _inflate(path, packed) if parts[1] == _DEFLATED else packed


def _signature(path: str, form: bytes, packed: bytes, key: bytes | None) -> bytes:
    if key is None:
        return b"unsigned"
    own = hmac.digest(key, b"sparkstorm record", "sha256")
    head = b" ".join((_MAGIC, form, path.encode())) + b"\0"
    return hmac.digest(own, head + packed, "sha256").hex().encode()


def _inflate(path: str, packed: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(packed, _MAX_BODY_BYTES)
    except zlib.error as error:
        raise StoreInconsistentError(f"{path}: the record cannot be inflated ({error})") from error
    if not inflater.eof:
        raise StoreInconsistentError(
            f"{path}: the record is cut short or larger than {_MAX_BODY_BYTES} bytes"
        )
    return body
