"""Orders joined with their payments within half an hour, given the user's country and a score, kept
in a table, as Parquet by day and, where they are odd, as alerts.

`python payments.py` makes the data: orders and payments as JSON lines, and users in SQLite. In real
life the spouts are `KafkaSource`s and the address is PostgreSQL's; nothing else changes.
"""

import json
import random
import sqlite3
from functools import cache

from sparkstorm.api import Duration, TopologyBuilder, bolt
from sparkstorm.connectors import Files, FileSink, SqlLookup, SqlSink
from sparkstorm.streams import IntervalJoinBolt, LookupBolt

ORDER = {"order_id": "string", "user": "string", "amount": "double", "at_ms": "bigint"}
PAYMENT = {"order_id": "string", "paid": "double", "method": "string", "at_ms": "bigint"}
JOINED = {**ORDER, "paid": "double", "method": "string", "payments_at_ms": "bigint"}
SCORED = {**JOINED, "country": "string", "score": "double"}
ODD = -0.5
TABLE = """CREATE TABLE paid_orders (order_id TEXT PRIMARY KEY, user TEXT, amount REAL, at_ms INTEGER,
    paid REAL, method TEXT, payments_at_ms INTEGER, country TEXT, score REAL)"""


@cache  # once in each worker
def model():
    """Return a function of many rows: such as `joblib.load(...).decision_function`."""
    return lambda rows: [0.5 - abs(1 - paid / amount) if amount else -1.0 for amount, paid in rows]


@bolt(SCORED, batch=256)
def score(batch):
    paid = [tup for tup in batch if tup["paid"] is not None]
    scores = iter(model()([(tup["amount"], tup["paid"]) for tup in paid]))
    for tup in batch:
        yield (*tup.values, 0.0 if tup["paid"] is None else next(scores))


@bolt("order_id", "user", "score")
def alerts(tup):
    if tup["score"] < ODD:
        yield tup["order_id"], tup["user"], tup["score"]


def build(orders=None, payments=None, url="sqlite:///shop.db"):
    paid = IntervalJoinBolt("orders", key="order_id", fields=ORDER)
    paid = paid.left_join("payments", fields=PAYMENT, upper=Duration.minutes(30))
    paid = paid.with_timestamp_field("at_ms").with_lag(Duration.minutes(1))
    users = SqlLookup(url, "users", "name")
    country = LookupBolt(users, "user", keep=JOINED, add={"country": "string"}, snapshot="now")
    builder = TopologyBuilder()
    builder.set_spout("orders", orders or Files("orders.jsonl", "json", ORDER, time="at_ms"))
    builder.set_spout(
        "payments", payments or Files("payments.jsonl", "json", PAYMENT, time="at_ms")
    )
    joined = paid.with_late_tuple_stream("late")
    builder.set_bolt("join", joined, parallelism=2, inputs=["orders", "payments"])
    builder.set_bolt("country", country, inputs="join")
    builder.set_bolt("score", score, parallelism=2, inputs="country")
    builder.set_bolt("table", SqlSink(url, "paid_orders", key="order_id"), inputs="score")
    by_day = FileSink("by_day", schema=SCORED, day_of="at_ms", flush_secs=2)
    builder.set_bolt("by_day", by_day, inputs="score")
    builder.set_bolt("alerts", alerts, inputs="score")
    bad = ["orders:bad", "payments:bad", "join:late"]
    builder.set_bolt("bad", FileSink("bad", "json"), inputs=bad)
    return builder.build()


def rows(number=1600, seed=0):
    """Return orders and their payments, both by time; a tenth of the orders is never paid."""
    draw = random.Random(seed)
    orders, payments, at_ms = [], [], 1_790_000_000_000
    for n in range(number):
        at_ms += draw.randrange(600_000)
        amount = round(draw.gammavariate(2, 50), 2)
        orders.append((f"o{n}", f"user {draw.randrange(25)}", amount, at_ms))
        if draw.random() < 0.9:
            paid = round(amount * draw.choice([1] * 20 + [3]), 2)
            payments.append(
                (f"o{n}", paid, draw.choice(["card", "bank"]), at_ms + draw.randrange(60_000))
            )
    return orders, sorted(payments, key=lambda row: row[-1])


def main():
    orders, payments = rows()
    for name, fields, made in (("orders", ORDER, orders), ("payments", PAYMENT, payments)):
        with open(f"{name}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(dict(zip(fields, row, strict=True))) + "\n" for row in made)
    with sqlite3.connect("shop.db") as db:
        db.execute("CREATE TABLE users (name TEXT PRIMARY KEY, country TEXT)")
        countries = ("NL", "BE", "FR")
        users = [(f"user {n}", countries[n % 3]) for n in range(20)]
        db.executemany("INSERT INTO users VALUES (?, ?)", users)
        db.execute(TABLE)


if __name__ == "__main__":
    main()
