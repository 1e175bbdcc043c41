"""Change data capture: a database's changes, repeated ones dropped, into a Delta table that has
every version of every row.
"""

import json
import os
import random

from sparkstorm.api import TopologyBuilder, bolt, fields
from sparkstorm.connectors import DeltaSink, Files

CHANGE = {
    "op": "string",
    "id": "bigint",
    "name": "string",
    "price": "double",
    "lsn": "bigint",
    "at_ms": "bigint",
}
COLUMNS = "id bigint, version bigint, op string, name string, price double, at_ms bigint"


def make(count, seed=0):
    """Make changes (op, id, name, price, lsn, at_ms): inserts, updates and deletes; some are sent
    twice, as after a restart.
    """
    chance = random.Random(seed)
    rows = {}
    changes = []
    at_ms = 1_790_000_000_000
    for lsn in range(1, count + 1):
        at_ms += chance.randrange(1000)
        id = chance.randrange(30)
        op = "c" if id not in rows else chance.choice(["u", "u", "d"])
        name, price = (None, None) if op == "d" else (f"product {id}", chance.randrange(100) / 4)
        rows.pop(id, None) if op == "d" else rows.update({id: (name, price)})
        changes.append((op, id, name, price, lsn, at_ms))
        if chance.randrange(20) == 0:
            changes += changes[-3:]
    return changes


@bolt("id", "version", "op", "name", "price", "at_ms", key="id")
def versions(tup, state):
    """Number the changes of a row; one that is not behind the last log position (LSN) was sent
    before.
    """
    lsn, version = state.get(tup["id"], (0, 0))
    if tup["lsn"] > lsn:
        state.put(tup["id"], (tup["lsn"], version + 1))
        yield tup["id"], version + 1, tup["op"], tup["name"], tup["price"], tup["at_ms"]


def build(pattern="changes/*.jsonl", table="tables/products"):
    builder = TopologyBuilder()
    builder.set_spout("changes", Files(pattern, "json", CHANGE))
    builder.set_bolt("versions", versions, inputs={"changes": fields("id")}, parallelism=2)
    builder.set_bolt("table", DeltaSink(table, COLUMNS, flush_secs=1), inputs="versions")
    return builder.build()


def current(rows):
    """Return the rows that the database has now, by id: the newest version of each that is no
    deletion.
    """
    newest = {}
    for row in sorted(rows, key=lambda row: row["version"]):
        newest[row["id"]] = row
    return {id: (row["name"], row["price"]) for id, row in newest.items() if row["op"] != "d"}


if __name__ == "__main__":
    os.makedirs("changes", exist_ok=True)
    with open("changes/1.jsonl", "w", encoding="utf-8") as file:
        for change in make(3_000):
            print(json.dumps(dict(zip(CHANGE, change, strict=True))), file=file)
