"""What comes from Storm: Flux documents, and components in other languages by Storm's multi-lang protocol."""

from sparkstorm.compat.shell import ShellBolt, ShellSpout

__all__ = ["ShellBolt", "ShellSpout"]
