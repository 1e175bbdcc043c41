"""Bytes of Arrow columns in a frame: a type of a closed set and its buffers, without Arrow's own
messages.

Laws: what is read is checked in full (sizes of buffers, offsets, UTF-8) before it is used; nothing
is decompressed, so a frame never takes more memory than it has bytes. Arrow is imported where the
first batch is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from functools import lru_cache
from typing import Any

from sparkstorm.api.value_columns import zone_of
from sparkstorm.common.errors import CodecError, MalformedFrameError

# Arrow's IPC format would carry every type. It is left out because a reader of it follows offsets
# and dictionaries that the sender chose, and decompresses: a frame of hostile bytes could then take
# memory without limit. These types have few buffers, which are checked in full; columns of other
# types travel as rows and come out the same. As rows, decimals cost q1 of Nexmark ten times as much.
_BUFFERS = {
    "null": 1, "bool": 2, "int64": 2, "double": 2, "string": 3, "binary": 3, "date32[day]": 2,
}  # fmt: skip
"""Number of buffers by type: columns of these types, decimals and times with a zone travel as they
are, all others as rows.
"""
_BUFFERS_OF_OTHERS = 2
_DECIMAL = re.compile(r"decimal128\(([1-9][0-9]?), ([0-9]{1,2})\)")
_TIME = re.compile(r"timestamp\[us, tz=([A-Za-z][A-Za-z0-9_+/-]{0,63}|[+-][0-9]{2}:[0-9]{2})\]")
_MOST_DIGITS = 38
# A day less than Python's years 1 to 9999 at both ends: a zone moves a time by less than a day.
_FIRST_DAY = date(1, 1, 2).toordinal() - date(1970, 1, 1).toordinal()
_LAST_DAY = date(9999, 12, 30).toordinal() - date(1970, 1, 1).toordinal()
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


# A name comes from another process too: of a few hundred zones and decimals, not without an end.
@lru_cache(maxsize=256)
def _kind(name: str) -> Any:
    """Return the type of this name; None when columns of it travel as rows."""
    # Arrow is slow to import, and the workers of most topologies meet no batch.
    import pyarrow as pa

    if name in _BUFFERS:
        return pa.type_for_alias(name)
    if match := _DECIMAL.fullmatch(name):
        digits, scale = map(int, match.groups())
        return pa.decimal128(digits, scale) if scale <= digits <= _MOST_DIGITS else None
    if match := _TIME.fullmatch(name):
        try:
            zone_of(match[1])
        except CodecError:
            return None
        return pa.timestamp("us", match[1])
    return None


def plain_batch(batch: Any, fields: Sequence[str]) -> Any:
    """Return a batch with columns of the closed set under these names; None when a column has no
    place there.

    ArrowInvalid (a ValueError) for damaged columns.
    """
    import pyarrow as pa

    columns = [_plain(column) for column in batch.columns]
    if not columns or any(column is None for column in columns):
        return None
    plain = pa.RecordBatch.from_arrays(columns, list(fields))
    plain.validate(full=True)  # else the receiver would refuse the whole block
    return plain


def _plain(column: Any) -> Any:
    import pyarrow as pa

    kind = column.type
    # Sent as it is, a dictionary of a million texts would travel with every slice of ten rows.
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if _kind(str(kind)) is not None:
        return column if _is_in_calendar(column) else None
    for is_kind, wanted in (
        (pa.types.is_integer, pa.int64()),
        (pa.types.is_floating, pa.float64()),
        (pa.types.is_large_string, pa.string()),
        (pa.types.is_large_binary, pa.binary()),
        (_has_zone, pa.timestamp("us", getattr(kind, "tz", None))),
    ):
        if is_kind(kind):
            try:
                cast = column.cast(wanted)
            # Not an error: such values travel as rows, whose codec has numbers of any size.
            except pa.ArrowInvalid:  # numbers above 63 bits, nanoseconds, or text above 2 GB
                return None
            return cast if _is_in_calendar(cast) else None
    return None


def _has_zone(kind: Any) -> bool:
    import pyarrow as pa

    # A zone that has no kind of its own is unknown: the row's error names the field.
    return pa.types.is_timestamp(kind) and _kind(f"timestamp[us, tz={kind.tz}]") is not None


def _is_in_calendar(column: Any) -> bool:
    """Return whether Python has a date or datetime for each value of a column of days or times, in
    any zone.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_date32(kind):
        numbers, a_day = column.view(pa.int32()), 1
    elif pa.types.is_timestamp(kind):
        numbers, a_day = column.view(pa.int64()), 86_400 * _PER_SECOND[kind.unit]
    else:
        return True
    ends = pc.min_max(numbers).as_py()
    return ends["min"] is None or (
        a_day * _FIRST_DAY <= ends["min"] and ends["max"] <= a_day * _LAST_DAY
    )


def is_readable(column: Any) -> bool:
    """Return whether each value of a column has one of Python's, at every depth: by its ends, not
    one by one.

    Of a map that is not known: one of its keys may come twice.
    """
    import pyarrow as pa

    try:
        column.validate(full=True)
        return _has_values(column)
    except (CodecError, pa.ArrowInvalid):
        return False


def _has_values(column: Any) -> bool:
    """Return the same of a valid column; CodecError for times of an unknown zone."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return _has_values(column.dictionary)
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return len({*names}) == len(names) and all(map(_has_values, column.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _has_values(column.values)
    if pa.types.is_timestamp(kind) and kind.tz:
        zone_of(kind.tz)
    return not pa.types.is_nested(kind) and _is_in_calendar(column)


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
    kind = _kind(name)
    if kind is None or len(buffers) != _BUFFERS.get(name, _BUFFERS_OF_OTHERS):
        raise MalformedFrameError(f"a column of type {name!r:.40} with {len(buffers)} buffers")
    if any(type(buffer) is not bytes and buffer is not None for buffer in buffers):
        raise MalformedFrameError("a buffer of a column is not bytes")
    # Arrow's format lets the first buffer alone be missing, the one that says which values are
    # null.
    if any(buffer is None for buffer in buffers[1:]):
        raise MalformedFrameError("a column without values")
    made = pa.Array.from_buffers(
        kind, count, [None if b is None else pa.py_buffer(b) for b in buffers]
    )
    # In full: the cheap check looks at lengths only, and offsets out of order or text that is no
    # UTF-8 would end the process later, in user code.
    made.validate(full=True)
    if not _is_in_calendar(made):
        raise MalformedFrameError(f"a column of type {name!r:.40} beyond the years 1 to 9999")
    return made
