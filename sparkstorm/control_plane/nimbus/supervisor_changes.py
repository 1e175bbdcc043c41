"""Supervisors whose records have changed since a leading Nimbus read them.

They write their records every few seconds. A round for each of these heartbeats would read the
whole cluster; one record shows whether there is anything to place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparkstorm.common.errors import StoreInconsistentError
from sparkstorm.common.model.assignment import SupervisorInfo
from sparkstorm.control_plane.cluster.base import Hint
from sparkstorm.control_plane.cluster.storm_state import StormState


class SupervisorChanges:
    """Watch over supervisors' records; hints come from any thread."""

    def __init__(self, state: StormState, wake: Callable[[], None]) -> None:
        self._state = state
        self._wake = wake
        self._hint_by_node: dict[str, Hint] = {}
        self._changed: set[str] = set()
        self._known: Mapping[str, SupervisorInfo] = {}  # as they were read
        self.has_new_trials = False
        """Whether one was found with new trials of code, a reason to serve requests."""

    def hint_of(self, node: str) -> Hint:
        """Return a node's hint, the same each time: a watch is then set once, and not once a
        reading.
        """
        return self._hint_by_node.setdefault(node, lambda: self._note(node))

    def _note(self, node: str) -> None:
        self._changed.add(node)
        self._wake()

    def begin_reading(self) -> None:
        """Forget what has changed: all records are read after this."""
        self._changed.clear()

    def note_read(self, supervisors: Mapping[str, SupervisorInfo]) -> None:
        """Take note of all records as they were read."""
        self._known = supervisors
        self._hint_by_node = {
            node: hint for node, hint in self._hint_by_node.items() if node in supervisors
        }

    def needs_scheduling(self) -> bool:
        """Look at those that changed; return whether one offers a slot that was not there, or has
        lost or found Redis or its driver.
        """
        self.has_new_trials = False
        while self._changed:
            node = self._changed.pop()
            try:
                info = self._state.read_supervisor(node, self.hint_of(node))
            except StoreInconsistentError:
                continue  # the next round names it
            if info is None:
                continue
            before = self._known.get(node)
            if before is None or set(info.ports) - set(before.ports):
                return True
            if _reachable_servers(before) != _reachable_servers(info):
                return True
            new_trials = (info.trials or {}).keys() - (before.trials or {}).keys()
            self.has_new_trials |= bool(new_trials)
        return False


def _reachable_servers(info: SupervisorInfo) -> tuple[bool, ...]:
    """Return whether a supervisor's host reaches each store and its driver."""
    ways = (info.store_problem, *info.other_stores.values(), info.driver_problem)
    return tuple(not problem for problem in ways)
