"""Topologies as a chain of steps, which become components of a TopologyBuilder.

>>> from sparkstorm.api import spout
>>> @spout("line")
... def lines():
...     return ["a b a"]
>>> def split(tup):
...     yield from tup["line"].split()
>>> def count(tup, state):
...     yield tup["word"], state.add(tup["word"], 1)
>>> topology = stream(lines).flat_map(split, "word").key_by("word").update(count, "word", "count").build()
>>> [(component.id, component.kind) for component in topology]
[('lines', 'spout'), ('split', 'bolt'), ('count', 'bolt')]

A step is a component of its function's name, which errors, states and the page show (decision 62).
"""

from sparkstorm.streams.as_of_join import AsOfJoinBolt
from sparkstorm.streams.calendar import (
    CalendarBolt,
    CalendarShape,
    local_day,
    local_month,
    local_week,
)
from sparkstorm.streams.chain import (
    FilterBolt,
    KeyedStream,
    MapBolt,
    Stream,
    StreamStep,
    WindowedStream,
    stream,
)
from sparkstorm.streams.interval_join import IntervalJoinBolt
from sparkstorm.streams.keyed_join import KeyedJoin
from sparkstorm.streams.lookup import LookupBolt, LookupSource

__all__ = [
    "AsOfJoinBolt",
    "CalendarBolt",
    "CalendarShape",
    "FilterBolt",
    "IntervalJoinBolt",
    "KeyedJoin",
    "KeyedStream",
    "LookupBolt",
    "LookupSource",
    "MapBolt",
    "Stream",
    "StreamStep",
    "WindowedStream",
    "local_day",
    "local_month",
    "local_week",
    "stream",
]
