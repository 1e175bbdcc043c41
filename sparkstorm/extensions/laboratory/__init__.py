"""The scheduler laboratory: schedulers on problems from files or generated ones, compared without a
cluster.
"""

from sparkstorm.extensions.laboratory.scene import Scene, compare, former_slots, generate, moved

__all__ = ["Scene", "compare", "former_slots", "generate", "moved"]
