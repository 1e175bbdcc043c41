"""Operations of the table on whole columns with numpy: search, insertion and layout of many roots at once."""

from __future__ import annotations

import numpy as np

from sparkstorm.acking.batch import Longs
from sparkstorm.acking.kernels import EMPTY, place_of

_FEW = 48
"""Below this many roots a step of numpy calls costs more than plain loops (measured)."""


def homes_of(roots: Longs, places: int) -> Longs:
    """`home_of` for a column."""
    mixed = roots ^ (roots >> 32)
    mixed &= 0xFFFFFFFF
    mixed *= 0x9E3779B1
    mixed &= 0xFFFFFFFF
    mixed *= places
    mixed >>= 32
    return mixed


def find_roots(ids: Longs, roots: Longs) -> Longs:
    """The place of each root, -1 where there is none."""
    result = np.full(len(roots), -1, np.int64)
    rows, wanted, at = np.arange(len(roots)), roots, homes_of(roots, len(ids))
    while len(rows) > _FEW:
        seen = ids.take(at)
        hit = np.flatnonzero(seen == wanted)
        result[rows.take(hit)] = at.take(hit)
        going = np.flatnonzero((seen != wanted) & (seen != EMPTY))
        rows, wanted, at = rows.take(going), wanted.take(going), _next(at.take(going), len(ids))
    cells = ids.data
    for row in rows.tolist():
        result[row] = max(-1, place_of(cells, int(roots[row])))
    return result


def insert_roots(ids: Longs, roots: Longs) -> Longs:
    """Put roots that are not in the table (repeats allowed) into free places, which are returned."""
    result = np.empty(len(roots), np.int64)
    rows, wanted, at = np.arange(len(roots)), roots, homes_of(roots, len(ids))
    while len(rows) > _FEW:
        free = np.flatnonzero(ids.take(at) == EMPTY)
        # Several roots may want one place: the last writer has it, and whoever does not find its own id goes on.
        ids[at.take(free)] = wanted.take(free)
        mine = ids.take(at) == wanted
        won = np.flatnonzero(mine)
        result[rows.take(won)] = at.take(won)
        going = np.flatnonzero(~mine)
        rows, wanted, at = rows.take(going), wanted.take(going), _next(at.take(going), len(ids))
    cells = ids.data
    for row in rows.tolist():
        place = place_of(cells, int(roots[row]))
        result[row] = place if place >= 0 else ~place
        cells[int(result[row])] = int(roots[row])
    return result


def _next(at: Longs, places: int) -> Longs:
    at += 1
    at[at == places] = 0
    return at


def lay_out(roots: Longs, places: int) -> tuple[Longs, Longs]:
    """Fill an empty table with distinct roots: its id column, and the place of each root.

    In the order of their homes the roots go each to its home or right behind the one before: one running maximum.
    """
    ids = np.zeros(places, np.int64)
    homes = homes_of(roots, places)
    order = np.argsort(homes)
    rank = np.arange(len(roots))
    placed = rank + np.maximum.accumulate(homes.take(order) - rank)
    at = np.empty(len(roots), np.int64)
    at[order] = placed
    inside = np.flatnonzero(at < places)
    ids[at.take(inside)] = roots.take(inside)
    cells = ids.data
    for row in np.flatnonzero(at >= places).tolist():  # the few that run over the end begin again at the front
        at[row] = ~place_of(cells, int(roots[row]))
        cells[int(at[row])] = int(roots[row])
    return ids, at
