"""Duty that serves clients' requests: reads them in order, accepts or refuses each, and sweeps
finished ones.

ACCEPTED is written before anything is changed, and carrying out may be repeated: a Nimbus that dies
at any write is followed by one that brings the request to the same end. A topology's code is
accepted when every host that tries code has opened it. Decided requests are remembered in a record
that the next Nimbus reads. It is written after their outcomes: written before, a death in between
would have a real request removed as a copy. Left out: a port of Nimbus with calls, as in Storm:
clients would have to find the leader, and would not know what became of a call whose reply was lost
(decision 14).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sparkstorm.common.errors import (
    InvalidTopologyError,
    SparkStormError,
    StoreInconsistentError,
    StoreUnavailableError,
    TamperedBlobError,
)
from sparkstorm.common.model.requests import (
    Outcome,
    OutcomeState,
    Request,
    check_request,
    is_request_id,
)
from sparkstorm.common.settings import NimbusSettings
from sparkstorm.control_plane.nimbus.cluster_reader import Reading
from sparkstorm.control_plane.nimbus.parts import NimbusParts, refusal_of
from sparkstorm.control_plane.nimbus.request_verbs import RequestVerbs

_LOG = logging.getLogger(__name__)
# A request that looks expired may come from a host whose clock is behind, and be withdrawn by its
# client.
_GRACE_MS = 10_000
# A sentence that names the module and its error; the outcome's node has to hold it.
_MOST_CHARS = 800  # of a host's sentence on a topology's code
# Requests that cannot be read. More than the first are a flood and get no answer; so many are dealt
# with in a turn, so that they keep no other request waiting.
_MOST_ANSWERED = 20
_MOST_AT_ONCE = 100
# Half would take the answer from a client that was cut off for some minutes, double keeps more
# outcomes that no client reads any more. Not measured.
_KEPT_MS = 600_000  # how long an ended request waits for its client


class RequestDuty:
    """Duty that serves open requests; `read` reads the cluster again, `wake` is the hint that
    requests have come or gone.
    """

    def __init__(
        self,
        parts: NimbusParts,
        verbs: RequestVerbs,
        read: Callable[[int], Reading],
        wake: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._verbs = verbs
        self._read = read
        self._wake = wake
        self._seen_ms: dict[str, int] = {}  # when each request was seen first
        self._next_sweep_ms = 0
        self._trial_wait_ms = NimbusSettings.of(parts.conf).trial_wait_ms
        # when each request expires that has an outcome: none is served twice
        self._served: dict[str, int] = {}
        self._unnoted: dict[str, int] = {}  # those that the record for the next Nimbus lacks
        # requests that cannot be read and were not dealt with yet
        self._bad: dict[str, SparkStormError] = {}
        self.problems: dict[str, str] = {}
        self.waits_by_name: dict[str, int] = {}
        """When the wait for trials of a topology's code ends, by its name."""

    def advance(self, reading: Reading, now_ms: int) -> bool:
        """Serve every open request; whether something was changed."""
        self._recall()  # first: a request that was removed after this is not read below
        opened, unreadable = self._parts.state.open_requests(self._wake, self._bad)
        # Times of a first sight are ours: a client's clock gives the time of the request, not the
        # time since it was first seen here.
        names = {request.id for request, _ in opened} | unreadable.keys() | self._bad.keys()
        self._seen_ms = {request_id: self._seen_ms.get(request_id, now_ms) for request_id in names}
        self._served = {
            request_id: until_ms
            for request_id, until_ms in self._served.items()
            if now_ms <= until_ms + _GRACE_MS
        }
        self.problems = {}
        self.waits_by_name = {}
        has_changed = False
        for request, outcome in opened:
            # Requests of one topology keep their order: a kill must not overtake the submission
            # whose code is still tried.
            if outcome is None and request.name in self.waits_by_name:
                continue  # an earlier request of that topology is decided first
            # The signature of a recorded request is as good as it was; a copy is found only by its
            # having been served before.
            if outcome is None and request.id in self._served:
                _LOG.error(
                    "request %s of %.80r was served before: a copy of it is removed",
                    request.id,
                    request.client,
                )
                self._parts.state.remove_request(request.id)
            elif self._serve(request, outcome, reading, now_ms):
                # Each request decides on what the one before it has left.
                has_changed = True
                reading = self._read(now_ms)
        self._note_served()
        self._bad |= unreadable
        self._turn_bad_away(now_ms)  # last, and some at a time: no request waits for them
        return has_changed

    # -- one request -------------------------------------------------------------------------------

    def _recall(self) -> None:
        """Take in the requests that other Nimbuses have decided and that clients have withdrawn."""
        state = self._parts.state
        try:
            self._served = {**state.read_served(), **self._served}
        except (StoreInconsistentError, TamperedBlobError) as error:
            _LOG.error("the record of decided requests is damaged; it is written afresh: %s", error)
            # Copies of the last minute may slip through then; to refuse all requests instead would
            # stop the cluster for a record that guards against a rare attack.
            state.remove_served()
            self._unnoted = dict(self._served)

    def _remember(self, request: Request) -> None:
        """Serve no copy of a request that has an outcome."""
        if request.id not in self._served:
            self._served[request.id] = self._unnoted[request.id] = request.expires_ms

    def _note_served(self) -> None:
        """Write the record for the next Nimbus; one write for all decisions since the last."""
        if self._unnoted:
            self._parts.state.note_served(self._unnoted)
            self._unnoted = {}

    def _serve(
        self, request: Request, outcome: Outcome | None, reading: Reading, now_ms: int
    ) -> bool:
        if outcome is not None:
            self._remember(request)
        try:
            if outcome is None:
                outcome = self._decide(request, reading, now_ms)
            if outcome is None:
                return False
            self._note_served()  # before the client can see DONE and remove both nodes
            return self._verbs.carry_out(request, outcome, reading, now_ms)
        except StoreUnavailableError:
            raise
        except SparkStormError as error:
            return self._refuse(request, outcome, error, now_ms)
        except Exception as error:  # a record that was checked too little must not keep Nimbus from its other duties
            _LOG.exception("request %s of %.80r failed", request.id, request.client)
            text = f"Nimbus failed at {request.kind} {request.subject!r}: {type(error).__name__}: {error}"
            return self._refuse(request, outcome, SparkStormError(text), now_ms)

    def _decide(self, request: Request, reading: Reading, now_ms: int) -> Outcome | None:
        """Accept a new request; None when it has ended, or waits for trials of its code. Raises
        what it is refused with.
        """
        # A signature proves that the writer has the key, not that the request is valid.
        check_request(request, request.id)
        if now_ms > request.expires_ms:
            if now_ms - self._seen_ms[request.id] >= _GRACE_MS:
                self._expire(request, now_ms)
            return None
        topology_id = self._verbs.check(request, reading, now_ms)
        untried = self._hosts_without_trial(request, reading)
        # At most half of the client's patience: the rest is for Nimbus and for a leader that
        # follows.
        lasts_ms = min(self._trial_wait_ms, (request.expires_ms - request.created_ms) // 2)
        if untried and now_ms < (until_ms := self._seen_ms[request.id] + lasts_ms):
            self.waits_by_name[request.name] = until_ms
            return None
        more = f" and {len(untried) - 3} more" if len(untried) > 3 else ""
        # Three, because a thousand hosts would fill the outcome.
        names = f"{', '.join(untried[:3])}{more}"
        untried_note = (
            f"accepted although {names} did not open the code within {lasts_ms / 1000:g} s"
            if untried
            else ""
        )
        outcome = Outcome(request.id, OutcomeState.ACCEPTED, now_ms, topology_id, untried_note)
        if request.is_plan:
            outcome = self._verbs.plan(request, topology_id, reading, now_ms)
        if not self._create_unless_withdrawn(outcome, request) or outcome.is_final:
            return None
        _LOG.info(
            "request %s of %.80r: %s %s%s",
            request.id,
            request.client,
            request.kind,
            topology_id or request.host,
            untried_note and f": {untried_note}",
        )
        return outcome

    def _hosts_without_trial(self, request: Request, reading: Reading) -> list[str]:
        """Return the hosts that try code and have yet to open the request's; InvalidTopologyError
        names one that cannot.
        """
        untried = set[str]()
        for _, info in (
            sorted(reading.snapshot.supervisors.items()) if request.base is not None else ()
        ):
            assert request.base is not None
            verdict = "" if info.trials is None else info.trials.get(request.base.code_key)
            if verdict:
                raise InvalidTopologyError(
                    f"the topology cannot run on host {info.host}: {verdict:.{_MOST_CHARS}}"
                )
            if verdict is None:
                untried.add(f"host {info.host}")
        return sorted(untried)

    def _create_unless_withdrawn(self, outcome: Outcome, request: Request) -> bool:
        """Write a first outcome; False when the client has withdrawn, even if it has removed both
        nodes since.
        """
        try:
            is_first = self._parts.state.create_outcome(outcome)
        except ValueError as error:  # a plan that no node can hold
            raise StoreInconsistentError(f"the answer is too large for a node: {error}") from error
        self._remember(request)
        if not is_first:
            return False
        # A client that withdraws creates the outcome itself, and removes both nodes when it has:
        # our create may come after that.
        has_withdrawn = outcome.id not in self._parts.state.request_ids()
        if has_withdrawn:
            self._parts.state.remove_outcome(outcome.id)
        return not has_withdrawn

    def _expire(self, request: Request, now_ms: int) -> None:
        text = (
            f"the request to {request.kind.verb} {request.subject} expired: no Nimbus accepted it within "
            f"{(request.expires_ms - request.created_ms) // 1000} s of {request.created_ms} (its client's clock; "
            f"Nimbus's says {now_ms}, in ms); make it again"
        )
        self._create_unless_withdrawn(
            Outcome(request.id, OutcomeState.EXPIRED, now_ms, error=text), request
        )

    def _refuse(
        self, request: Request, outcome: Outcome | None, error: SparkStormError, now_ms: int
    ) -> bool:
        _LOG.warning("request %s of %.80r is refused: %s", request.id, request.client, error)
        if outcome is None:
            self._create_unless_withdrawn(refusal_of(request.id, now_ms, error), request)
            return False
        # Before anything is taken back: until the client has the outcome, what it stored must not
        # be gone.
        self._parts.outcomes.refuse(request.id, now_ms, error)
        self._verbs.undo(request)
        return True

    def _turn_bad_away(self, now_ms: int) -> None:
        """Answer some of the requests that cannot be read; of a flood, and under names that are no
        ids, remove them unanswered.
        """
        is_flood = len(self._bad) > _MOST_ANSWERED
        if is_flood:
            first = next(iter(self._bad.values()))
            _LOG.error(
                "%d requests that cannot be read are removed without an answer, the first: %s",
                len(self._bad),
                first,
            )
        for request_id in list(self._bad)[:_MOST_AT_ONCE]:
            error = self._bad[request_id]
            if is_flood or not is_request_id(request_id):
                self._parts.state.remove_request(request_id)
            else:
                self._turn_away(request_id, error, now_ms)
            del self._bad[request_id]
        if self._bad:
            self._wake()

    def _turn_away(self, request_id: str, error: SparkStormError, now_ms: int) -> None:
        """Answer what is no request of this cluster."""
        _LOG.error("a request is refused unread: %s", error)
        state = self._parts.state
        try:
            if state.read_outcome(request_id) is not None:
                return
            is_ours = state.create_outcome(refusal_of(request_id, now_ms, error))
            # withdrawn, and both nodes removed since
            if is_ours and request_id not in state.request_ids():
                state.remove_outcome(request_id)
        except (StoreInconsistentError, TamperedBlobError) as fault:
            # It may have been withdrawn: it is not carried out, and both nodes go with the sweep.
            self.problems[f"request {request_id}"] = str(fault)

    # -- the sweep ---------------------------------------------------------------------------------

    def sweep(self, _reading: Reading, now_ms: int) -> bool:
        """Remove what clients that died have left: ended requests with their outcomes, outcomes
        without a request.
        """
        if now_ms < self._next_sweep_ms:
            return False
        self._next_sweep_ms = now_ms + _GRACE_MS
        state = self._parts.state
        state.note_served({}, now_ms - _GRACE_MS)
        outcomes = state.outcome_ids()
        requests = set(state.request_ids())
        for request_id in outcomes:
            if request_id not in requests:
                state.remove_outcome(request_id)
            elif self._ended_ms(request_id, now_ms) + _KEPT_MS <= now_ms:
                state.remove_request(request_id)
                state.remove_outcome(request_id)
        return False

    def _ended_ms(self, request_id: str, now_ms: int) -> int:
        """Return when a request ended; for an unreadable one, when it was first seen."""
        try:
            outcome = self._parts.state.read_outcome(request_id)
        except (StoreInconsistentError, TamperedBlobError):
            return self._seen_ms.get(request_id, now_ms)
        return outcome.time_ms if outcome and outcome.is_final else now_ms
