"""Owns hot deploys (S0.33): the old topology ends, then the new one starts, and takes over where its tasks are the same.

Everything the new topology needs is stored, all that the old one needs to come back too, and a `Deploy` record says who
follows whom, before the old one is killed: from then on any Nimbus can finish what a driver began and died over. A new
topology that is refused gives way to the old one, under a new id and with its data.
"""

from collections.abc import Callable
from dataclasses import replace

from sparkstorm.cluster.nimbus_state import Deploy
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.errors import FailedAssignTopologyError, SparkStormError, StoreUnavailableError
from sparkstorm.model.assignment import TopologyBase
from sparkstorm.nimbus.cleanup import TopologyCleanup
from sparkstorm.nimbus.submission import Prepared, Submission
from sparkstorm.nimbus.waiting import WaitUntil


class HotDeploy:
    """One hot deploy as its driver sees it; `kill` asks for the old one's end, `make` makes a submission."""

    def __init__(
        self,
        old: TopologyBase,
        state: StormState,
        cleanup: TopologyCleanup,
        make: Callable[[Prepared], Submission],
        kill: Callable[[], None],
        wait_until: WaitUntil,
    ) -> None:
        self._old = old
        self._state = state
        self._cleanup = cleanup
        self._make = make
        self._kill = kill
        self._wait_until = wait_until

    def run(self, prepared: Prepared, fallback: Prepared, grace_ms: int) -> str:
        """The new topology's id; FailedAssignTopologyError says what runs instead.

        A store that goes away after the kill leaves the rest to Nimbus, which finishes it.
        """
        submission, back = self._make(prepared), self._make(fallback)
        self._store(submission, back)
        try:
            self._announce(submission, back)
            self._end_old(grace_ms)
        except StoreUnavailableError:
            raise  # the kill may have been written: who can read the store again will know
        except SparkStormError:
            self._state.remove_deploy(self._old.name)
            back.undo()
            submission.undo()
            raise
        # The old one is gone: until the end, what is stored of its successors is all there is.
        submission.keep()
        back.keep()
        try:
            topology_id = self._start(submission)
        except StoreUnavailableError:
            raise
        except SparkStormError as error:
            raise self._retreat(submission, back, error) from error
        self._close(submission)
        back.undo()
        return topology_id

    def _store(self, submission: Submission, back: Submission) -> None:
        submission.store()
        try:
            back.store()
        except BaseException:
            submission.undo()
            raise

    def _announce(self, submission: Submission, back: Submission | None = None) -> None:
        inherits = submission.prepared.heir_of is not None
        deploy = Deploy(self._old.topology_id, submission.base, inherits, back.base if back else None)
        self._state.write_deploy(self._old.name, deploy)

    def _end_old(self, grace_ms: int) -> None:
        self._kill()
        if not self._wait_until(lambda: self._state.read_base(self._old.topology_id) is None, grace_ms):
            self._state.update_base(self._old.topology_id, _disinherit)  # nobody will take over what it leaves
            raise FailedAssignTopologyError(
                f"hot deploy of {self._old.name}: the old one did not end within {grace_ms // 1000} s; nothing was deployed"
            )

    def _start(self, submission: Submission) -> str:
        submission.enqueue()
        return submission.wait_done(self._wait_until)

    def _retreat(self, refused: Submission, back: Submission, error: SparkStormError) -> FailedAssignTopologyError:
        """Let the old one follow in place of the refused one; what to tell of it."""
        name = self._old.name
        refused.hand_back()
        self._announce(back)
        refused.undo()
        try:
            topology_id = self._start(back)
        except StoreUnavailableError:
            raise
        except SparkStormError as second:
            return FailedAssignTopologyError(
                f"hot deploy of {name} refused: {error}; the old one cannot start again yet, Nimbus goes on trying: {second}"
            )
        self._close(back)
        return FailedAssignTopologyError(f"hot deploy of {name} refused, the old one is back as {topology_id}: {error}")

    def _close(self, submission: Submission) -> None:
        if submission.prepared.heir_of is None:
            self._cleanup.retirement.retire(self._old.topology_id)
        self._state.remove_deploy(self._old.name)


def _disinherit(base: TopologyBase) -> TopologyBase:
    return replace(base, pending=replace(base.pending, has_heir=False)) if base.pending else base
