"""Record of a held input in the store, as the worker that holds it writes it and as a client reads
it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sparkstorm.common.errors import MalformedFrameError, StoreInconsistentError
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.tuples import Roots, Tuple
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.transport.frames import ID_LIMIT


class HeldRecord(NamedTuple):
    """An input that was executed and is neither acked nor given up."""

    sender: int
    channel: str
    values: tuple[Any, ...]
    roots: Roots
    edge: int  # 0: not drawn
    attempts: int
    born_ms: int
    failure: Failure | None  # of its last try


def pack_held(
    codec: Codec, tup: Tuple, edge: int, attempts: int, born_ms: int, failure: Failure | None
) -> bytes:
    """Return the bytes of a held input."""
    roots = list(tup.roots) if type(tup.roots) is tuple else tup.roots
    row = None if failure is None else failure.to_row()
    return codec.pack(
        [tup.source.task, tup.source.channel, list(tup.values), roots, edge, attempts, born_ms, row]
    )


def unpack_held(codec: Codec, key: str, data: bytes) -> HeldRecord:
    """Return the held input of a record; StoreInconsistentError names its key when it is none of
    ours.
    """
    fields: Any = codec.unpack(data)
    try:
        task, stream, values, roots, edge, attempts, born_ms, failure = fields
        if type(task) is not int or type(stream) is not str or type(values) is not list:
            raise ValueError("its source or its values are of another type")
        if (
            any(type(number) is not int for number in (edge, attempts, born_ms))
            or not 0 <= edge < ID_LIMIT
        ):
            raise ValueError("its edge, tries or birth are no whole numbers")
        found = None if failure is None else Failure.from_row(failure)
        return HeldRecord(
            task, stream, tuple(values), _checked_roots(roots), edge, attempts, born_ms, found
        )
    except (TypeError, ValueError, MalformedFrameError) as error:
        raise not_ours(key, error) from error


def not_ours(key: str, error: Exception) -> StoreInconsistentError:
    """Return the error for a held input that no worker of this topology can have written."""
    return StoreInconsistentError(f"held input '{key}' is not a record of ours: {error}")


def _checked_roots(roots: Any) -> Roots:
    several = roots if type(roots) is list else [roots]
    if any(type(root) is not int or not 0 <= root < ID_LIMIT for root in several):
        raise ValueError("its roots are no ids")
    return tuple(roots) if type(roots) is list else int(roots)
