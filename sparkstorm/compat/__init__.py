"""Storm's formats: Flux documents, components in other languages by the multi-lang protocol,
requests by DRPC's HTTP route.
"""

from sparkstorm.compat.drpc import DrpcSpout, ReturnResults
from sparkstorm.compat.shell import ShellBolt, ShellSpout

__all__ = ["DrpcSpout", "ReturnResults", "ShellBolt", "ShellSpout"]
