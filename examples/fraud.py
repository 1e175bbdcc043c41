"""Fraud: a payment without a login of the same card in the minute before it is an alarm."""

import random

from sparkstorm.api import TopologyBuilder, bolt
from sparkstorm.connectors import Files

WITHIN_MS = 60_000


def make(count, seed=0):
    """Make events (card, kind, at_ms) in the order of their time."""
    chance = random.Random(seed)
    at_ms, events = 1_790_000_000_000, []
    for _ in range(count):
        at_ms += chance.randrange(4000)
        events.append((f"card {chance.randrange(20)}", chance.choice(["login", "payment"]), at_ms))
    return events


@bolt("card", "at_ms", key="card")
def alarms(tup, state):
    if tup["kind"] == "login":
        state.put(tup["card"], tup["at_ms"])
    elif tup["at_ms"] - state.get(tup["card"], -WITHIN_MS) >= WITHIN_MS:
        yield tup["card"], tup["at_ms"]


def build(pattern="events/*.jsonl"):
    builder = TopologyBuilder()
    builder.set_spout("events", Files(pattern, "json", {"card": "string", "kind": "string", "at_ms": "bigint"}))
    builder.set_bolt("alarms", alarms, inputs="events", parallelism=2)
    return builder.build()
