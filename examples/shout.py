from sparkstorm.api import bolt
from sparkstorm.connectors import FileLines, find_files
from sparkstorm.streams import stream


@bolt("word")
def shout(tup):
    yield from tup["line"].upper().split()


@bolt(key="word")
def count(tup, state):
    state.add(tup["word"], 1)  # stored in the same commit as the ack


def build(input=(__file__,)):
    lines = stream(FileLines(find_files(input)), name="lines")
    return lines.through(shout, parallelism=2).through(count, parallelism=2).build()
