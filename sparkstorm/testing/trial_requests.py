"""Requests of a trial: a client that waits for none of them, and those that faults have it make."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sparkstorm.api.builder import TopologyBuilder
from sparkstorm.client.request_client import PendingRequest
from sparkstorm.common.errors import (
    NimbusUnavailableError,
    SparkStormError,
    StoreInconsistentError,
    StoreUnavailableError,
)
from sparkstorm.common.model.requests import LogLevel, Request, RequestKind
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.upgrade import UpgradeOptions
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.testing.components import FeederSpout, Nothing
from sparkstorm.testing.faults import Fault
from sparkstorm.testing.faulty_cluster import FaultyCluster
from sparkstorm.testing.sim_slot import Duty

MAIN = "main"
OTHER = "other"
LOOK_MS = 250
_GONE_MS = 1_500  # by then a topology that is killed is gone, mostly
_NEXT_OF_UPGRADE = (
    RequestKind.CONTINUE_UPGRADE,
    RequestKind.COMPLETE_UPGRADE,
    RequestKind.ROLLBACK_UPGRADE,
)


class Client:
    """Client that makes requests without waiting for them; one in four dies right after, and its
    requests are carried out all the same.
    """

    def __init__(self, cluster: FaultyCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self._open: dict[str, tuple[PendingRequest, str]] = {}
        self._orphans: dict[str, str] = {}
        self._duty = Duty(cluster.simulation, self._step, lambda: False)
        cluster.simulation.add(self._duty, has_threads=False)

    def ask(self, make: Callable[[], Request], what: str) -> None:
        """Write a request; a refusal of the client itself ends it at once."""
        number = f"{self._chance.getrandbits(128):032x}"
        dies = self._chance.random() < 0.25
        try:
            # ids decide the order of requests of the same moment
            request = replace(make(), id=number)
            pending = self._cluster.service.begin(request)
        except SparkStormError as refusal:
            self._cluster.say(f"{what}: {type(refusal).__name__}: {refusal}")
            return
        if dies:
            self._orphans[number] = what
        else:
            self._open[number] = (pending, what)
            self._cluster.simulation.wake(self._duty)

    def unfinished(self) -> list[str]:
        """Requests that have not ended, a phrase each."""
        state = self._cluster.storm_state
        complaints = [f"the request of {what} has not ended" for _, what in self._open.values()]
        for number, what in self._orphans.items():
            outcome = state.read_outcome(number)
            if state.read_request(number) is not None and (outcome is None or not outcome.is_final):
                complaints.append(f"the request of {what}, whose client is dead, has not ended")
        return complaints

    def _step(self, now_ms: int) -> int | None:
        for number, (pending, what) in list(self._open.items()):
            try:
                if self._has_ended(pending, what, now_ms):
                    del self._open[number]
            except StoreUnavailableError:
                continue
            except StoreInconsistentError as lost:
                if not has_zookeeper_gone_back(self._cluster):
                    raise
                self._cluster.say(f"{what}: {lost}")
                del self._open[number]
        return now_ms + LOOK_MS if self._open else None

    def _is_known(self, pending: PendingRequest) -> bool:
        state = self._cluster.storm_state
        return (
            state.read_request(pending.id) is not None or state.read_outcome(pending.id) is not None
        )

    def _has_ended(self, pending: PendingRequest, what: str, now_ms: int) -> bool:
        outcome = pending.poll()
        if outcome is None:
            if now_ms < pending.request.expires_ms or not pending.withdraw():
                return False
            self._cluster.say(f"{what}: withdrawn")
            return True
        if not outcome.is_final:
            return has_zookeeper_gone_back(self._cluster) and not self._is_known(pending)
        try:
            pending.wait()
            self._cluster.say(f"{what}: done")
        # It expired while no Nimbus could take it up; it is an error of the stores by its class.
        except NimbusUnavailableError as refusal:
            self._cluster.say(f"{what}: {refusal}")
        except StoreUnavailableError:
            raise
        except SparkStormError as refusal:
            self._cluster.say(f"{what}: refused: {type(refusal).__name__}: {refusal}")
        return True


class FaultRequests:
    """Requests for the main topology and another one, each by the kind of fault of its name."""

    def __init__(
        self, cluster: FaultyCluster, client: Client, main: Topology, conf: Mapping[str, Any]
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._main = main
        self._conf = conf
        self._other = _other_topology()
        self.has_killed = False  # the main topology, which is then submitted anew

    def follow(self, fault: Fault) -> None:
        """Have a fault's request made at its time; nothing where its kind is none of a request."""
        if ask := getattr(self, f"_{fault.kind.name.lower()}", None):
            self._cluster.after(fault.at, lambda: ask(fault))

    def _deactivate(self, fault: Fault) -> None:
        service = self._cluster.service
        self._client.ask(lambda: service.new_request(RequestKind.DEACTIVATE, MAIN), str(fault))
        self._cluster.after(
            fault.size,
            lambda: self._client.ask(
                lambda: service.new_request(RequestKind.ACTIVATE, MAIN), f"the end of {fault}"
            ),
        )

    def _rebalance(self, fault: Fault) -> None:
        options = RebalanceOptions(1 + fault.pick % 4, {}, reassign=fault.pick % 3 == 0)
        wait_secs = fault.size / 1000
        self._client.ask(
            lambda: self._cluster.service.rebalance_request(MAIN, options, wait_secs), str(fault)
        )

    def _update(self, fault: Fault) -> None:
        code = pack_topology(self._main)
        self._client.ask(
            lambda: self._cluster.service.update_request(MAIN, self._main, self._conf, code),
            str(fault),
        )

    def _gray_upgrade(self, fault: Fault) -> None:
        """Begin a gray upgrade to the same code with another configuration; continue it, complete
        it or take it back later.
        """
        service = self._cluster.service
        code = pack_topology(self._main)
        number = 1 + fault.pick % 3
        conf = {**self._conf, "app.upgrade": fault.pick, "topology.upgrade.worker.num": number}
        self._client.ask(lambda: service.upgrade_request(MAIN, self._main, conf, code), str(fault))
        kind = _NEXT_OF_UPGRADE[fault.pick % len(_NEXT_OF_UPGRADE)]
        options = (
            UpgradeOptions(worker_num=number) if kind is RequestKind.CONTINUE_UPGRADE else None
        )
        self._cluster.after(
            fault.size,
            lambda: self._client.ask(
                lambda: service.new_request(kind, MAIN, upgrade=options), f"the end of {fault}"
            ),
        )

    def _restart_worker(self, fault: Fault) -> None:
        slots = [slot.slot for slot in self._cluster.slots]
        slot = None if fault.pick % 3 == 0 else slots[fault.pick % len(slots)]
        self._client.ask(
            lambda: self._cluster.service.new_request(RequestKind.RESTART_WORKER, MAIN, slot=slot),
            str(fault),
        )

    def _set_log_level(self, fault: Fault) -> None:
        levels = {"app": LogLevel("DEBUG", fault.size)}
        self._client.ask(
            lambda: self._cluster.service.new_request(
                RequestKind.SET_LOG_LEVEL, MAIN, log_levels=levels
            ),
            str(fault),
        )

    def _stop_while_refused(self, fault: Fault) -> None:
        if fault.pick % 3:
            stop = self._restart_worker if fault.pick % 3 == 1 else self._reassign
            self._cluster.after(fault.pick % 500, lambda: stop(fault))

    def _reassign(self, fault: Fault) -> None:
        options = RebalanceOptions(1 + fault.pick % 4, {}, reassign=True)
        self._client.ask(
            lambda: self._cluster.service.rebalance_request(MAIN, options, 0), str(fault)
        )

    def _kill_while_refused(self, fault: Fault) -> None:
        self._cluster.after(fault.pick % 500, lambda: self._kill_at_once(fault, 0))

    def _kill_main(self, fault: Fault) -> None:
        self._kill_at_once(fault, fault.size)

    def _kill_at_once(self, fault: Fault, wait_ms: int) -> None:
        self.has_killed = True
        kill = RequestKind.KILL
        self._client.ask(
            lambda: self._cluster.service.new_request(kill, MAIN, wait_ms=wait_ms), str(fault)
        )
        self._cluster.after(wait_ms + _GONE_MS, self.submit_anew)

    def submit_anew(self) -> None:
        """Submit the main topology; it is refused as long as the former one is there."""
        code = pack_topology(self._main)
        self._client.ask(
            lambda: self._cluster.service.submit_request(MAIN, self._main, self._conf, code),
            "submit anew",
        )

    def _submit_other(self, fault: Fault) -> None:
        code = pack_topology(self._other)
        # Redis may go back to before it
        conf = {"topology.workers": 1 + fault.pick % 2, "topology.store.loss": "continue"}
        self._client.ask(
            lambda: self._cluster.service.submit_request(OTHER, self._other, conf, code), str(fault)
        )

    def _kill_other(self, fault: Fault) -> None:
        self._client.ask(
            lambda: self._cluster.service.new_request(RequestKind.KILL, OTHER, wait_ms=fault.size),
            str(fault),
        )


def has_zookeeper_gone_back(cluster: FaultyCluster) -> bool:
    """Return whether ZooKeeper has lost records: requests and outcomes may be lost then too."""
    return cluster.has_met("ZOOKEEPER_BACK", "ZOOKEEPER_EMPTIED")


def _other_topology() -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout())
    builder.set_bolt("nothing", Nothing()).shuffle_grouping("spout")
    return builder.build()
