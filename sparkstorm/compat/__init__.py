"""Storm's formats: Flux documents, and components in other languages by the multi-lang protocol."""

from sparkstorm.compat.shell import ShellBolt, ShellSpout

__all__ = ["ShellBolt", "ShellSpout"]
