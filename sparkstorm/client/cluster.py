"""A cluster seen from outside: its topologies, handles on them, and requests to Nimbus."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sparkstorm.client.access import ClusterAccess, here
from sparkstorm.client.dead_letters import StoredLetters, stored_in
from sparkstorm.client.handle import TopologyHandle
from sparkstorm.client.request_client import Progress, SubmitOptions
from sparkstorm.client.service import NimbusService
from sparkstorm.common.config import Conf
from sparkstorm.common.errors import NotAliveError
from sparkstorm.common.model.assignment import NamedBlob, SupervisorInfo, WorkerSlot
from sparkstorm.common.model.requests import HostMark, RebalancePlan, RequestKind, topology_name
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.worker_spec import RedisStores
from sparkstorm.common.settings import SubmissionSettings
from sparkstorm.control_plane.cluster.nimbus_state import DriverInfo, NimbusInfo
from sparkstorm.control_plane.cluster.store_choice import STORE, choose_stores
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.data_plane.transport.initial_state import RedisSeeding

if TYPE_CHECKING:
    from sparkstorm.data_plane.checkpoint.restore import Seeds


class ClusterClient(ClusterAccess):
    """A cluster that runs, opened by `connect`; a context manager.

    With a read-only connection everything that changes something raises ReadOnlyConnectionError.
    """

    def __init__(
        self,
        state: StormState,
        stores: RedisStores,
        service: NimbusService,
        conf: Conf,
        is_read_only: bool = False,
        opened: contextlib.ExitStack | None = None,
    ) -> None:
        super().__init__(state, stores, service, conf, is_read_only)
        self._opened = opened or contextlib.ExitStack()
        self._handles: dict[str, TopologyHandle] = {}

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connections; topologies go on."""
        self.close_readers()
        self._opened.close()

    # -- looking -----------------------------------------------------------------------------------

    def topologies(self) -> list[TopologyHandle]:
        """Return a handle on every topology, by id."""
        return [self.handle(summary.topology_id) for summary in self.summaries()]

    def topology(self, name: str) -> TopologyHandle:
        """Return the topology of a name or an id; NotAliveError when there is none."""
        handle = self.find(name)
        if handle is None and name in self.state.topology_ids():
            handle = self.handle(name)
        if handle is None and (problem := self.service.problems().get(name)):
            raise NotAliveError(f"{problem}; `sparkstorm kill {name}` calls it off")
        if handle is None:
            names = ", ".join(
                sorted({topology_name(topology_id) for topology_id in self.state.topology_ids()})
            )
            raise NotAliveError(
                f"topology {name} is not alive; {f'there are {names}' if names else 'no topology runs here'}"
            )
        return handle

    def find(self, name: str) -> TopologyHandle | None:
        """Return the topology of a name, after a hot deploy under way; None when there is none."""
        # It would be a part of the store's paths, of which none is empty.
        if not name:
            return None
        self.service.wait_deployed(name)
        base = self.service.find(name)
        return None if base is None else self.handle(base.topology_id)

    def handle(self, topology_id: str) -> TopologyHandle:
        """Return the handle on a topology by id."""
        if topology_id not in self._handles:
            self._handles[topology_id] = TopologyHandle(topology_id, self, self.reader(topology_id))
        return self._handles[topology_id]

    def drivers(self) -> list[DriverInfo]:
        """Return the drivers by number: process, host and time of start."""
        return self.state.read_drivers()

    def leader(self) -> NimbusInfo | None:
        """Return the driver whose Nimbus leads; None without one."""
        return self.state.read_leader()

    def slots(self) -> dict[str, int]:
        """Return the number of slots by node."""
        return {info.supervisor_id: len(info.ports) for info in self.supervisors()}

    def supervisors(self) -> list[SupervisorInfo]:
        """Return the living supervisors."""
        infos = [
            self.state.read_supervisor(supervisor_id)
            for supervisor_id in self.state.supervisor_ids()
        ]
        return [info for info in infos if info is not None]

    def used_slots(self) -> set[WorkerSlot]:
        """Return the slots that topologies are assigned to."""
        return {
            slot
            for assignment in self.state.read_assignments().values()
            for slot in assignment.slot_by_executor.values()
        }

    def host_marks(self) -> Mapping[str, HostMark]:
        """Return the excluded and drained hosts by name."""
        return self.state.read_host_marks()

    def problems(self) -> dict[str, str]:
        """Return problems by topology id or name, "scheduler", "blacklist" or "turn", joined by ";
        ".
        """
        return {
            about: "; ".join(sentences) for about, sentences in self.problem_sentences().items()
        }

    def problem_sentences(self) -> dict[str, list[str]]:
        """Return Nimbus's problems and those of the workers of running topologies, in sentences by
        subject.
        """
        problems = {about: [sentence] for about, sentence in self.service.problems().items()}
        handles = [
            self.handle(summary.topology_id)
            for summary in self.summaries()
            if summary.status != TopologyStatus.KILLED
        ]
        # one wait for all
        self.dead_workers.among([beat for handle in handles for beat in handle.beats()])
        for handle in handles:
            sentences = problems.setdefault(handle.topology_id, [])
            sentences += [
                sentence for sentence in handle.worker_problems() if sentence not in sentences
            ]
        return {about: sentences for about, sentences in problems.items() if sentences}

    def dead_letters(self, topology: str | None = None) -> dict[str, StoredLetters]:
        """Return dead letters by topology id, of all topologies or one by name or id; also of those
        that are gone.
        """
        ids = sorted(
            {
                topology_id
                for store in self._stores.all()
                for topology_id in stored_in(store, topology)
            }
        )
        return {topology_id: self.handle(topology_id).dead_letters for topology_id in ids}

    # -- changing ----------------------------------------------------------------------------------

    def submit(
        self,
        name: str,
        topology: Topology,
        conf: Mapping[str, Any] | None = None,
        by_value: Sequence[str] | None = None,
        options: SubmitOptions | None = None,
        progress: Progress | None = None,
    ) -> TopologyHandle:
        """Submit a topology and wait until it is assigned; `topology.from.checkpoint` is where it
        begins.

        `by_value` names modules that travel as they are in memory (default: those that define the
        components and are not installed); the local modules that they import travel as sources.
        """
        from sparkstorm.data_plane.checkpoint.restore import Seeds  # needs the API

        self.require_writer()
        conf = conf or {}
        seeds = None
        if folder := SubmissionSettings.of(conf).from_checkpoint:
            seeds = Seeds.read(folder, topology)
            topology = seeds.topology
            conf = self._with_store(name, conf)
        code = self.packed(topology, by_value, conf)
        seed = None if seeds is None else partial(self._sow, seeds, {**self.conf, **conf})
        return self.handle(
            self.service.submit(name, topology, here(conf), code, options, seed, progress)
        )

    def update(
        self,
        name: str,
        topology: Topology,
        conf: Mapping[str, Any] | None = None,
        by_value: Sequence[str] | None = None,
        progress: Progress | None = None,
    ) -> TopologyHandle:
        """Replace the code of a running topology (hot deploy): see `TopologyHandle.update`."""
        return self.handle(self.replace_code(name, topology, conf, by_value, progress))

    def kill(self, name: str, wait_secs: float | None = None) -> str:
        """End a topology by its name or id, and return the id.

        A hot deploy that Nimbus cannot finish is called off; its name is returned. The id of a
        topology that ZooKeeper has lost (see `problems`) is taken too: what Redis keeps
        of it is deleted.
        """
        self.require_writer()
        if name in self.service.problems() and name in self.state.deploy_names():
            self.service.kill(name, wait_secs)  # calls the hot deploy off
            return name
        if name in self.problems() and name not in self.state.topology_ids():
            self.service.kill(topology_name(name), wait_secs, name)
            return name
        handle = self.topology(name)
        handle.kill(wait_secs)
        return handle.topology_id

    def plan_drain(self, host: str) -> tuple[RebalancePlan, ...]:
        """Return what draining a host would move now, a plan for each topology that changes."""
        return self.requests.plan_drain(host)

    def drain_host(self, host: str, reason: str = "") -> None:
        """Give a host no new workers and move those there, as far as free slots elsewhere allow."""
        self.requests.mark_host(RequestKind.DRAIN_HOST, host, reason)

    def exclude_host(self, host: str, reason: str = "") -> None:
        """Give a host no new workers; those that are there stay."""
        self.requests.mark_host(RequestKind.EXCLUDE_HOST, host, reason)

    def include_host(self, host: str) -> None:
        """Let a drained or excluded host get workers again; none is moved back."""
        self.requests.mark_host(RequestKind.INCLUDE_HOST, host)

    def blobs(self) -> Mapping[str, NamedBlob]:
        """Return the blobs with names: size, version, time and author of the newest version."""
        return self.service.named_blobs().all()

    def create_blob(self, name: str, data: bytes) -> NamedBlob:
        """Keep bytes under a name for `topology.blobstore.map`; InvalidConfigError when it is taken
        or they are too many.
        """
        self.require_writer()
        return self.service.named_blobs().create(name, data)

    def update_blob(self, name: str, data: bytes) -> NamedBlob:
        """Replace the bytes of a name, also in workers that run."""
        self.require_writer()
        return self.service.named_blobs().update(name, data)

    def delete_blob(self, name: str) -> None:
        """Delete a blob that no topology uses."""
        self.require_writer()
        self.service.named_blobs().delete(name)

    def running_code(self, topology_id: str) -> tuple[bytes, Mapping[str, Any]]:
        """Return a topology's code as its workers open it, and its configuration; NotAliveError
        when it is gone.
        """
        return self.service.code_of(topology_id)

    def _with_store(self, name: str, conf: Mapping[str, Any]) -> Mapping[str, Any]:
        """Name the store in the configuration of a topology that begins with a state: the state is
        there before Nimbus is asked.
        """
        settings = SubmissionSettings.of({**self.conf, **conf})
        if not self._stores.others and settings.cells == 1:
            return conf
        bases = [
            base
            for topology_id in self.state.topology_ids()
            if (base := self.state.read_base(topology_id)) is not None
        ]
        names = [address.name for address in self._stores.all()]
        chosen = choose_stores(
            name, settings.cells, settings.store, names, bases, self.supervisors()
        )
        return {**conf, STORE: ",".join(chosen)}

    def _sow(
        self,
        seeds: Seeds,
        conf: Mapping[str, Any],
        topology_id: str,
        component_by_task: Mapping[int, str],
    ) -> None:
        from sparkstorm.client.submission import CellsSeeding, sow  # as in `packed`

        settings = SubmissionSettings.of(conf)
        stores = (settings.store or "").split(",") if settings.cells > 1 else [settings.store or ""]
        with contextlib.ExitStack() as opened:
            seedings = [
                opened.enter_context(
                    contextlib.closing(
                        RedisSeeding(self._stores.of(topology_id, store), topology_id)
                    )
                )
                for store in stores
            ]
            sow(seeds, CellsSeeding(seedings, component_by_task), conf, component_by_task)
