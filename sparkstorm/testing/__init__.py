"""Names that tests of topologies import: a cluster in one thread under simulated time, and
components made for tests.

docs/api.md lists each name. Each is imported when it is first used: a worker process whose topology
uses one module of this package does not import a cluster.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkstorm.common.model.dead_letter import DeadLetter
    from sparkstorm.testing.complete import Completed, complete_topology
    from sparkstorm.testing.components import (
        AckFailTracker,
        CaptureBolt,
        FeederSpout,
        FlakyBolt,
        Nothing,
        PoisonBolt,
        SlowBolt,
        TargetSink,
    )
    from sparkstorm.testing.determinism import (
        Finding,
        NondeterminismError,
        check_deterministic,
        find_nondeterminism,
    )
    from sparkstorm.testing.in_process_worker import die
    from sparkstorm.testing.local_cluster import LocalCluster
    from sparkstorm.testing.shared import Shared
    from sparkstorm.testing.simulation import SimulatedDeath, Simulation, spend
    from sparkstorm.testing.trial import Subject
    from sparkstorm.testing.trials import Report, SimulationError, simulate

_MODULES = {
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
    "sparkstorm.testing.shared": ["Shared"],
    "sparkstorm.testing.simulation": ["SimulatedDeath", "Simulation", "spend"],
    "sparkstorm.testing.trial": ["Subject"],
    "sparkstorm.testing.trials": ["Report", "SimulationError", "simulate"],
}
_MODULE_BY_NAME = {name: module for module, names in _MODULES.items() for name in names}

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
    "TargetSink",
    "check_deterministic",
    "complete_topology",
    "die",
    "find_nondeterminism",
    "simulate",
    "spend",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULE_BY_NAME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
