"""Answers of a Redis Cluster's node about the cluster: who has which slot. PURE.

Source: https://redis.io/docs/latest/commands/cluster-slots and `cluster-info`; Redis from 6.2 on
and Valkey answer alike. Left out: CLUSTER SHARDS, which Redis 6.2 does not know, and redis-py's
cluster client, which sends a request again by itself (decision 1) and follows ASK, which a script
of ours must not (decision 70).
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any, NamedTuple

SLOTS = 16384


class Range(NamedTuple):
    """Slots from `first` to `last` and the primary that has them."""

    first: int
    last: int
    host: str
    port: int


def slot_of(tag: str) -> int:
    """Return the slot of all keys whose word in braces this is; a word without braces is its own.

    The sum is CRC16 (XMODEM), as https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec
    has it.
    """
    begin = tag.find("{")
    end = tag.find("}", begin + 1)
    word = tag[begin + 1 : end] if 0 <= begin < end - 1 else tag
    return binascii.crc_hqx(word.encode(), 0) % SLOTS


def is_working(info: Any) -> bool:
    """Return whether the answer to CLUSTER INFO says that the node takes the cluster for whole."""
    return isinstance(info, bytes) and b"cluster_state:ok" in info.splitlines()


def read_slots(answer: Any, asked: str) -> list[Range]:
    """Return the ranges in an answer to CLUSTER SLOTS; a node without a host is at the host that
    was `asked`.

    ValueError names what is no such answer.
    """
    if not isinstance(answer, list):
        raise ValueError(f"it answers CLUSTER SLOTS by {str(answer)[:80]}")
    return [_range(raw_range, asked) for raw_range in answer]


def _range(row: Any, asked: str) -> Range:
    try:
        first, last, primary = int(row[0]), int(row[1]), row[2]
        port = int(primary[1])
        name = (primary[0] or b"").decode("ascii") or asked
    except (TypeError, ValueError, IndexError, KeyError, AttributeError):
        raise ValueError(f"it answers CLUSTER SLOTS with {str(row)[:80]}") from None
    if not 0 <= first <= last < SLOTS or not 0 < port < 1 << 16:
        raise ValueError(f"it answers CLUSTER SLOTS with {str(row)[:80]}")
    # of a node that is to be named by a host name and has none
    if name == "?":
        raise ValueError("it does not say where its nodes are: set cluster-announce-hostname")
    return Range(first, last, name, port)


def primary_of(ranges: Sequence[Range], slot: int) -> tuple[str, int] | None:
    """Return host and port of the primary of a slot; None when no node has it."""
    return next(
        (
            (slot_range.host, slot_range.port)
            for slot_range in ranges
            if slot_range.first <= slot <= slot_range.last
        ),
        None,
    )


def primaries(ranges: Sequence[Range]) -> list[tuple[str, int]]:
    """Return host and port of all primaries that have slots, each once."""
    return list(dict.fromkeys((slot_range.host, slot_range.port) for slot_range in ranges))
