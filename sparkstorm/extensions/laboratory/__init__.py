"""The scheduler laboratory: schedulers on problems from files or generated ones, compared without a
cluster.
"""

from sparkstorm.extensions.laboratory.costs import costs
from sparkstorm.extensions.laboratory.events import (
    Back,
    Killed,
    Lost,
    Moment,
    Rates,
    Submitted,
    play,
)
from sparkstorm.extensions.laboratory.generator import CLUSTERS, SHAPES, generate
from sparkstorm.extensions.laboratory.network import Network, predict
from sparkstorm.extensions.laboratory.results import Sweep, latex
from sparkstorm.extensions.laboratory.scene import Scene, compare, former_slots, moved
from sparkstorm.extensions.laboratory.sweeps import sweep
from sparkstorm.extensions.laboratory.traces import from_alibaba, from_google

__all__ = [
    "CLUSTERS",
    "SHAPES",
    "Back",
    "Killed",
    "Lost",
    "Moment",
    "Network",
    "Rates",
    "Scene",
    "Submitted",
    "Sweep",
    "compare",
    "costs",
    "former_slots",
    "from_alibaba",
    "from_google",
    "generate",
    "latex",
    "moved",
    "play",
    "predict",
    "sweep",
]
