"""Parts that the duties of Nimbus's turn share: the stores, the assigner, the clean-up, and the
writer of outcomes.

One record instead of six arguments of each duty; a duty takes what it uses by its name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkstorm.common.errors import SparkStormError, StoreInconsistentError, TamperedBlobError
from sparkstorm.common.model.requests import Outcome, OutcomeState
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.assigner import Assigner
from sparkstorm.control_plane.nimbus.cleanup import TopologyCleanup
from sparkstorm.control_plane.nimbus.cluster_reader import ClusterReader
from sparkstorm.control_plane.nimbus.hooks import NimbusHooks

_LOG = logging.getLogger(__name__)


class OutcomeWriter:
    """Writer of later states of accepted requests; a final outcome, or one that its client has
    removed, stays as it is.
    """

    def __init__(self, state: StormState) -> None:
        self._state = state

    def step(self, request_id: str, now_ms: int, sentence: str) -> None:
        """Write the progress of the request."""
        self._change(request_id, now_ms, step=sentence)

    def done(self, request_id: str, now_ms: int, topology_id: str) -> None:
        """Write that the request is carried out."""
        self._change(request_id, now_ms, state=OutcomeState.DONE, topology_id=topology_id)

    def refuse(self, request_id: str, now_ms: int, error: SparkStormError) -> None:
        """Write that the request ends in an error."""
        kind = type(error).__name__
        self._change(
            request_id, now_ms, state=OutcomeState.REFUSED, error_kind=kind, error=str(error)
        )

    def _change(self, request_id: str, now_ms: int, **changes: Any) -> None:
        if not request_id:
            return  # no client: a rebalance of Nimbus's own
        try:
            outcome = self._state.read_outcome(request_id)
        # The request's own work is done; an outcome that cannot be written must not undo it.
        except (StoreInconsistentError, TamperedBlobError) as error:
            _LOG.error("an outcome cannot be followed up: %s", error)
            return
        # Compared before it is written: a step that is reported in each turn would otherwise be a
        # write, and wake its client, each time.
        if outcome is not None and not outcome.is_final and replace(outcome, **changes) != outcome:
            self._state.write_outcome(replace(outcome, time_ms=now_ms, **changes))


def refusal_of(request_id: str, now_ms: int, error: SparkStormError) -> Outcome:
    """Make the outcome of a request that is refused at once."""
    return Outcome(
        request_id, OutcomeState.REFUSED, now_ms, error_kind=type(error).__name__, error=str(error)
    )


@dataclass(frozen=True, slots=True)
class NimbusParts:
    """Shared parts of one leadership."""

    state: StormState
    blobs: BlobStore
    conf: Mapping[str, Any]
    reader: ClusterReader
    assigner: Assigner
    cleanup: TopologyCleanup
    outcomes: OutcomeWriter
    hooks: NimbusHooks
