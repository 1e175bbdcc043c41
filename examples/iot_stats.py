"""RIoTBench's STATS. Sensors: averages of blocks, the next value by a line through filtered ones,
about how many there are, and charts of them all.
"""

import hashlib
import json
import os
import random
import statistics

from sparkstorm.api import Duration, FoldingBolt, TopologyBuilder, bolt, fields, tumbling, windowed
from sparkstorm.connectors import Files, FileSink

KINDS = {"temperature": (18.0, 4.0), "humidity": (55.0, 15.0), "dust": (400.0, 120.0)}
MESSAGE = {"sensor": "string", "at_ms": "bigint", **dict.fromkeys(KINDS, "double")}
POINT = ("kind", "statistic", "sensor", "at_ms", "value")
BLOCK = 10  # readings of an average
TRAIN = 10  # filtered values that a line goes through
PROCESS_NOISE = 0.125
SENSOR_NOISE = 0.32
REGISTERS = 64  # the count's standard error is 1.3 / sqrt(REGISTERS), 16 %


def make(count, seed=0):
    """Make messages (sensor, at_ms, a value of each kind) of 60 sensors in order of time; a value
    may be missing.
    """
    chance = random.Random(seed)
    at_ms = 1_790_000_000_000
    messages = []
    for _ in range(count):
        at_ms += chance.randrange(600)
        sensor = f"sensor {min(chance.randrange(60), chance.randrange(60))}"
        values = (round(chance.gauss(mean, spread), 2) for mean, spread in KINDS.values())
        messages.append(
            (sensor, at_ms, *(None if chance.randrange(30) == 0 else value for value in values))
        )
    return messages


@bolt("sensor", "kind", "at_ms", "value")
def parse(tup):
    for kind in KINDS:
        if tup[kind] is not None:
            yield tup["sensor"], kind, tup["at_ms"], tup[kind]


@bolt(*POINT, key=("sensor", "kind"))
def average(tup, state):
    key = (tup["sensor"], tup["kind"])
    block = [*state.get(key, []), tup["value"]]
    if len(block) == BLOCK:
        yield tup["kind"], "average", tup["sensor"], tup["at_ms"], statistics.fmean(block)
        block = []
    state.put(key, block)


@bolt("sensor", "kind", "at_ms", "value", key=("sensor", "kind"))
def kalman(tup, state):
    """A Kalman filter of one dimension."""
    key = (tup["sensor"], tup["kind"])
    estimate, error = state.get(key, (tup["value"], 1.0))
    error += PROCESS_NOISE
    gain = error / (error + SENSOR_NOISE)
    estimate += gain * (tup["value"] - estimate)
    state.put(key, (estimate, (1 - gain) * error))
    yield tup["sensor"], tup["kind"], tup["at_ms"], estimate


@bolt(*POINT, key=("sensor", "kind"))
def predict(tup, state):
    key = (tup["sensor"], tup["kind"])
    last = [*state.get(key, []), tup["value"]][-TRAIN:]
    state.put(key, last)
    if len(last) == TRAIN:
        line = statistics.linear_regression(range(TRAIN), last)
        value = line.intercept + line.slope * TRAIN
        yield tup["kind"], "prediction", tup["sensor"], tup["at_ms"], value


class Distinct(FoldingBolt):
    """About how many sensors sent a kind, by LogLog (Durand and Flajolet, 2003): the greatest rank
    of a lowest bit among a register's hashes.
    """

    outputs = POINT

    def initial(self):
        return [0] * REGISTERS

    def fold(self, ranks, tup):
        number = int.from_bytes(hashlib.sha1(tup["sensor"].encode()).digest()[:8], "big")
        register = number % REGISTERS
        rest = number // REGISTERS
        rank = (rest & -rest).bit_length()
        return [*ranks[:register], max(ranks[register], rank), *ranks[register + 1 :]]

    def execute(self, window, collector):
        value = 0.39701 * REGISTERS * 2 ** statistics.fmean(window.value)
        collector.emit((window.key[0], "sensors", "all", window.last_ms, value))


@windowed("kind", "statistic", "points", "svg", window=tumbling(minutes=5),
          key=("kind", "statistic"), time="at_ms")  # fmt: skip
def charts(window):
    points = sorted((tup["sensor"], tup["at_ms"], tup["value"]) for tup in window)
    kind, statistic = window.key
    yield kind, statistic, len(points), draw(points)


def draw(points):
    """Draw a line per sensor through its points (sensor, at_ms, value), 600 x 200 pixels."""
    times = [time_ms for _, time_ms, _ in points]
    values = [value for _, _, value in points]
    wide = max(max(times) - min(times), 1)
    high = max(max(values) - min(values), 1e-9)
    lines = {}
    for sensor, time_ms, value in points:
        x = 600 * (time_ms - min(times)) / wide
        y = 200 - 200 * (value - min(values)) / high
        lines.setdefault(sensor, []).append(f"{x:.1f},{y:.1f}")
    drawn = (
        f'<polyline fill="none" stroke="hsl({n * 47 % 360} 60% 45%)" points="{" ".join(line)}"/>'
        for n, line in enumerate(lines.values())
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 200">{"".join(drawn)}</svg>'


def build(pattern="messages/*.jsonl", folder="charts"):
    builder = TopologyBuilder()
    builder.set_spout("messages", Files(pattern, "json", MESSAGE))
    # all by sensor: a task has one sender then, and its rows stay in the order of their times
    by_sensor = fields("sensor")
    builder.set_bolt("parse", parse, inputs={"messages": by_sensor}, parallelism=2)
    builder.set_bolt("average", average, inputs={"parse": by_sensor}, parallelism=2)
    builder.set_bolt("kalman", kalman, inputs={"parse": by_sensor}, parallelism=2)
    builder.set_bolt("predict", predict, inputs={"kalman": by_sensor}, parallelism=2)
    counts = Distinct().with_tumbling_window(Duration.minutes(1)).with_key("kind")
    counts = counts.with_timestamp_field("at_ms")
    builder.set_bolt("distinct", counts, inputs="parse", parallelism=2)
    builder.set_bolt("charts", charts, inputs=["average", "predict", "distinct"], parallelism=2)
    sink = FileSink(folder, "json", flush_secs=1)
    builder.set_bolt("publish", sink, inputs="charts")
    return builder.build()


if __name__ == "__main__":
    os.makedirs("messages", exist_ok=True)
    with open("messages/1.jsonl", "w", encoding="utf-8") as file:
        for message in make(3_000):
            print(json.dumps(dict(zip(MESSAGE, message, strict=True))), file=file)
