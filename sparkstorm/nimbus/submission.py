"""Owns one submission as a list of steps, each with its undo (S0.34-S0.51): a failed one leaves nothing behind."""

from __future__ import annotations

import importlib
import logging
import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkstorm.api.windows import check_times
from sparkstorm.blobs.store import BlobStore
from sparkstorm.cluster.storm_state import StormState
from sparkstorm.errors import FailedAssignTopologyError, InvalidConfigError, InvalidTopologyError, SparkStormError
from sparkstorm.model.assignment import TaskBeats, TaskTable, TopologyBase
from sparkstorm.model.normalise import check_own_conf, normalise_conf, normalise_topology, validate_sizes
from sparkstorm.model.outline import TopologyOutline, outline_of
from sparkstorm.model.status import TopologyStatus
from sparkstorm.model.topology import Topology, validate, validate_name
from sparkstorm.nimbus.assign_event import AssignEvent
from sparkstorm.nimbus.cluster_reader import conf_bytes
from sparkstorm.nimbus.component_rules import check_components, check_resources
from sparkstorm.nimbus.guarded_scheduler import check_choice
from sparkstorm.nimbus.nimbus import Nimbus
from sparkstorm.nimbus.waiting import WaitUntil
from sparkstorm.recording.recorder import check_recorded

_LOG = logging.getLogger(__name__)
ASSIGN_TIMEOUT_MS = 300_000  # S0.61


def owner_of_this_process() -> str:
    """The user's name; in a container whose user has none, its number."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid-{os.geteuid()}"


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """How to submit; `status` is the first status, ACTIVE or INACTIVE; the owner is whoever this process belongs to.

    Schedulers with pools and priorities per user pass over topologies without an owner, as Storm's do.
    """

    status: TopologyStatus = TopologyStatus.ACTIVE
    owner: str = field(default_factory=owner_of_this_process)


Seed = Callable[[str, Mapping[int, str]], None]
"""Gives the tasks of a topology (its id, its components by task) what they begin with; may be called again for the same id."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A submission that passed every check: what will be stored under which id; an heir takes over from `heir_of`."""

    topology_id: str
    name: str
    conf: Mapping[str, Any]
    outline: TopologyOutline
    code: bytes
    options: SubmitOptions
    heir_of: str | None = None
    seed: Seed | None = None


def prepare(
    topology_id: str,
    name: str,
    topology: Topology,
    own_conf: Mapping[str, Any],
    cluster_conf: Mapping[str, Any],
) -> tuple[dict[str, Any], TopologyOutline]:
    """Validate and normalise (S0.3, S0.34-S0.39); the topology's own conf and its outline."""
    validate_name(name)
    checked = check_own_conf(own_conf, cluster_conf, name)
    conf = normalise_conf(cluster_conf, checked)
    conf.update({"topology.id": topology_id, "storm.id": topology_id, "topology.name": name})
    total = {**cluster_conf, **conf}
    validate(topology)
    check_components(topology, cluster_conf, name)
    check_resources(f"configuration of {name}", conf.get("topology.component.resources.map") or {})
    check_recorded(topology, total)
    validate_sizes(total, topology_id)
    check_choice(total)
    ask_validator(total, name, topology)
    conf_bytes(conf)
    whole = normalise_topology(topology, total)
    check_times(whole)  # settings may have changed the number of tasks
    return conf, outline_of(whole, total)


def ask_validator(conf: Mapping[str, Any], name: str, topology: Topology) -> None:
    """Call the cluster's own validator, module:function of nimbus.topology.validator; it raises to refuse."""
    path = conf.get("nimbus.topology.validator")
    if not path:
        return
    module, _, function = str(path).partition(":")
    try:
        validator = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfigError(f"nimbus.topology.validator: cannot import {path!r}: {error}") from error
    try:
        validator(name, dict(conf), topology)
    except SparkStormError:
        raise
    except Exception as error:  # user code
        raise InvalidTopologyError(f"topology {name} was refused by {path}: {error}") from error


