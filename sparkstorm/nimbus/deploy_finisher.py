"""Owns Nimbus's part in hot deploys: those whose driver died over them are gone on with from wherever they stopped.

While a driver is at it, its submission mark keeps others away. Each step can be repeated, so a Nimbus that dies over
this too is followed by one that goes on.
"""

import logging
from collections.abc import Callable

from sparkstorm.cluster.nimbus_state import Deploy
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.errors import SparkStormError, StoreUnavailableError
from sparkstorm.model.assignment import TopologyBase
from sparkstorm.model.status import TopologyStatus
from sparkstorm.nimbus.cleanup import TopologyCleanup
from sparkstorm.nimbus.cluster_reader import Reading

_LOG = logging.getLogger(__name__)
_PATIENCE_MS = 60_000  # a driver that follows has its supervisors up by then


class DeployFinisher:
    """Finishes what other drivers left; `assign` gives a topology its first assignment and its base."""

    def __init__(self, state: StormState, cleanup: TopologyCleanup, assign: Callable[[TopologyBase, Reading, int], None]) -> None:
        self._state = state
        self._cleanup = cleanup
        self._assign = assign
        self._refused_ms: dict[str, int] = {}  # since when, by topology id
        self.problems: dict[str, str] = {}

    def advance(self, reading: Reading, now_ms: int) -> bool:
        """Do what can be done now; True when something was. A refused deploy is tried again at every turn."""
        self.problems = {}
        did = False
        submitting = set(self._state.submission_names())
        for name in self._state.deploy_names():
            if name in submitting:
                continue  # its driver is at it
            try:
                deploy = self._state.read_deploy(name)
                did = (deploy is not None and self._finish(name, deploy, reading, now_ms)) or did
            except StoreUnavailableError:
                raise
            except SparkStormError as error:
                _LOG.error("hot deploy of %s, left over from another driver: %s", name, error)
                self.problems[name] = f"hot deploy not finished: {error}"
        return did

    def _finish(self, name: str, deploy: Deploy, reading: Reading, now_ms: int) -> bool:
        old, new_id = reading.bases.get(deploy.old_id), deploy.base.topology_id
        if old is not None:
            if not _waits_for_heir(old):
                _LOG.warning("hot deploy of %s was never begun; %s runs on", name, deploy.old_id)
                self._state.remove_deploy(name)  # what was stored for the new one is swept
            return False
        if new_id not in reading.bases:
            _LOG.warning("finishing the hot deploy of %s: %s follows %s", name, new_id, deploy.old_id)
            self._hand_over(deploy)
            try:
                self._assign(deploy.base, reading, now_ms)
            except StoreUnavailableError:
                raise
            except SparkStormError:
                self._retreat(name, deploy, now_ms)
                raise
        if not deploy.inherits:
            self._cleanup.retirement.retire(deploy.old_id)
        self._state.remove_deploy(name)
        return True

    def _retreat(self, name: str, deploy: Deploy, now_ms: int) -> None:
        """Let the old one follow instead, unless supervisors may still be joining."""
        refused_ms = self._refused_ms.setdefault(deploy.base.topology_id, now_ms)
        if deploy.fallback is None or now_ms - refused_ms < _PATIENCE_MS:
            return
        _LOG.warning("hot deploy of %s: %s is refused, the old one comes back", name, deploy.base.topology_id)
        if deploy.inherits:
            self._cleanup.retirement.hand_over(deploy.base.topology_id, deploy.old_id)
        self._state.write_deploy(name, Deploy(deploy.old_id, deploy.fallback, inherits=True))
        self._state.remove_topology(deploy.base.topology_id)

    def _hand_over(self, deploy: Deploy) -> None:
        if deploy.inherits:
            self._cleanup.retirement.hand_over(deploy.old_id, deploy.base.topology_id)


def call_off(name: str, state: StormState, cleanup: TopologyCleanup) -> bool:
    """Give up a deploy whose old topology is gone and whose new one cannot start; False when there is none."""
    deploy = state.read_deploy(name)
    if deploy is None:
        return False
    cleanup.retirement.retire(deploy.old_id)
    cleanup.retirement.retire(deploy.base.topology_id)
    state.remove_deploy(name)
    return True


def _waits_for_heir(base: TopologyBase) -> bool:
    return base.status == TopologyStatus.KILLED and base.pending is not None and base.pending.has_heir
