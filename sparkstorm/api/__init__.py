"""Public API for topologies (docs/api.md)."""

from sparkstorm.api.async_bolts import AsyncBolt
from sparkstorm.api.builder import Declarer, TopologyBuilder
from sparkstorm.api.collector import (
    BasicOutputCollector,
    OutputCollector,
    SpoutOutputCollector,
    Values,
)
from sparkstorm.api.columns import BatchCollector, ColumnBolt
from sparkstorm.api.combining import CombiningBolt
from sparkstorm.api.components import (
    BasicBolt,
    Bolt,
    Conf,
    Effects,
    Outputs,
    ReplayableSpout,
    Spout,
    Stateful,
    StatefulBolt,
)
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.functions import bolt, fold, session, sliding, spout, tumbling, windowed
from sparkstorm.api.hooks import TaskHook, WorkerContext, WorkerHook
from sparkstorm.api.inputs import custom, fields, key_range, partial_key
from sparkstorm.api.joins import JoinBolt
from sparkstorm.api.sinks import RefusedRows, TransactionalSink, find_refused
from sparkstorm.api.state import ExpiringState, KeyValueState
from sparkstorm.api.windows import Count as Count
from sparkstorm.api.windows import Duration, FoldingBolt, TimedBolt, Timers, Window, WindowedBolt
from sparkstorm.common.errors import InvalidTopologyError, SparkStormError
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.shared_memory import (
    SharedMemory,
    shared_off_heap_within_node,
    shared_off_heap_within_worker,
    shared_on_heap,
)
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.common.model.topology import Grouping, Stream, Topology
from sparkstorm.common.model.tuples import Source, Tuple
from sparkstorm.common.windowing.timers import Timer

__all__ = [
    "AsyncBolt",
    "BasicBolt",
    "BasicOutputCollector",
    "BatchCollector",
    "Bolt",
    "ColumnBolt",
    "CombiningBolt",
    "Conf",
    "Declarer",
    "Duration",
    "Effects",
    "ExpiringState",
    "Failure",
    "FailureKind",
    "FoldingBolt",
    "Grouping",
    "InvalidTopologyError",
    "JoinBolt",
    "KeyValueState",
    "OutputCollector",
    "Outputs",
    "RebalanceOptions",
    "RefusedRows",
    "ReplayableSpout",
    "SharedMemory",
    "Source",
    "SparkStormError",
    "Spout",
    "SpoutOutputCollector",
    "Stateful",
    "StatefulBolt",
    "Stream",
    "TaskHook",
    "TimedBolt",
    "Timer",
    "Timers",
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "TransactionalSink",
    "Tuple",
    "Values",
    "Window",
    "WindowedBolt",
    "WorkerContext",
    "WorkerHook",
    "bolt",
    "custom",
    "fields",
    "find_refused",
    "fold",
    "key_range",
    "partial_key",
    "session",
    "shared_off_heap_within_node",
    "shared_off_heap_within_worker",
    "shared_on_heap",
    "sliding",
    "spout",
    "tumbling",
    "windowed",
]