def wait_copies(blobs: BlobStore, topology_id: str, conf: Mapping[str, Any]) -> None:
    """Wait for the copies of the blobs that the topology asks for; too few are no reason to stop."""
    wanted = int(conf.get("topology.min.replication.count") or 1)
    limit_secs = conf.get("topology.max.replication.wait.time.sec", 60)
    reached = blobs.wait_copies(wanted, 0 if limit_secs < 0 else round(limit_secs * 1000))
    if reached < wanted:
        _LOG.warning("%s: code is in %d of %d copies; going on", topology_id, reached, wanted)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do and how to take it back; undo also runs when `do` broke off half-way."""

    name: str
    do: Callable[[], None]
    undo: Callable[[], None] = lambda: None


class Submission:
    """Runs the steps up to the assignment event, then waits for Nimbus, the one of the moment; `undo` undoes everything."""

    def __init__(self, prepared: Prepared, state: StormState, blobs: BlobStore, nimbus: Callable[[], Nimbus], now_ms: int) -> None:
        self.prepared = prepared
        self._state = state
        self._blobs = blobs
        self._nimbus = nimbus
        self._now_ms = now_ms
        self._base: TopologyBase | None = None
        self._event: AssignEvent | None = None
        self._done: list[Step] = []
        self._is_kept = False

    @property
    def base(self) -> TopologyBase:
        """The topology's base, once its blobs are stored."""
        assert self._base is not None
        return self._base

    @property
    def is_assigned(self) -> bool:
        """Whether Nimbus has said yes."""
        return self._event is not None and self._event.is_settled and self._event.error is None

    def begin(self) -> None:
        """All steps up to the event; what fails is undone and raised."""
        self.store()
        try:
            self.enqueue()
        except BaseException:
            self.undo()
            raise

    def store(self) -> None:
        """The records; nothing that runs sees them yet."""
        self._run(self._records())

    def enqueue(self) -> None:
        """The inheritance, what tasks begin with, and the event for Nimbus: until its turn no worker lives.

        When one of them fails, these alone are undone: the records stay.
        """
        self._run(
            [
                Step("inheritance", self._inherit, self.hand_back),
                Step("seeds", self._seed, self._retire_seeds),
                Step("assignment", self._queue, self._withdraw),
            ]
        )

    def keep(self) -> None:
        """From now on the records outlive a refusal: others may have to go on with them (hot deploy)."""
        self._is_kept = True

    def _run(self, steps: list[Step]) -> None:
        before = len(self._done)
        for step in steps:
            self._done.append(step)
            try:
                step.do()
            except BaseException:
                self._undo_to(before)
                raise

    def _records(self) -> list[Step]:
        topology_id = self.prepared.topology_id
        forget = lambda: self._state.remove_topology(topology_id)  # noqa: E731 - the one undo of all records
        return [
            Step("code and conf blobs", self._store_blobs),
            Step("replication", self._wait_copies),
            Step("outline and tasks", self._write_tasks, forget),
            Step("error root", lambda: self._state.prepare_errors(topology_id)),
            Step("gray upgrade paths", lambda: self._state.prepare_gray_upgrade(topology_id)),
            Step("worker beats", lambda: self._state.prepare_worker_beats(topology_id)),
        ]

    def _store_blobs(self) -> None:
        prepared = self.prepared
        present = set(self._state.blob_keys())
        code_key = self._put(prepared.code, present)
        conf_key = self._put(conf_bytes(dict(prepared.conf)), present)
        self._base = TopologyBase(
            topology_id=prepared.topology_id,
            name=prepared.name,
            launch_ms=self._now_ms,
            status=prepared.options.status,
            num_workers=int(prepared.conf["topology.workers"]),
            executors_by_component=dict(prepared.outline.executors_by_component),
            code_key=code_key,
            conf_key=conf_key,
            owner=prepared.options.owner,
        )

    def _put(self, data: bytes, present: set[str]) -> str:
        key = self._blobs.put(data, self._now_ms)
        if key not in present:
            # Only what this submission brought is taken away again: another topology may use the same bytes.
            self._done.append(Step("blob", lambda: None, lambda: self._blobs.delete(key)))
        return key

    def _wait_copies(self) -> None:
        wait_copies(self._blobs, self.prepared.topology_id, self.prepared.conf)

    def _write_tasks(self) -> None:
        topology_id, outline = self.prepared.topology_id, self.prepared.outline
        infos = outline.task_infos()
        master = next((task for task, info in infos.items() if info.component_id == "__topology_master"), None)
        self._state.write_outline(topology_id, outline)
        self._state.write_task_beats(TaskBeats(topology_id, master))
        self._state.write_tasks(topology_id, TaskTable(infos))

    def _inherit(self) -> None:
        if self.prepared.heir_of:
            self._nimbus().cleanup.retirement.hand_over(self.prepared.heir_of, self.prepared.topology_id)

    def hand_back(self) -> None:
        """Give back what was inherited; may be repeated."""
        if self.prepared.heir_of:
            self._nimbus().cleanup.retirement.hand_over(self.prepared.topology_id, self.prepared.heir_of)

    def _seed(self) -> None:
        if self.prepared.seed is not None:
            self.prepared.seed(self.prepared.topology_id, self.prepared.outline.component_by_task)

    def _retire_seeds(self) -> None:
        if self.prepared.seed is not None:
            self._nimbus().cleanup.retirement.retire(self.prepared.topology_id)

    def _queue(self) -> None:
        self._event = AssignEvent(self.base)
        self._nimbus().submit(self._event)

    def _withdraw(self) -> None:
        if self._event is not None and not self._event.is_settled:
            self._nimbus().withdraw(self._event)

    def wait_done(self, wait_until: WaitUntil, timeout_ms: int = ASSIGN_TIMEOUT_MS) -> str:
        """Wait for Nimbus's answer; the topology's id, or FailedAssignTopologyError with everything undone."""
        event = self._event
        assert event is not None
        if not wait_until(lambda: event.is_settled, timeout_ms) and self._nimbus().withdraw(event):
            event.settle(FailedAssignTopologyError(f"topology {self.prepared.name} was not assigned within {timeout_ms // 1000} s"))
        done = self.poll_done()
        assert done is not None
        return done

    def poll_done(self) -> str | None:
        """The topology's id once Nimbus has assigned it, None while it has not answered; raises as `wait_done`."""
        assert self._event is not None
        if not self._event.is_settled:
            return None
        if self._event.error is not None:
            if not self._is_kept:
                self.undo()
            raise self._event.error
        self._done.clear()
        return self.prepared.topology_id

    def undo(self) -> None:
        """Take back what was done, last first; what cannot be taken back is logged and left to the orphan sweep."""
        self._undo_to(0)

    def _undo_to(self, number: int) -> None:
        while len(self._done) > number:
            step = self._done.pop()
            try:
                step.undo()
            except SparkStormError as error:
                _LOG.warning("%s: could not undo '%s': %s", self.prepared.topology_id, step.name, error)
