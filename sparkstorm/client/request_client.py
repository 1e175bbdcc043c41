"""A client's side of requests: writes a request, waits for its outcome, withdraws it, cleans up
after it.

Needs the stores alone: no Nimbus in memory, no Spark, no Java. A client that dies at any write
leaves what Nimbus sweeps.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sparkstorm.common import errors
from sparkstorm.common.clock import Clock
from sparkstorm.common.errors import (
    FailedAssignTopologyError,
    InvalidConfigError,
    NimbusUnavailableError,
    SparkStormError,
    StateConflictError,
    StoreInconsistentError,
    StoreUnavailableError,
    TamperedBlobError,
)
from sparkstorm.common.model.requests import Outcome, OutcomeState, Request, RequestKind
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.settings import NimbusSettings
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.storm_state import StormState

_CARRY_OUT_MS = 300_000  # S0.61
# Silence of ZooKeeper after which an accepted request is waited for no longer: half of it is an
# election of its servers on a busy machine. Embedded servers have other addresses after a restart.
_SILENCE_MS = 60_000
_POLL_MS = 500  # between two readings of an outcome when no hint came
Progress = Callable[[str], None]
"""Called with each new step of a request, one sentence."""
WaitUntil: TypeAlias = Callable[[Callable[[], bool], int], bool]
"""Waits until a condition holds or a number of milliseconds has passed; returns whether it
holds.
"""
_PAUSE_S = 0.01


def wait_in_real_time(condition: Callable[[], bool], timeout_ms: int) -> bool:
    """Look at a condition every ten milliseconds; the simulation has its own way to wait."""
    deadline = time.monotonic() + timeout_ms / 1000
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


class RequestClient:
    """Requests of one session, with the blobs and outcomes that belong to them."""

    def __init__(
        self,
        state: StormState,
        blobs: BlobStore,
        conf: Mapping[str, Any],
        clock: Clock,
        wait_until: WaitUntil,
    ) -> None:
        self.state = state
        self.clock = clock
        self.wait_until = wait_until
        self.accept_ms = NimbusSettings.of(conf).request_timeout_ms
        self.hints = 0  # how many outcomes have changed so far
        self._blobs = blobs

    def note(self) -> None:
        """Take in that an outcome has changed; one method for all requests, since stores never drop
        a hint.
        """
        self.hints += 1

    def begin(self, request: Request) -> PendingRequest:
        """Write a request; from then on it is carried out even if this process ends."""
        try:
            self.state.create_request(request)
        except ValueError as error:
            raise InvalidConfigError(
                f"the request for {request.subject} is too large: {error}"
            ) from error
        if request.has_state:
            with contextlib.suppress(StoreUnavailableError):  # the mark ends with the session
                self.state.unprotect(request.topology_id)
        return PendingRequest(self, request)

    def finish(self, request: Request, is_done: bool) -> None:
        """Remove a decided request and what only it needed; what cannot be removed now is swept by
        Nimbus.
        """
        with contextlib.suppress(StoreUnavailableError, StoreInconsistentError, TamperedBlobError):
            self.state.remove_request(request.id)
            self.state.remove_outcome(request.id)
            if request.base is None:
                return
            self._blobs.delete(request.outline_key)
            if not is_done:
                self.discard_blobs(
                    key for key in request.blob_keys() if self._is_ours(key, request.base.launch_ms)
                )

    def _is_ours(self, key: str, stored_ms: int) -> bool:
        """Return whether no other client has stored the same bytes since; such a client may be
        about to name them.
        """
        try:
            metadata = self.state.read_blob_metadata(key)
        except (StoreInconsistentError, TamperedBlobError):
            return False
        return metadata is not None and metadata.created_ms == stored_ms

    def discard_blobs(self, keys: Iterable[str]) -> None:
        """Delete blobs that no record names; none at all when a record that may name them cannot be
        read.
        """
        state = self.state
        named = set()
        try:
            for topology_id in state.topology_ids():
                records = (state.read_assignment(topology_id), state.read_upgrade(topology_id))
                named |= {key for record in records if record for key in record.blob_keys()}
                if base := state.read_base(topology_id):
                    named |= {base.code_key, base.conf_key}
            for request_id in state.request_ids():
                if request := state.read_request(request_id):
                    named |= request.blob_keys()
            for name in state.deploy_names():
                if deploy := state.read_deploy(name):
                    named |= {
                        key for base in deploy.bases() for key in (base.code_key, base.conf_key)
                    }
        except (StoreInconsistentError, TamperedBlobError):
            return
        for key in set(keys) - named:
            self._blobs.delete(key)

    def leader_sentence(self) -> str:
        """Return the name of the leader, for an error."""
        leader = self.state.read_leader()
        if leader is None:
            return f"no Nimbus leads at {self.state.store.address}: start a cluster there"
        return f"{leader.owner} leads at {self.state.store.address} but did not answer: see the log of that driver"


class PendingRequest:
    """One request of this process from its creation to its final outcome."""

    def __init__(self, client: RequestClient, request: Request) -> None:
        self.id = request.id
        self.request = request
        self._client = client
        self._outcome: Outcome | None = None
        self._fault: StoreUnavailableError | None = None
        self._answered_ms = client.clock.now_ms()
        self._seen_hints = -1
        self._looked_ms = 0
        # accepted once, and since then gone from ZooKeeper with its outcome
        self._is_forgotten = False

    def poll(self) -> Outcome | None:
        """Read how far it is; None while no Nimbus has taken it up."""
        outcome = self._client.state.read_outcome(self.id, self._client.note)
        if outcome is not None and (self._outcome is None or not self._outcome.is_final):
            self._outcome = outcome
        # Nimbus keeps an accepted request and its outcome until the request is decided: both are
        # gone only with ZooKeeper's data.
        self._is_forgotten = (
            outcome is None
            and self._outcome is not None
            and not self._outcome.is_final
            and self._client.state.read_request(self.id) is None
        )
        return self._outcome

    def withdraw(self) -> bool:
        """Take the request back: True when it is never carried out, False when Nimbus has accepted
        or ended it.
        """
        if (outcome := self.poll()) is None:
            outcome = Outcome(self.id, OutcomeState.WITHDRAWN, self._client.clock.now_ms())
            if not self._client.state.create_outcome(outcome):
                return self.withdraw()
            if self._client.state.read_request(self.id) is None:
                self._client.state.remove_outcome(self.id)
                raise StoreInconsistentError(
                    f"the request to {_verb(self.request)} was ended and swept before its outcome was read; look at the topology"
                )
        if outcome.state is not OutcomeState.WITHDRAWN:
            return False
        self._outcome = outcome
        # A Nimbus that has not read the request would serve a copy. What cannot be noted keeps its
        # outcome until the sweep.
        with contextlib.suppress(
            StoreUnavailableError, StoreInconsistentError, TamperedBlobError, StateConflictError
        ):
            self._client.state.note_served({self.id: self.request.expires_ms})
            self._client.finish(self.request, is_done=False)
        return True

    def wait(self, progress: Progress | None = None) -> Outcome:
        """Wait for the outcome DONE; raise the error with which Nimbus refused the request.

        NimbusUnavailableError: no Nimbus accepted it in time, and it is withdrawn. Once accepted it
        is waited for longer. A KeyboardInterrupt withdraws it unless Nimbus has accepted it, and
        names the case.
        """
        try:
            return self._wait(progress)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._interrupted()) from None

    def _interrupted(self) -> str:
        verb = f"the request to {_verb(self.request)}"
        try:
            return (
                f"{verb} is withdrawn"
                if self.withdraw()
                else f"{verb} was accepted; Nimbus goes on with it"
            )
        except SparkStormError as error:
            return f"{verb} may be carried out: {error}"

    def _wait(self, progress: Progress | None) -> Outcome:
        client = self._client
        said = [""]

        def is_decided() -> bool:
            self._look()
            return self._outcome is not None

        def is_final() -> bool:
            outcome = self._look()
            if progress and outcome and outcome.step and outcome.step != said[-1]:
                said.append(outcome.step)
                progress(outcome.step)
            # A request that no Nimbus can read any more would be waited for until the limit: 300 s
            # for nothing.
            is_over = self._is_forgotten or (outcome is not None and outcome.is_final)
            return is_over or self._is_cut_off

        if not client.wait_until(is_decided, client.accept_ms) and self.withdraw():
            raise NimbusUnavailableError(
                f"no Nimbus served the request to {_verb(self.request)} within {client.accept_ms // 1000} s; "
                f"it is withdrawn; {client.leader_sentence()}"
            )
        if not client.wait_until(is_final, self._limit_ms()):
            raise self._unfinished()
        if self._is_cut_off:
            raise StoreUnavailableError(
                f"the request to {_verb(self.request)} was accepted, and Nimbus goes on with it, but for {_SILENCE_MS // 1000} s: "
                f"{self._fault}; a cluster with embedded servers has other addresses after a restart: look at the topology"
            )
        if self._is_forgotten:
            raise StoreInconsistentError(
                f"the request to {_verb(self.request)} was accepted, but ZooKeeper holds neither it nor its outcome any more: "
                "ZooKeeper was emptied or put back to an older state; look at the topology and give the command again"
            )
        return self._end()

    def _look(self) -> Outcome | None:
        """Poll when a hint came or some time has passed; a store that is away is asked again."""
        client = self._client
        now_ms = self._client.clock.now_ms()
        if self._seen_hints == client.hints and now_ms - self._looked_ms < _POLL_MS:
            return self._outcome
        self._seen_hints = client.hints
        self._looked_ms = now_ms
        try:
            self.poll()
            self._fault = None
            self._answered_ms = self._client.clock.now_ms()
        except StoreUnavailableError as fault:
            self._fault = fault
        return self._outcome

    @property
    def _is_cut_off(self) -> bool:
        silent_ms = self._client.clock.now_ms() - self._answered_ms
        return self._fault is not None and silent_ms >= _SILENCE_MS

    def _limit_ms(self) -> int:
        wait_ms = self.request.wait_ms if self.request.kind is RequestKind.REBALANCE else 0
        return _CARRY_OUT_MS + max(0, wait_ms or 0)

    def _unfinished(self) -> SparkStormError:
        if self._fault is not None:
            return self._fault
        step = f" ({self._outcome.step})" if self._outcome and self._outcome.step else ""
        return FailedAssignTopologyError(
            f"the request to {_verb(self.request)} was accepted but not done within {self._limit_ms() // 1000} s{step}; "
            "Nimbus goes on with it"
        )

    def _end(self) -> Outcome:
        outcome = self._outcome
        assert outcome is not None
        self._client.finish(self.request, outcome.state is OutcomeState.DONE)
        if outcome.state is OutcomeState.DONE:
            return outcome
        if outcome.state is OutcomeState.REFUSED:
            raise _error_of(outcome)
        raise NimbusUnavailableError(
            outcome.error or f"the request to {_verb(self.request)} was withdrawn"
        )


def _verb(request: Request) -> str:
    return f"{request.kind.verb} {request.subject}"


def _error_of(outcome: Outcome) -> SparkStormError:
    kind = getattr(errors, outcome.error_kind, SparkStormError)
    is_ours = isinstance(kind, type) and issubclass(kind, SparkStormError)
    return (kind if is_ours else SparkStormError)(outcome.error)


def owner_of_this_process() -> str:
    """Return the user's name; in a container whose user has none, its number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid-{os.geteuid()}"


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """Options of a submission; `status` is the first status, ACTIVE or INACTIVE; the owner is by
    default this process's user.

    Schedulers with pools and priorities per user pass over topologies without an owner, as Storm's
    do.
    """

    status: TopologyStatus = TopologyStatus.ACTIVE
    owner: str = field(default_factory=owner_of_this_process)


Seed = Callable[[str, Mapping[int, str]], None]
"""Function that gives the tasks of a topology (its id, its components by task) their initial state;
may be called again for the same id.
"""


def client_name() -> str:
    """Return a readable name of this process: user, host and process id."""
    return f"{owner_of_this_process()}@{os.uname().nodename}:{os.getpid()}"
