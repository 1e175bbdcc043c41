"""Bytes of Arrow columns in a frame: a type of a closed set and its buffers, without Arrow's own
messages.

Laws: what is read is checked in full (sizes of buffers, offsets, UTF-8) before it is used; nothing
is decompressed, so a frame never takes more memory than it has bytes. Arrow is imported where the
first batch is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from sparkstorm.errors import MalformedFrameError

# Arrow's IPC format would carry every type. It is left out because a reader of it follows offsets
# and dictionaries that the sender chose, and decompresses: a frame of hostile bytes could then take
# memory without limit. These six types have few buffers, which are checked in full; columns of
# other types travel as rows and come out the same.
_BUFFERS = {"null": 1, "bool": 2, "int64": 2, "double": 2, "string": 3, "binary": 3}
"""Number of buffers by type: columns of these types travel as they are, all others as rows."""


# Arrow is slow to import, and the workers of most topologies meet no batch.
@cache
def _kinds() -> dict[str, Any]:
    import pyarrow as pa

    kinds = (pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.binary())
    return dict(zip(_BUFFERS, kinds, strict=True))


def plain_batch(batch: Any, fields: Sequence[str]) -> Any:
    """Return a batch with columns of the closed set under these names; None when a column has no
    place there.

    ArrowInvalid (a ValueError) for damaged columns.
    """
    import pyarrow as pa

    columns = [_plain(column) for column in batch.columns]
    if not columns or any(column is None for column in columns):
        return None
    found = pa.RecordBatch.from_arrays(columns, list(fields))
    found.validate(full=True)  # else the receiver would refuse the whole block
    return found


def _plain(column: Any) -> Any:
    import pyarrow as pa

    kind = column.type
    # Sent as it is, a dictionary of a million texts would travel with every slice of ten rows.
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if str(kind) in _BUFFERS:
        return column
    for is_kind, wanted in (
        (pa.types.is_integer, pa.int64()),
        (pa.types.is_floating, pa.float64()),
        (pa.types.is_large_string, pa.string()),
        (pa.types.is_large_binary, pa.binary()),
    ):
        if is_kind(kind):
            try:
                return column.cast(wanted)
            # Not an error: such values travel as rows, whose codec has numbers of any size.
            except pa.ArrowInvalid:  # whole numbers above 63 bits, or text above 2 GB
                return None
    return None


def pack_columns(batch: Any) -> list[list[Any]]:
    """Return [type, buffers] of each column."""
    return [_packed(column) for column in batch.columns]


def _packed(column: Any) -> list[Any]:
    import pyarrow as pa

    # concat_arrays copies the slice alone: 17 us for 65,000 rows, where taking the rows one by one
    # took 3 ms.
    if column.offset or (len(column.buffers()) > 1 and column.nbytes < _held_bytes(column)):
        column = pa.concat_arrays([column])  # a slice: its buffers are those of the whole
    buffers = [None if buffer is None else buffer.to_pybytes() for buffer in column.buffers()]
    return [str(column.type), buffers]


def _held_bytes(column: Any) -> int:
    return sum(int(buffer.size) for buffer in column.buffers() if buffer is not None) // 2


def unpack_columns(packed: Any, count: int, fields: Sequence[str] | None = None) -> Any:
    """Return the checked batch of so many rows; MalformedFrameError or ValueError when it is
    none.
    """
    import pyarrow as pa

    if type(packed) is not list or not packed:
        raise MalformedFrameError("columns of a batch are not a list")
    arrays = [_unpacked(column, count) for column in packed]
    return pa.RecordBatch.from_arrays(arrays, list(fields or map(str, range(len(arrays)))))


def _unpacked(column: Any, count: int) -> Any:
    import pyarrow as pa

    if (
        type(column) is not list
        or len(column) != 2
        or type(column[0]) is not str
        or type(column[1]) is not list
    ):
        raise MalformedFrameError("a column of a batch is not a type and its buffers")
    name, buffers = column
    if len(buffers) != _BUFFERS.get(name):
        raise MalformedFrameError(f"a column of type {name!r:.40} with {len(buffers)} buffers")
    if any(type(buffer) is not bytes and buffer is not None for buffer in buffers):
        raise MalformedFrameError("a buffer of a column is not bytes")
    # Arrow's format lets the first buffer alone be missing, the one that says which values are
    # null.
    if any(buffer is None for buffer in buffers[1:]):
        raise MalformedFrameError("a column without values")
    made = pa.Array.from_buffers(
        _kinds()[name], count, [None if b is None else pa.py_buffer(b) for b in buffers]
    )
    # In full: the cheap check looks at lengths only, and offsets out of order or text that is no
    # UTF-8 would end the process later, in user code.
    made.validate(full=True)
    return made
