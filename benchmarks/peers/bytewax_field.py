"""Bytewax beside us: some of the field's benchmarks, over as many files as there are worker
processes.

Run: python -m bytewax.testing -p N benchmarks.peers.bytewax_field:flow, with FIELD_CASE and
FIELD_FOLDER set. Each process writes its part of the answer to a file in FIELD_FOLDER/answer.
Nothing is acked or stored.
"""

import json
import os
from decimal import Decimal
from itertools import islice
from pathlib import Path

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

BATCH = 1000
CASE = os.environ["FIELD_CASE"]
FOLDER = Path(os.environ["FIELD_FOLDER"])
# a running count per key; else rows, or parts of sums
IS_LAST_WINS = CASE in ("word count", "yahoo")
RATE = Decimal("0.908")


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
    def list_parts(self):
        return sorted(
            map(str, (FOLDER / ("bid" if CASE.startswith("nexmark") else "text")).iterdir())
        )

    def build_part(self, step_id, for_part, resume_state):
        return Lines(for_part)


class Kept(StatelessSinkPartition):
    def __init__(self, worker):
        self._file = FOLDER / "answer" / f"{worker}.json"
        self._found = {}

    def write_batch(self, items):
        found = self._found
        for key, value in items:
            found[key] = value if IS_LAST_WINS else found.get(key, 0) + value

    def close(self):
        self._file.write_text(json.dumps([[key, value] for key, value in self._found.items()]))


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


def wire(lines):
    if CASE == "word count":
        keyed = op.flat_map("split", lines, lambda line: [(word, 1) for word in line.split()])
        return op.stateful_map("count", keyed, count)
    if CASE == "yahoo":
        pairs = (
            line.split(",")
            for file in sorted((FOLDER / "campaign").iterdir())
            for line in file.read_text().split()
        )
        campaigns = dict(pairs)
        views = op.filter(
            "filter",
            op.map("deserialize", lines, json.loads),
            lambda event: event["event_type"] == "view",
        )

        def keyed_by_window(event):
            window = int(event["event_time"]) // 10_000
            return f"{campaigns[event['ad_id']]} {window}", 1

        return op.stateful_map("count", op.map("join", views, keyed_by_window), count)
    if CASE == "id bolt":
        return op.map("drop", op.map("id", lines, lambda line: line), lambda line: ("tuples", 1))
    bids = op.map("bid", lines, bid)
    if CASE == "nexmark q2":
        chosen = op.filter("filter", bids, lambda row: row[0] % 123 == 0)
        return op.map("row", chosen, lambda row: ((row[0], row[2]), 1))
    return op.flat_map("sum", bids, weighed)


flow = Dataflow("field")
op.output("out", wire(op.input("lines", flow, Files())), Sink())
