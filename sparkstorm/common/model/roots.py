"""Form of root ids: a tree by itself, a member of a tree batch, or a member that was split off.
PURE.

A root is a number from 1 to 2**63 - 1; 0 is no root. Its kind is in two bits:

    bit 62  bit 61
    0 or 1  0       a tree by itself; an acker tracks it under its root
    0       1       a member of a batch: bits 10 to 60 are the batch's, bits 0 to 9 are the member's place in it. An acker tracks it
                    under the batch's root, which is the member's with place 0
    1       1       a member that was split off its batch; an acker tracks it under this root

The kind is in the root and not in a setting, so that workers with different settings (a gray
upgrade) agree about every root.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkstorm.common.model.tuples import Roots

ID_LIMIT = 1 << 63
"""Ids of roots and edges, and so every XOR of them, are below this; a root is never 0, which marks
an empty place.
"""
PLACES = 1 << 10
"""Members that a batch may have."""
SPLIT = 3 << 61
"""Roots of split members are this or more."""

_MEMBER = 1 << 61
_SPLIT_BIT = 1 << 62
# Fibonacci hashing: 2**64 by the golden ratio
_SPREAD = 0x9E3779B97F4A7C15
_64_BITS = (1 << 64) - 1
_PLACE_BITS = 10
_PLACE = PLACES - 1
_BATCH = (_MEMBER - 1) & ~_PLACE


def tree_root(drawn: int) -> int:
    """Return the root of a tree by itself, made of a random number from 1 to 2**63 - 1."""
    return drawn & ~_MEMBER or 1


def batch_root(drawn: int) -> int:
    """Return the root of a batch, made of a random number; the members' roots are this plus their
    places.
    """
    return _MEMBER | drawn & _BATCH


def is_batch(root: int) -> bool:
    """Return whether a root that an acker tracks is that of a batch."""
    return root >> 61 == 1


def tracked(root: int) -> int:
    """Return the root under which an acker tracks this one."""
    return root & ~_PLACE if root >> 61 == 1 else root


def split(root: int) -> int:
    """Return the root of a member that is split off its batch; every other root unchanged."""
    return root | _SPLIT_BIT if root & _MEMBER else root


def split_roots(roots: Roots) -> Roots:
    """Return the roots of a tuple whose members are split off, each once: two edges for one root
    would cancel each other.
    """
    if not isinstance(roots, tuple):
        return split(roots)
    distinct = tuple(dict.fromkeys(map(split, roots)))
    return distinct if len(distinct) > 1 else distinct[0]


def batch_of(root: int) -> int:
    """Return the root of the batch of a member, split or not; the root of a tree by itself
    unchanged.
    """
    return root & ~(_SPLIT_BIT | _PLACE) if root & _MEMBER else root


def place_of(root: int) -> int:
    """Return a member's place in its batch; 0 for a tree by itself."""
    return root & _PLACE if root & _MEMBER else 0


def home_of(root: int, ackers: int) -> int:
    """Return which of so many ackers tracks a root: all of a batch and what is split off it have
    one.
    """
    return ((root & _BATCH) >> _PLACE_BITS) % ackers


def homes_of(roots: Sequence[int], ackers: int) -> list[int]:
    """Return the home of each root."""
    return [((root & _BATCH) >> _PLACE_BITS) % ackers for root in roots]


def brought_home(root: int, homes: Sequence[int], ackers: int) -> int:
    """Return a root like this one whose acker is among `homes`; 0 when there is none close by."""
    number = (root & _BATCH) >> _PLACE_BITS
    home = number % ackers
    number += homes[home % len(homes)] - home
    return root & ~_BATCH | number << _PLACE_BITS if 0 < number <= _BATCH >> _PLACE_BITS else 0


def is_sampled(root: int, bits: int) -> bool:
    """Return whether the message of a root is one of the sample of 1 in 2**bits, which is the same
    in every worker.

    The split and the unsplit root of a message have one answer. The product spreads the places of a
    batch, which are neighbours.
    """
    return (split(root) * _SPREAD & _64_BITS) >> (64 - bits) == 0 if bits else True
