"""`topology.ras.constraints`: components that may not share a worker, and limits of executors per
node (Storm's ConstraintSolverConfig): for components that would compete for one disk, device or
licence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.control_plane.scheduling.records import TopologyView
from sparkstorm.control_plane.scheduling.settings import MachineSettings, StrategySettings

CONSTRAINTS_KEY = "topology.ras.constraints"


class Constraints:
    """Constraints of a topology's conf; rules for unknown components are ignored (Storm's
    ConstraintSolverConfig).

    InvalidTopologyError when the conf is neither {component: rules} nor a list of pairs.
    """

    def __init__(self, topology: TopologyView) -> None:
        self.incompatible: dict[str, set[str]] = {
            part.id: set() for part in topology.components if part.executors
        }
        self.max_on_node: dict[str, int] = {}
        wanted = StrategySettings.of_partial(topology.conf).constraints
        if isinstance(wanted, Mapping):
            for component, rules in wanted.items():
                self._add_rules(component, rules)
        elif isinstance(wanted, Sequence) and all(_is_pair(pair) for pair in wanted):
            for first, second in wanted:
                self._add_pair(first, second)
        elif wanted is not None:
            raise InvalidTopologyError(
                f"{CONSTRAINTS_KEY}: expected {{component: rules}} or pairs, got {wanted!r:.100}"
            )
        for component in MachineSettings.of_partial(topology.conf).spread or ():
            if component in self.incompatible:
                self.max_on_node.setdefault(component, 1)

    def _add_pair(self, first: str, second: str) -> None:
        if first in self.incompatible and second in self.incompatible:
            self.incompatible[first].add(second)
            self.incompatible[second].add(first)

    def _add_rules(self, component: str, rules: Mapping[str, Any]) -> None:
        if component not in self.incompatible:
            return
        if not isinstance(rules, Mapping):
            raise InvalidTopologyError(
                f"{CONSTRAINTS_KEY}: {component}: expected a map of rules, got {rules!r:.100}"
            )
        others = rules.get("incompatibleComponents") or ()
        others = [others] if isinstance(others, str) else others
        if not isinstance(others, (list, tuple)) or not all(
            isinstance(name, str) for name in others
        ):
            raise InvalidTopologyError(
                f"{CONSTRAINTS_KEY}: {component}: expected incompatible components, got {others!r:.100}"
            )
        for other in others:
            self._add_pair(component, other)
        limit = str(rules.get("maxNodeCoLocationCnt", ""))
        if limit.isdecimal() and int(limit) > 0:
            self.max_on_node[component] = int(limit)


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 2
        and all(isinstance(name, str) for name in value)
    )
