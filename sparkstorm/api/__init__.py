"""Owns what a user imports: spouts, bolts, windowed bolts, TopologyBuilder, collector and context protocols."""

from sparkstorm.api.builder import TopologyBuilder
from sparkstorm.api.collector import BasicOutputCollector, OutputCollector, SpoutOutputCollector
from sparkstorm.api.combining import CombiningBolt
from sparkstorm.api.components import BasicBolt, Bolt, Effects, ReplayableSpout, Spout, Stateful, StatefulBolt
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.state import KeyValueState
from sparkstorm.api.windows import Count, Duration, FoldingBolt, TimedBolt, Timers, Window, WindowedBolt
from sparkstorm.model.shared_memory import (
    SharedMemory,
    shared_off_heap_within_node,
    shared_off_heap_within_worker,
    shared_on_heap,
)
from sparkstorm.model.topology import Stream
from sparkstorm.model.tuples import Tuple
from sparkstorm.windowing.timers import Timer

__all__ = [
    "BasicBolt",
    "BasicOutputCollector",
    "Bolt",
    "CombiningBolt",
    "Count",
    "Duration",
    "Effects",
    "FoldingBolt",
    "KeyValueState",
    "OutputCollector",
    "ReplayableSpout",
    "SharedMemory",
    "Spout",
    "SpoutOutputCollector",
    "Stateful",
    "StatefulBolt",
    "Stream",
    "TimedBolt",
    "Timer",
    "Timers",
    "TopologyBuilder",
    "TopologyContext",
    "Tuple",
    "Window",
    "WindowedBolt",
    "shared_off_heap_within_node",
    "shared_off_heap_within_worker",
    "shared_on_heap",
]
