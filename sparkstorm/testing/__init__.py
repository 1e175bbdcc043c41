"""Names that tests of topologies import: a cluster in one thread under simulated time, and
components for tests (docs/testing.md).

Each is imported when it is first used.
"""

from typing import TYPE_CHECKING

from sparkstorm.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from sparkstorm.common.model.dead_letter import DeadLetter as DeadLetter
    from sparkstorm.testing.complete import Completed as Completed
    from sparkstorm.testing.complete import complete_topology as complete_topology
    from sparkstorm.testing.components import AckFailTracker as AckFailTracker
    from sparkstorm.testing.components import CaptureBolt as CaptureBolt
    from sparkstorm.testing.components import FeederSpout as FeederSpout
    from sparkstorm.testing.components import FlakyBolt as FlakyBolt
    from sparkstorm.testing.components import Nothing as Nothing
    from sparkstorm.testing.components import PoisonBolt as PoisonBolt
    from sparkstorm.testing.components import SlowBolt as SlowBolt
    from sparkstorm.testing.components import TargetSink as TargetSink
    from sparkstorm.testing.determinism import Finding as Finding
    from sparkstorm.testing.determinism import NondeterminismError as NondeterminismError
    from sparkstorm.testing.determinism import check_deterministic as check_deterministic
    from sparkstorm.testing.determinism import find_nondeterminism as find_nondeterminism
    from sparkstorm.testing.in_process_worker import die as die
    from sparkstorm.testing.local_cluster import LocalCluster as LocalCluster
    from sparkstorm.testing.servers.demo_cluster import DemoCluster as DemoCluster
    from sparkstorm.testing.servers.demo_cluster import demo_cluster as demo_cluster
    from sparkstorm.testing.shared import Shared as Shared
    from sparkstorm.testing.simulation import SimulatedDeath as SimulatedDeath
    from sparkstorm.testing.simulation import Simulation as Simulation
    from sparkstorm.testing.simulation import spend as spend
    from sparkstorm.testing.trial import Subject as Subject
    from sparkstorm.testing.trials import Report as Report
    from sparkstorm.testing.trials import SimulationError as SimulationError
    from sparkstorm.testing.trials import simulate as simulate

__all__, __getattr__, __dir__ = lazy_names(
    globals(),
    {
        "sparkstorm.common.model.dead_letter": ["DeadLetter"],
        "sparkstorm.testing.complete": ["Completed", "complete_topology"],
        "sparkstorm.testing.components": [
            "AckFailTracker",
            "CaptureBolt",
            "FeederSpout",
            "FlakyBolt",
            "Nothing",
            "PoisonBolt",
            "SlowBolt",
            "TargetSink",
        ],
        "sparkstorm.testing.determinism": [
            "Finding",
            "NondeterminismError",
            "check_deterministic",
            "find_nondeterminism",
        ],
        "sparkstorm.testing.in_process_worker": ["die"],
        "sparkstorm.testing.local_cluster": ["LocalCluster"],
        "sparkstorm.testing.servers.demo_cluster": ["DemoCluster", "demo_cluster"],
        "sparkstorm.testing.shared": ["Shared"],
        "sparkstorm.testing.simulation": ["SimulatedDeath", "Simulation", "spend"],
        "sparkstorm.testing.trial": ["Subject"],
        "sparkstorm.testing.trials": ["Report", "SimulationError", "simulate"],
    },
)
