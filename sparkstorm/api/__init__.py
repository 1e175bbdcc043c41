"""Owns what a user imports: Spout, Bolt, BasicBolt, StatefulBolt, TopologyBuilder, collector and context protocols."""

from sparkstorm.api.builder import TopologyBuilder
from sparkstorm.api.collector import BasicOutputCollector, OutputCollector, SpoutOutputCollector
from sparkstorm.api.components import BasicBolt, Bolt, ReplayableSpout, Spout, Stateful, StatefulBolt
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.state import KeyValueState
from sparkstorm.model.topology import Stream
from sparkstorm.model.tuples import Tuple

__all__ = [
    "BasicBolt", "BasicOutputCollector", "Bolt", "KeyValueState", "OutputCollector", "ReplayableSpout", "Spout",
    "SpoutOutputCollector", "Stateful", "StatefulBolt", "Stream", "TopologyBuilder", "TopologyContext", "Tuple",
]
