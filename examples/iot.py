"""RIoTBench's ETL. Sensors: out-of-range readings and duplicates go, a missing value is the sensor's
last one, annotated with its site.
"""

import json
import os
import random

from sparkstorm.api import TopologyBuilder, bolt, fields
from sparkstorm.connectors import Files

READING = {"sensor": "bigint", "number": "bigint", "celsius": "double"}
SITES = {n: f"site {n % 3}" for n in range(12)}
LOWEST = -40.0
HIGHEST = 60.0


def make(count, seed=0):
    """Make readings (sensor, number, celsius): some are out of range, missing or sent twice."""
    chance = random.Random(seed)
    readings = []
    for n in range(count):
        celsius = chance.choice(
            [None, 999.0, *(float(chance.randrange(-20, 40)) for _ in range(8))]
        )
        readings += [(chance.randrange(12), n, celsius)] * chance.choice([1, 1, 1, 2])
    return readings


@bolt("sensor", "number", "celsius")
def in_range(tup):
    if tup["celsius"] is None or LOWEST <= tup["celsius"] <= HIGHEST:
        yield tup.values


@bolt("sensor", "number", "celsius", key="sensor")
def clean(tup, state):
    newest, last = state.get(tup["sensor"], (-1, None))
    if tup["number"] <= newest:
        return  # sent twice
    celsius = last if tup["celsius"] is None else tup["celsius"]
    state.put(tup["sensor"], (tup["number"], celsius))
    if celsius is not None:
        yield tup["sensor"], tup["number"], celsius


@bolt("sensor", "site", "number", "celsius")
def annotate(tup):
    yield tup["sensor"], SITES[tup["sensor"]], tup["number"], tup["celsius"]


def build(pattern="readings/*.jsonl"):
    builder = TopologyBuilder()
    builder.set_spout("readings", Files(pattern, "json", READING))
    # by sensor from the start: over shuffled tasks a sensor's readings would overtake each other
    builder.set_bolt("in_range", in_range, inputs={"readings": fields("sensor")}, parallelism=2)
    builder.set_bolt("clean", clean, inputs="in_range", parallelism=2)
    builder.set_bolt("annotate", annotate, inputs="clean", parallelism=2)
    return builder.build()


if __name__ == "__main__":
    os.makedirs("readings", exist_ok=True)
    with open("readings/1.jsonl", "w", encoding="utf-8") as file:
        for reading in make(3_000):
            print(json.dumps(dict(zip(READING, reading, strict=True))), file=file)
