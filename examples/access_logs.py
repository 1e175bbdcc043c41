"""Access logs: counts by status and bytes by path; lines that are no log lines go to a stream of
their own.
"""

import random
import re

from sparkstorm.api import BasicBolt, TopologyBuilder, bolt
from sparkstorm.connectors import FileLines, find_files

LINE = re.compile(
    r'\S+ \S+ \S+ \[[^\]]+\] "(?:GET|POST) (?P<path>\S+) [^"]*" (?P<status>\d{3}) (?P<bytes>\d+)'
)


def make(count, seed=0):
    """Make lines of an access log; one in fifty is cut."""
    chance = random.Random(seed)
    lines = []
    for n in range(count):
        path = chance.choice(["/", "/shop", "/shop/cart", "/about"])
        status = chance.choice([200, 200, 200, 304, 404, 500])
        line = f'10.0.0.{n % 250} - - [24/Nov/2026:12:00:{n % 60:02} +0000] "GET {path} HTTP/1.1" {status} {chance.randrange(5000)}'
        lines.append(line[:40] if chance.randrange(50) == 0 else line)
    return lines


class Parse(BasicBolt):
    outputs = {"default": ["path", "status", "bytes"], "bad": ["line"]}  # noqa: RUF012

    def execute(self, tup, collector):
        match = LINE.match(tup["line"])
        if match is None:
            collector.emit([tup["line"]], stream="bad")
        else:
            collector.emit([match["path"], match["status"], int(match["bytes"])])


@bolt(key="status")
def by_status(tup, state):
    state.add(tup["status"], 1)


@bolt(key="path")
def by_path(tup, state):
    state.add(tup["path"], tup["bytes"])


def build(input=("access.log",)):
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(find_files(input)))
    builder.set_bolt("parse", Parse(), inputs="lines", parallelism=2)
    builder.set_bolt("by_status", by_status, inputs="parse", parallelism=2)
    builder.set_bolt("by_path", by_path, inputs="parse", parallelism=2)
    return builder.build()


if __name__ == "__main__":
    with open("access.log", "w", encoding="utf-8") as file:
        file.write("\n".join(make(10_000)) + "\n")
