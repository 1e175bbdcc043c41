"""Trials of submitted code on a supervisor's host, before Nimbus accepts the request that brings
it.

The code of every undecided request is fetched and checked as for a worker, then opened in a fresh
process with the environment of this host's workers. The verdicts are published in the supervisor's
record (`SupervisorInfo.trials`).
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sparkstorm.common.errors import SparkStormError, StoreUnavailableError
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.base import no_hint
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.supervisor.base import NodeStorage

_LOG = logging.getLogger(__name__)
_AT_ONCE = 4
_RETRY_MS = 3_000  # after a store has not answered, or the machine has refused a process or a file


class RunningTrial(Protocol):
    """A process that opens a topology's code; no method but `close` may wait, and that one
    briefly.
    """

    def poll(self) -> str | None:
        """Return None while it runs, then why the code does not open: empty when it does."""

    def close(self) -> None:
        """Kill it if it runs, and release what it holds."""


class CodeTrials:
    """Trials of one supervisor; `start` opens a code file in a fresh process, OSError when the
    machine refuses it.
    """

    def __init__(
        self,
        state: StormState,
        blobs: BlobStore,
        node_dir: NodeStorage,
        port: int,
        start: Callable[[Path], RunningTrial],
    ) -> None:
        self._state = state
        self._blobs = blobs
        self._dir = node_dir
        self._port = port
        self._start = start
        self._running: dict[str, RunningTrial] = {}
        self._not_before_ms = 0
        self.verdicts: dict[str, str] = {}
        """Why code does not open here, empty when it does, by the blob keys of undecided
        requests.
        """

    def step(self, now_ms: int) -> bool:
        """Take ended trials in, begin new ones and drop those of decided requests; return whether
        verdicts have changed.
        """
        before = self.verdicts
        opened, _ = self._state.open_requests(no_hint)
        wanted = {
            request.base.code_key: request.topology_id
            for request, outcome in opened
            if request.base is not None and outcome is None
        }
        for key, trial in list(self._running.items()):
            verdict = trial.poll()
            if verdict is not None:
                self.verdicts = {**self.verdicts, key: verdict}
            if verdict is not None or key not in wanted:
                trial.close()
                del self._running[key]
        self.verdicts = {key: verdict for key, verdict in self.verdicts.items() if key in wanted}
        for key in wanted.keys() - self.verdicts.keys() - self._running.keys():
            if len(self._running) < _AT_ONCE and now_ms >= self._not_before_ms:
                self._begin(key, wanted[key], now_ms)
        return self.verdicts != before

    def _begin(self, key: str, topology_id: str, now_ms: int) -> None:
        try:
            path = self._dir.keep_code(topology_id, key, self._port, now_ms, self._blobs.get)
            self._running[key] = self._start(path)
        except (StoreUnavailableError, OSError) as fault:
            # other duties of the slot go on meanwhile
            _LOG.warning("code of %s cannot be tried now: %s", topology_id, fault)
            self._not_before_ms = now_ms + _RETRY_MS
        except SparkStormError as fault:
            self.verdicts = {**self.verdicts, key: str(fault)}

    def close(self) -> None:
        """End what runs."""
        for trial in self._running.values():
            trial.close()
        self._running.clear()
