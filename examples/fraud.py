"""Fraud: payments joined with where the card's phone was in the same minute; the third odd payment
blocks a card.
"""

import json
import os
import random

from sparkstorm.api import Duration, JoinBolt, TopologyBuilder, bolt
from sparkstorm.connectors import Files

PAYMENT = {
    "id": "bigint",
    "card": "string",
    "amount": "bigint",
    "country": "string",
    "at_ms": "bigint",
}
POSITION = {"card": "string", "country": "string", "at_ms": "bigint"}
WINDOW_S = 60
MOST = 3  # odd payments until a card is blocked


def make(count, seed=0):
    """Make payments (id, card, amount, country, at_ms) and positions of phones (card, country,
    at_ms), each in order of time.
    """
    chance = random.Random(seed)
    at_ms = 1_790_000_000_000
    payments = []
    phones = []
    for n in range(count):
        at_ms += chance.randrange(4000)
        card = f"card {chance.randrange(12)}"
        home = "AT"
        payments.append(
            (n, card, chance.randrange(1, 500), chance.choice([home, home, "BR"]), at_ms)
        )
        for _ in range(chance.randrange(3)):
            phones.append(
                (
                    card,
                    chance.choice([home, home, home, "CA"]),
                    at_ms + chance.randrange(-20_000, 20_000),
                )
            )
    return payments, sorted(phones, key=lambda position: position[2])


@bolt("card", "id", "amount")
def odd(tup):
    if tup["paid_in"] != tup["phone_in"]:
        yield tup["card"], tup["id"], tup["amount"]


@bolt("card", "ids", key="card")
def block(tup, state):
    """Emit a card once, with its odd payments; one that met several positions of its phone counts
    once.
    """
    ids = state.get(tup["card"], [])
    if len(ids) < MOST and tup["id"] not in ids:
        ids = [*ids, tup["id"]]
        state.put(tup["card"], ids)
        if len(ids) == MOST:
            yield tup["card"], ids


def build(payments="payments/*.jsonl", phones="phones/*.jsonl"):
    builder = TopologyBuilder()
    builder.set_spout("payments", Files(payments, "json", PAYMENT))
    builder.set_spout("phones", Files(phones, "json", POSITION))
    join = JoinBolt("payments", key="card").join("phones", key="card")
    join = join.select(
        "id", "card", "amount", "payments:country as paid_in", "phones:country as phone_in"
    )
    join = join.with_tumbling_window(Duration.seconds(WINDOW_S)).with_timestamp_field("at_ms")
    builder.set_bolt("matched", join, inputs=["payments", "phones"], parallelism=2)
    builder.set_bolt("odd", odd, inputs="matched", parallelism=2)
    builder.set_bolt("block", block, inputs="odd", parallelism=2)
    return builder.build()


if __name__ == "__main__":
    payments, phones = make(3_000)
    for name, schema, rows in (("payments", PAYMENT, payments), ("phones", POSITION, phones)):
        os.makedirs(name, exist_ok=True)
        with open(f"{name}/1.jsonl", "w", encoding="utf-8") as file:
            for row in rows:
                print(json.dumps(dict(zip(schema, row, strict=True))), file=file)
