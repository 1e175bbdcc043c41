"""Clicks into sessions: a session of a user ends after 30 seconds without a click, by the time in
the click.
"""

import json
import os
import random

from sparkstorm.api import Duration, FoldingBolt, TopologyBuilder
from sparkstorm.connectors import Files

CLICK = {"user": "string", "page": "string", "at_ms": "bigint"}
GAP_S = 30
LAG_S = 5  # clicks come this much out of order at most


def make(count, seed=0):
    """Make clicks (user, page, at_ms) of ten users, out of order by less than LAG_S."""
    chance = random.Random(seed)
    at_ms = 1_790_000_000_000
    clicks = []
    for _ in range(count):
        at_ms += chance.choice([100, 1000, 8000])
        clicks.append((f"user {chance.randrange(10)}", chance.choice("abc"), at_ms))
    return sorted(clicks, key=lambda click: click[2] + chance.randrange(LAG_S * 1000))


class Sessions(FoldingBolt):
    """Number of clicks and first page's time of each session."""

    outputs = ("user", "clicks", "from_ms", "to_ms")

    def initial(self):
        return [0, None, None]

    def fold(self, session, tup):
        clicks, first, last = session
        time_ms = tup["at_ms"]
        return [
            clicks + 1,
            time_ms if first is None else min(first, time_ms),
            time_ms if last is None else max(last, time_ms),
        ]

    def merge(self, one, other):
        if not one[0] or not other[0]:
            return other if other[0] else one
        return [one[0] + other[0], min(one[1], other[1]), max(one[2], other[2])]

    def execute(self, window, collector):
        collector.emit((window.key[0], *window.value))


def build(pattern="clicks/*.jsonl"):
    builder = TopologyBuilder()
    builder.set_spout("clicks", Files(pattern, "json", CLICK))
    sessions = Sessions().with_session_window(Duration.seconds(GAP_S)).with_key("user")
    sessions = sessions.with_timestamp_field("at_ms").with_lag(Duration.seconds(LAG_S))
    builder.set_bolt("sessions", sessions, inputs="clicks", parallelism=2)
    return builder.build()


if __name__ == "__main__":
    os.makedirs("clicks", exist_ok=True)
    with open("clicks/1.jsonl", "w", encoding="utf-8") as file:
        for click in make(3_000):
            print(json.dumps(dict(zip(CLICK, click, strict=True))), file=file)
