"""Bytewax as a peer: some of the field's benchmarks, over as many files as there are worker
processes.

Run: python -m bytewax.testing -p N benchmarks.peers.bytewax_field:flow, with FIELD_CASE and
FIELD_FOLDER set. Each process writes its part of the answer to a file in FIELD_FOLDER/answer, and
when it began (its flow was built; files are read after that) and ended, with its CPU seconds between
the two. Nothing is acked or stored.
"""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from operator import add
from pathlib import Path

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

BATCH = 1000
CASE = os.environ["FIELD_CASE"]
FOLDER = Path(os.environ["FIELD_FOLDER"])
# a running count per key; else rows, or parts of sums
IS_LAST_WINS = CASE in ("word count", "yahoo")
RATE = Decimal("0.908")
WINDOW_MS = 10_000
SLIDE_MS = 2_000
# Two files are read at their own speeds, and a key's watermark is its latest time less this: a
# shorter one makes rows of the slower file late by chance. Windows close when the files have ended
WAIT = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Lines(StatefulSourcePartition):
    def __init__(self, path):
        self._lines = iter(Path(path).read_text().splitlines())

    def next_batch(self):
        batch = list(islice(self._lines, BATCH))
        if not batch:
            raise StopIteration
        return batch

    def snapshot(self):
        return None


class Files(FixedPartitionedSource):
    def __init__(self, stream):
        self._stream = stream

    def list_parts(self):
        return sorted(map(str, (FOLDER / self._stream).iterdir()))

    def build_part(self, step_id, for_part, resume_state):
        return Lines(for_part)


class Kept(StatelessSinkPartition):
    def __init__(self, worker):
        self._file = FOLDER / "answer" / f"{worker}.json"
        self._found = {}

    def write_batch(self, items):
        value_by_key = self._found
        for key, value in items:
            value_by_key[key] = value if IS_LAST_WINS else value_by_key.get(key, 0) + value

    def close(self):
        cpu = time.process_time() - BEGAN["cpu"]
        times = {"began": BEGAN["at"], "ended": time.time(), "cpu": cpu}
        self._file.write_text(json.dumps({**times, "pairs": list(self._found.items())}))


class Sink(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return Kept(worker_index)


def count(state, value):
    total = (state or 0) + value
    return total, total


def bid(line):
    auction, bidder, price, _, _, time, extra = line.split(",")
    return int(auction), int(bidder), int(price), int(time), extra


def weighed(row):
    price = row[2] * RATE if CASE == "nexmark q1" else row[2]
    mixed = row[0] + 3 * row[1] + 7 * price + 11 * row[3] + 13 * len(row[4])
    return [("rows", 1), ("sum", mixed if type(mixed) is int else int(mixed * 1000))]


def clock(index):
    """Event time of values that have it in milliseconds at a place."""
    return win.EventClock(lambda value: EPOCH + timedelta(milliseconds=value[index]), WAIT)


def tumbling():
    return win.TumblingWindower(align_to=EPOCH, length=timedelta(milliseconds=WINDOW_MS))


def best(one, other):
    """Put together two of (greatest number, its rows)."""
    if one[0] == other[0]:
        return one[0], one[1] + other[1]
    return max(one, other, key=lambda item: item[0])


def hottest(bids):
    keyed = op.map("key", bids, lambda row: (str(row[0]), row))
    slide = timedelta(milliseconds=SLIDE_MS)
    windower = win.SlidingWindower(timedelta(milliseconds=WINDOW_MS), slide, EPOCH)
    counts = win.fold_window(
        "counts", keyed, clock(3), windower, int, lambda n, _: n + 1, add, ordered=False
    )
    by_window = op.map(
        "by window", counts.down, lambda pair: (str(pair[1][0]), (pair[1][1], [int(pair[0])]))
    )
    best_bids = op.reduce_final("hottest", by_window, best)

    def rows(pair):
        last_ms = int(pair[0]) * SLIDE_MS + WINDOW_MS - 1
        num, auctions = pair[1]
        return [((auction, num, last_ms), 1) for auction in auctions]

    return op.flat_map("rows", best_bids, rows)


def highest(bids):
    # by halves first: one key would leave a process idle
    keyed = op.map("key", bids, lambda row: (str(row[1] % 2), row))
    halves = win.fold_window(
        "halves",
        keyed,
        clock(3),
        tumbling(),
        lambda: (0, []),
        lambda best_so_far, row: (
            best(best_so_far, (row[2], [row])) if row[2] >= best_so_far[0] else best_so_far
        ),
        best,
        ordered=False,
    )
    by_window = op.map("by window", halves.down, lambda pair: (str(pair[1][0]), pair[1][1]))
    best_bids = op.reduce_final("highest", by_window, best)

    def rows(pair):
        last_ms = int(pair[0]) * WINDOW_MS + WINDOW_MS - 1
        return [((*bid, last_ms), 1) for bid in pair[1][1]]

    return op.flat_map("rows", best_bids, rows)


def new_users(persons, auctions):
    def person(line):
        id, name, _, _, _, _, time, _ = line.split(",")
        return id, (int(time), name)

    def seller(line):
        values = line.split(",")
        return values[7], (int(values[5]), None)

    joined = win.join_window(
        "join",
        clock(0),
        tumbling(),
        op.map("person", persons, person),
        op.map("seller", auctions, seller),
        ordered=False,
    )

    def rows(pair):
        id, (window, (who, sold)) = pair
        return [((int(id), who[1], window * WINDOW_MS), 1)] if who and sold else []

    return op.flat_map("rows", joined.down, rows)


def wire(flow):
    if CASE == "nexmark q8":
        return new_users(
            *(op.input(f"{name}s", flow, Files(name)) for name in ("person", "auction"))
        )
    lines = op.input("lines", flow, Files("bid" if CASE.startswith("nexmark") else "text"))
    if CASE.startswith("nexmark"):
        return over_bids(op.map("bid", lines, bid))
    if CASE == "id bolt":
        return op.map("drop", op.map("id", lines, lambda line: line), lambda line: ("tuples", 1))
    if CASE == "word count":
        keyed = op.flat_map("split", lines, lambda line: [(word, 1) for word in line.split()])
        return op.stateful_map("count", keyed, count)
    return views(lines)


def over_bids(bids):
    if CASE == "nexmark q5":
        return hottest(bids)
    if CASE == "nexmark q7":
        return highest(bids)
    if CASE == "nexmark q2":
        chosen = op.filter("filter", bids, lambda row: row[0] % 123 == 0)
        return op.map("row", chosen, lambda row: ((row[0], row[2]), 1))
    return op.flat_map("sum", bids, weighed)


def views(lines):
    pairs = (
        line.split(",")
        for file in sorted((FOLDER / "campaign").iterdir())
        for line in file.read_text().split()
    )
    campaigns = dict(pairs)
    parsed = op.map("deserialize", lines, json.loads)
    chosen = op.filter("filter", parsed, lambda event: event["event_type"] == "view")

    def keyed_by_window(event):
        window = int(event["event_time"]) // WINDOW_MS
        return f"{campaigns[event['ad_id']]} {window}", 1

    return op.stateful_map("count", op.map("join", chosen, keyed_by_window), count)


flow = Dataflow("field")
op.output("out", wire(flow), Sink())
BEGAN = {"at": time.time(), "cpu": time.process_time()}
