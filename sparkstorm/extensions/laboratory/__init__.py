"""The scheduler laboratory: schedulers on problems from files or generated ones, compared without a
cluster.
"""

from sparkstorm.extensions.laboratory.costs import costs
from sparkstorm.extensions.laboratory.generator import CLUSTERS, SHAPES, generate
from sparkstorm.extensions.laboratory.network import Network, predict
from sparkstorm.extensions.laboratory.scene import Scene, compare, former_slots, moved

__all__ = [
    "CLUSTERS",
    "SHAPES",
    "Network",
    "Scene",
    "compare",
    "costs",
    "former_slots",
    "generate",
    "moved",
    "predict",
]
