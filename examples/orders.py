"""Orders without an end: parsed, summed by customer, and watched for large ones.

A live topology to look at. One order in a thousand has no amount: its tuple is tried again, then
parked as a dead letter.
"""

import hashlib

from sparkstorm.api import TopologyBuilder, bolt
from sparkstorm.connectors import Rate

CUSTOMERS = 200
LARGE = 980


def text_of(n):
    """Return order n as its text; the same on every run."""
    digest = hashlib.sha256(str(n).encode()).digest()
    amount = "" if n % 1000 == 999 else int.from_bytes(digest[:2]) % 1000
    return f"customer-{digest[2] % CUSTOMERS}:{amount}"


@bolt("customer", "amount")
def parse(tup):
    customer, amount = text_of(tup["n"]).split(":")
    yield customer, int(amount)


@bolt("customer", "total", key="customer")
def sum_up(tup, state):
    yield tup["customer"], state.add(tup["customer"], tup["amount"])


@bolt("customer", "amount")
def large(tup):
    if tup["amount"] >= LARGE:
        yield tup["customer"], tup["amount"]


@bolt(key="customer")
def alerts(tup, state):
    state.add(tup["customer"], 1)


def build(rows_per_second=1000, rows=None):
    builder = TopologyBuilder()
    builder.set_spout("orders", Rate(rows_per_second, rows))
    builder.set_bolt("parse", parse, inputs="orders", parallelism=2)
    builder.set_bolt("sum", sum_up, inputs="parse", parallelism=2)
    builder.set_bolt("large", large, inputs="parse")
    builder.set_bolt("alerts", alerts, inputs="large")
    return builder.build()
