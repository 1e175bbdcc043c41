"""Names that tests of topologies import: a cluster in one thread under simulated time, and components made for tests.

docs/api.md lists each name.
"""

from sparkstorm.model.dead_letter import DeadLetter
from sparkstorm.testing.complete import Completed, complete_topology
from sparkstorm.testing.components import (
    AckFailTracker,
    CaptureBolt,
    FeederSpout,
    FlakyBolt,
    Nothing,
    PoisonBolt,
    SlowBolt,
)
from sparkstorm.testing.determinism import Finding, NondeterminismError, check_deterministic, find_nondeterminism
from sparkstorm.testing.in_process_worker import die
from sparkstorm.testing.local_cluster import LocalCluster
from sparkstorm.testing.shared import Shared
from sparkstorm.testing.simulated_time import SimulatedDeath, spend
from sparkstorm.testing.simulation import Simulation
from sparkstorm.testing.trial import Subject
from sparkstorm.testing.trials import Report, SimulationError, simulate

__all__ = [
    "AckFailTracker",
    "CaptureBolt",
    "Completed",
    "DeadLetter",
    "FeederSpout",
    "Finding",
    "FlakyBolt",
    "LocalCluster",
    "NondeterminismError",
    "Nothing",
    "PoisonBolt",
    "Report",
    "Shared",
    "SimulatedDeath",
    "Simulation",
    "SimulationError",
    "SlowBolt",
    "Subject",
    "check_deterministic",
    "complete_topology",
    "die",
    "find_nondeterminism",
    "simulate",
    "spend",
]
