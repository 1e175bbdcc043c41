"""The word count as Bytewax users write it, over as many files as there are worker processes.

Run: python -m bytewax.testing -p N ..., with the files in BENCH_FILES (separated by ':'). Counts
run per key; nothing is printed.
"""

import os
from itertools import islice
from pathlib import Path

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

BATCH = 1000


class Lines(StatefulSourcePartition):
    def __init__(self, path):
        self._lines = iter(Path(path).read_text().split("\n"))

    def next_batch(self):
        batch = list(islice(self._lines, BATCH))
        if not batch:
            raise StopIteration
        return batch

    def snapshot(self):
        return None


class Files(FixedPartitionedSource):
    def list_parts(self):
        return os.environ["BENCH_FILES"].split(":")

    def build_part(self, step_id, for_part, resume_state):
        return Lines(for_part)


class Nothing(StatelessSinkPartition):
    def write_batch(self, items):
        pass


class Sink(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return Nothing()


def count(state, _value):
    total = (state or 0) + 1
    return total, total


flow = Dataflow("wordcount")
lines = op.input("lines", flow, Files())
words = op.flat_map("split", lines, str.split)
keyed = op.key_on("key", words, lambda word: word)
counts = op.stateful_map("count", keyed, count)
op.output("out", counts, Sink())
