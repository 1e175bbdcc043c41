"""Row-by-row operations of the table: probing with open addressing, one batch of messages, removal without tombstones.

Plain loops over memoryviews, for an epoch of a few messages; a larger one runs as numpy columns (`columns`).
A place is empty (id 0), buried (id -1, left by removals in bulk) or holds a root.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Cells: TypeAlias = Any
"""An int64, int32 or uint8 column: a memoryview or a list."""

EMPTY, BURIED = 0, -1
UNKNOWN_TASK = -1

LIVE, USED, NEWEST, CHANGED, REMOVED, CANDIDATES, ACKED, FAILED = range(8)
"""Places of the counters: used = live + buried, newest = current bucket, the others are lengths of logs and results."""
COUNTERS = 8

BUCKET_BITS, FAILED_BIT, CHANGED_BIT, STORED_BIT = 3, 4, 8, 16
"""Flags of a root: its bucket (0-2), a fail was seen, changed since the last delta, known to the journal."""


def home_of(root: int, places: int) -> int:
    """Return where probing for a root begins: its halves folded, mixed by a golden prime, scaled to the table."""
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


def apply_rows(
    ids: Cells, values: Cells, tasks: Cells, flags: Cells, counters: Cells, changed: Cells,
    init_roots: Cells, init_values: Cells, init_tasks: Cells, ack_roots: Cells, ack_values: Cells, fail_roots: Cells,
    candidates: Cells, hints: Cells, start: int, limit: int,
) -> int:  # fmt: skip
    """Apply messages from row `start` on; returns the rows done, fewer than all when the table reached its limit.

    Roots that may have ended go to `candidates`, their places to `hints`.
    """
    inits, acks = len(init_roots), len(init_roots) + len(ack_roots)
    rows = acks + len(fail_roots)
    used, logged, log_end = counters[USED], counters[CHANGED], len(changed)
    ending = counters[CANDIDATES] if start else 0
    before, newest, row = used, counters[NEWEST], start
    while row < rows and used < limit:
        root = init_roots[row] if row < inits else ack_roots[row - inits] if row < acks else fail_roots[row - acks]
        at = place_of(ids, root)
        if at < 0:
            at = ~at
            ids[at] = root
            values[at] = 0
            tasks[at] = UNKNOWN_TASK
            flags[at] = newest
            used += 1
        if not flags[at] & CHANGED_BIT:
            flags[at] |= CHANGED_BIT
            if logged < log_end:  # past its end the log only counts: the delta then looks at every flag instead
                changed[logged] = root
            logged += 1
        if row < inits:
            values[at] ^= init_values[row]
            tasks[at] = init_tasks[row]
        elif row < acks:
            values[at] ^= ack_values[row - inits]
        else:
            flags[at] = (flags[at] & ~BUCKET_BITS) | FAILED_BIT | newest
        if (values[at] == 0 or flags[at] & FAILED_BIT) and tasks[at] != UNKNOWN_TASK:
            hints[ending] = at
            candidates[ending] = root  # perhaps: a later message of the batch may open it again
            ending += 1
        row += 1
    counters[USED], counters[CHANGED], counters[CANDIDATES] = used, logged, ending
    counters[LIVE] += used - before
    return row


def settle_rows(
    ids: Cells, values: Cells, tasks: Cells, flags: Cells, counters: Cells, removed: Cells,
    candidates: Cells, out_roots: Cells, out_tasks: Cells,
) -> None:  # fmt: skip
    """Take out what ended: acked rows fill the results from the front, failed ones from the back.

    Later roots of a freed place's run move back, so that no search stops short of them and nothing is buried.
    """
    places, last = len(ids), len(out_roots) - 1
    acked, failed, gone = 0, 0, counters[REMOVED]
    for row in range(counters[CANDIDATES]):
        root = candidates[row]
        hole = out_roots[row]  # where it was, unless the table or its run moved, or a failed row stands here
        if hole >= places or ids[hole] != root:
            hole = place_of(ids, root)
        if hole < 0 or (values[hole] != 0 and not flags[hole] & FAILED_BIT):
            continue
        out = acked if values[hole] == 0 else last - failed
        acked, failed = (acked + 1, failed) if values[hole] == 0 else (acked, failed + 1)
        out_roots[out] = root
        out_tasks[out] = tasks[hole]
        if flags[hole] & STORED_BIT:
            removed[gone] = root
            gone += 1
        at, gap = hole, 0
        while True:
            at, gap = at + 1, gap + 1
            if at == places:
                at = 0
            root = ids[at]
            if root == EMPTY:
                break
            distance = at - home_of(root, places)
            if root != BURIED and (distance if distance >= 0 else distance + places) >= gap:
                ids[hole] = root
                values[hole] = values[at]
                tasks[hole] = tasks[at]
                flags[hole] = flags[at]
                hole, gap = at, 0
        ids[hole] = EMPTY
    counters[REMOVED], counters[ACKED], counters[FAILED] = gone, acked, failed
    counters[LIVE] -= acked + failed
    counters[USED] -= acked + failed


def apply_batch(
    ids: Cells, values: Cells, tasks: Cells, flags: Cells, counters: Cells, changed: Cells, removed: Cells,
    init_roots: Cells, init_values: Cells, init_tasks: Cells, ack_roots: Cells, ack_values: Cells, fail_roots: Cells,
    candidates: Cells, out_roots: Cells, out_tasks: Cells, start: int, limit: int,
) -> int:  # fmt: skip
    """Apply a batch and settle it; when it returns fewer rows than there are, grow the table and call again from there.

    `candidates` (roots that may have ended), `out_roots` (until it is filled: their places) and `out_tasks` are as
    long as the batch.
    """
    done = apply_rows(
        ids, values, tasks, flags, counters, changed,
        init_roots, init_values, init_tasks, ack_roots, ack_values, fail_roots, candidates, out_roots, start, limit,
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
