"""Components of other systems: Storm's Flux, multi-lang and DRPC; Spark's StatefulProcessor."""

from sparkstorm.compat.drpc import DrpcSpout, ReturnResults
from sparkstorm.compat.shell import ShellBolt, ShellSpout
from sparkstorm.compat.stateful_processor import ProcessorBolt

__all__ = ["DrpcSpout", "ProcessorBolt", "ReturnResults", "ShellBolt", "ShellSpout"]
