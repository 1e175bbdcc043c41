"""Owns the table's rules, row by row: probing with open addressing, one batch of messages, removal without tombstones.

These functions run as they stand over memoryviews (an epoch of a few messages) and, compiled, over arrays (a busy one):
hence plain loops, signed 64-bit integers, and products that agree with wrapped arithmetic in the bits that are kept.
A place is empty (id 0), buried (id -1, left by removals in bulk) or holds a root.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Cells: TypeAlias = Any
"""An int64, int32 or uint8 column: an array when compiled, a memoryview or list when not."""

EMPTY, BURIED = 0, -1
UNKNOWN_TASK = -1

LIVE, USED, NEWEST, CHANGED, REMOVED, CANDIDATES, ACKED, FAILED = range(8)
"""Places of the counters: used = live + buried, newest = current bucket, the others are lengths of logs and results."""
COUNTERS = 8

BUCKET_BITS, FAILED_BIT, CHANGED_BIT, STORED_BIT = 3, 4, 8, 16
"""Flags of a root: its bucket (0-2), a fail was seen, changed since the last delta, known to the journal."""


def home_of(root: int, places: int) -> int:
    """Where probing for a root begins: its halves folded, mixed by a golden prime, scaled to the table."""
    return (((((root ^ (root >> 32)) & 0xFFFFFFFF) * 0x9E3779B1) & 0xFFFFFFFF) * places) >> 32


def place_of(ids: Cells, root: int) -> int:
    """The root's place, or the complement (negative) of the empty place where it would go."""
    places = len(ids)
    at = home_of(root, places)
    while True:
        found = ids[at]
        if found == root:
            return at
        if found == EMPTY:
            return ~at
        at += 1
        if at == places:
            at = 0


def touch(ids: Cells, values: Cells, tasks: Cells, flags: Cells, counters: Cells, changed: Cells, root: int) -> int:
    """The place of the root, made if there was none, and noted as changed."""
    at = place_of(ids, root)
    if at < 0:
        at = ~at
        ids[at], values[at], tasks[at], flags[at] = root, 0, UNKNOWN_TASK, counters[NEWEST]
        counters[LIVE] += 1
        counters[USED] += 1
    if not flags[at] & CHANGED_BIT:
        flags[at] |= CHANGED_BIT
        # Past its end the log only counts: the delta then looks at every flag instead.
        if counters[CHANGED] < len(changed):
            changed[counters[CHANGED]] = root
        counters[CHANGED] += 1
    return at


def remove(ids: Cells, values: Cells, tasks: Cells, flags: Cells, counters: Cells, removed: Cells, at: int) -> None:
    """Free a place and move later roots of its run back, so that no search stops short of them."""
    places = len(ids)
    if flags[at] & STORED_BIT:
        removed[counters[REMOVED]] = ids[at]
        counters[REMOVED] += 1
    counters[LIVE] -= 1
    counters[USED] -= 1
    hole, gap = at, 0
    while True:
        at += 1
        gap += 1
        if at == places:
            at = 0
        root = ids[at]
        if root == EMPTY:
            break
        if root == BURIED:
            continue
        distance = at - home_of(root, places)
        if distance < 0:
            distance += places
        if distance >= gap:
            ids[hole], values[hole], tasks[hole], flags[hole] = root, values[at], tasks[at], flags[at]
            hole, gap = at, 0
    ids[hole] = EMPTY


def apply_rows(
    ids: Cells, values: Cells, tasks: Cells, flags: Cells, counters: Cells, changed: Cells,
    init_roots: Cells, init_values: Cells, init_tasks: Cells, ack_roots: Cells, ack_values: Cells, fail_roots: Cells,
    candidates: Cells, start: int, limit: int,
) -> int:  # fmt: skip
    """Apply messages from row `start` on; returns the rows done, fewer than all when the table reached its limit."""
    inits, acks = len(init_roots), len(init_roots) + len(ack_roots)
    rows = acks + len(fail_roots)
    for row in range(start, rows):
        if counters[USED] >= limit:
            return row
        if row < inits:
            root = init_roots[row]
            at = touch(ids, values, tasks, flags, counters, changed, root)
            values[at] ^= init_values[row]
            tasks[at] = init_tasks[row]
        elif row < acks:
            root = ack_roots[row - inits]
            at = touch(ids, values, tasks, flags, counters, changed, root)
            values[at] ^= ack_values[row - inits]
            if values[at] != 0:
                continue
        else:
            root = fail_roots[row - acks]
            at = touch(ids, values, tasks, flags, counters, changed, root)
            flags[at] = (flags[at] & ~BUCKET_BITS) | FAILED_BIT | counters[NEWEST]
        candidates[counters[CANDIDATES]] = root
        counters[CANDIDATES] += 1
    return rows


def settle_rows(
    ids: Cells, values: Cells, tasks: Cells, flags: Cells, counters: Cells, removed: Cells,
    candidates: Cells, out_roots: Cells, out_tasks: Cells,
) -> None:  # fmt: skip
    """Take out what ended: acked rows fill the results from the front, failed ones from the back."""
    for row in range(counters[CANDIDATES]):
        root = candidates[row]
        at = place_of(ids, root)
        if at < 0 or tasks[at] == UNKNOWN_TASK:
            continue
        if values[at] == 0:
            out = counters[ACKED]
            counters[ACKED] += 1
        elif flags[at] & FAILED_BIT:
            counters[FAILED] += 1
            out = len(out_roots) - counters[FAILED]
        else:
            continue
        out_roots[out], out_tasks[out] = root, tasks[at]
        remove(ids, values, tasks, flags, counters, removed, at)


def apply_batch(
    ids: Cells, values: Cells, tasks: Cells, flags: Cells, counters: Cells, changed: Cells, removed: Cells,
    init_roots: Cells, init_values: Cells, init_tasks: Cells, ack_roots: Cells, ack_values: Cells, fail_roots: Cells,
    candidates: Cells, out_roots: Cells, out_tasks: Cells, start: int, limit: int,
) -> int:  # fmt: skip
    """Apply a batch and settle it; when it returns fewer rows than there are, grow the table and call again from there.

    `candidates` (roots that may have ended), `out_roots` and `out_tasks` are as long as the batch, their counters 0.
    """
    done = apply_rows(
        ids, values, tasks, flags, counters, changed,
        init_roots, init_values, init_tasks, ack_roots, ack_values, fail_roots, candidates, start, limit,
    )  # fmt: skip
    if done == len(candidates):
        settle_rows(ids, values, tasks, flags, counters, removed, candidates, out_roots, out_tasks)
    return done


def collect_changes(
    ids: Cells, values: Cells, tasks: Cells, flags: Cells, changed: Cells, changes: int,
    out_roots: Cells, out_values: Cells, out_tasks: Cells, out_flags: Cells,
) -> int:  # fmt: skip
    """Copy out the logged roots that still exist and mark them as stored; returns how many there were."""
    out = 0
    for row in range(changes):
        at = place_of(ids, changed[row])
        if at < 0 or not flags[at] & CHANGED_BIT:
            continue
        flags[at] = (flags[at] & ~CHANGED_BIT) | STORED_BIT
        out_roots[out], out_values[out], out_tasks[out] = ids[at], values[at], tasks[at]
        out_flags[out] = 1 if flags[at] & FAILED_BIT else 0
        out += 1
    return out
