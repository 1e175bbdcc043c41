"""Nimbus: the leader takes turns over the store, the others wait for the leadership.

Nimbus keeps nothing in memory that it needs to go on: a new one on the same store takes up
requests, timers, kills and hot deploys where the old one was (S3.37). Memory holds only sightings
(the times of heartbeats), which a new one gathers afresh without taking a worker for dead; they
last as long as one leadership, in `duties.py`. Nimbus never sleeps and starts no thread: the loop
around it calls `step` when it is due or `wake` was called. Left out: a leader that hands its memory
on, and followers that copy blobs and wait for the one with the fewest gaps, as in JStorm. All are
in the stores, so the first that is elected can lead.
"""

import logging
from collections.abc import Mapping
from typing import Any

from sparkstorm.common.errors import SparkStormError, StoreUnavailableError
from sparkstorm.common.settings import NimbusSettings
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.nimbus_state import NimbusInfo
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.duties import NextTurn, NimbusDuties
from sparkstorm.control_plane.nimbus.error_reports import ProblemBoard
from sparkstorm.control_plane.nimbus.hooks import NimbusHooks
from sparkstorm.control_plane.scheduling.view import Scheduler

_LOG = logging.getLogger(__name__)
# How often a follower looks at the leader. It may be long: the end of the leader's session wakes
# it.
_STAND_BY_MS = 1_000


class Nimbus:
    """Storm's master as a stepped machine over the store; one leads, the others are on standby."""

    def __init__(
        self,
        state: StormState,
        blobs: BlobStore,
        scheduler: Scheduler,
        conf: Mapping[str, Any],
        owner: str = "nimbus",
        hooks: NimbusHooks | None = None,
    ) -> None:
        self.hooks = hooks or NimbusHooks()
        self.is_leading = False
        self.leader: NimbusInfo | None = None
        self._state = state
        self._blobs = blobs
        self._scheduler = scheduler
        self._conf = dict(conf)
        self._owner = owner
        self._round_ms = NimbusSettings.of(conf).round_ms
        self._epoch = state.store.session_epoch
        self._next = NextTurn()
        self.duties = self._new_duties()
        self._board = self.duties.board

    def _new_duties(self) -> NimbusDuties:
        """Return what a leadership begins with: all that was remembered of the cluster is out of
        date once another may have led.
        """
        return NimbusDuties(
            self._state,
            self._blobs,
            self._scheduler,
            self._conf,
            self.hooks,
            self._next,
            self.wake,
            self._ask,
        )

    @property
    def problems(self) -> Mapping[str, str]:
        """Return the problems of this Nimbus: sentences by topology, supervisor, slot, or word."""
        return self._board.problems

    def wake(self) -> None:
        """Ask for a turn at once; any thread, never blocks."""
        self._next.is_round = True
        self.hooks.wake()

    def _ask(self) -> None:
        """Ask for a turn that serves requests: a question is no round for schedulers that count
        rounds.
        """
        self._next.is_asked = True
        self.hooks.wake()

    def step(self, now_ms: int) -> int:
        """Take a turn when one is due; return when the next is. StoreUnavailableError is for the
        drive to retry.
        """
        following = self._next
        is_round = (
            following.is_round
            or now_ms >= following.due_ms
            or (self.is_leading and self.duties.needs_scheduling())
        )
        if is_round or following.is_asked:
            # Cleared before the turn: a hint that comes while it reads asks for another one.
            following.is_round = following.is_asked = False
            self._try_turn(now_ms, is_round)
        return now_ms if following.is_at_once else following.due_ms

    def _try_turn(self, now_ms: int, is_round: bool) -> None:
        try:
            self._take_turn(now_ms, is_round)
        except StoreUnavailableError:
            self.duties.note_trouble()
            self._next.is_round = True
            raise
        except SparkStormError as error:
            # A record that changed under our hands, or is no record: the next turn reads everything
            # anew.
            _LOG.error("this turn broke off: %s", error)
            self._board.put("turn", {"turn": str(error)})
            self._board.show(now_ms)

    def _take_turn(self, now_ms: int, is_round: bool) -> None:
        if is_round:
            self._next.due_ms = now_ms + self._round_ms
        if self._lead(now_ms):
            self.duties.turn(now_ms, is_round)
        else:
            self._stand_by(now_ms)

    def _lead(self, now_ms: int) -> bool:
        """Take part in the election; return whether this Nimbus leads."""
        epoch = self._state.store.session_epoch
        was_leading = self.is_leading
        self.is_leading = False  # also when the store does not answer
        me = NimbusInfo(self._owner, now_ms, self.hooks.driver)
        if not self._state.try_lead(me):
            return False
        # Also in a new session without another leader: one may have led and ended in between.
        if not was_leading or epoch != self._epoch:
            _LOG.info("%s leads", self._owner)
            self.duties = self._new_duties()
            self._board = self.duties.board
            self.leader = me
            self.hooks.on_lead()
        if epoch != self._epoch:
            self._epoch = epoch
            self.duties.note_trouble()
        self.is_leading = True
        return True

    def _stand_by(self, now_ms: int) -> None:
        """Another leads: wait for its end."""
        self._next.due_ms = now_ms + _STAND_BY_MS
        self.leader = leader = self._state.read_leader(self.wake)
        self._next.is_round = leader is None or self.hooks.depose(leader)
        if leader:
            # only the leader reports problems
            self._board = ProblemBoard(self._state)
            self._board.put("leader", {"leader": f"{leader.owner} leads, this Nimbus stands by"})
