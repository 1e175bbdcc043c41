"""Main of a slot process: the slot that it claims, its two threads, its end.

A Spark task calls `main_by_ticket`; the processes of tests/supervisor/local_slots.py call `main`.
"""

import contextlib
import logging
import os
import pwd
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

from sparkstorm.common.clock import SystemClock
from sparkstorm.common.config import default_conf, merge
from sparkstorm.common.errors import SlotsUnavailableError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.names import file_name, node_of_driver
from sparkstorm.common.model.status import JsonValue
from sparkstorm.common.settings import NimbusSettings, SupervisorSettings
from sparkstorm.common.slot_spec import SlotSpec
from sparkstorm.common.stores.redis_client import client_of
from sparkstorm.control_plane.blobs.redis import TAG, RedisBytesStore
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.task_beats import TaskBeatGatherer
from sparkstorm.control_plane.cluster.tickets import Ticket, redeem
from sparkstorm.control_plane.cluster.watched import WatchedStore
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.control_plane.supervisor.code_trials import CodeTrials
from sparkstorm.control_plane.supervisor.fork_server import ForkServer
from sparkstorm.control_plane.supervisor.log_publisher import LogPublisher
from sparkstorm.control_plane.supervisor.node_dir import NodeDir
from sparkstorm.control_plane.supervisor.slot import ClaimedSlot, Slot, worker_log_name
from sparkstorm.control_plane.supervisor.slot_sync import SlotStores, SlotSync
from sparkstorm.control_plane.supervisor.store_probe import ANSWER_S, DriverProbe, RedisProbe
from sparkstorm.control_plane.supervisor.supervisor import Supervisor, SupervisorDuties
from sparkstorm.control_plane.supervisor.worker_memory import HostMeter
from sparkstorm.control_plane.supervisor.worker_process import WorkerChild, child_environment
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.data_plane.user_code.trial import CodeTrial
from sparkstorm.data_plane.worker.main import DEFAULT_ENTRY

_LOG = logging.getLogger(__name__)
# A slot does nothing else meanwhile: half of it would give up a server that is only busy.
_REDIS_ANSWER_S = 10.0
PLACE_WAIT_MS = 20_000
LOG_PATIENCE_S = 1.0  # heartbeats wait for no longer
STOPPED = "stopped"
ORPHANED = "orphaned"


def main(
    spec: SlotSpec, stopping: threading.Event | None = None, server: ForkServer | None = None
) -> str:
    """Run one slot to its end and return why it ended; never raises (an exception would count
    against the Spark job).

    `server` forks its worker processes; without one they are started by exec.
    """
    try:
        spec = at_home(spec)
        claimed = wait_for_slot(spec)
        with _logging_to(
            Path(spec.log_dir) / f"{file_name(f'slot-{claimed.slot.node}-{claimed.slot.port}')}.log"
        ):
            try:
                return _run(spec, claimed, stopping or threading.Event(), server)
            finally:
                claimed.claim.release()
    except Exception as fault:
        _LOG.exception("slot failed")
        return f"failed: {type(fault).__name__}: {fault}"
    finally:
        if server is not None:
            server.close()


def main_by_ticket(ticket: Ticket) -> str:
    """Use a ticket up and run the slot of its spec; as `main`, it returns why the slot ended and
    never raises.

    A second attempt of the same Spark task finds the ticket used and ends; the driver submits the
    slot again.
    """
    server = ForkServer.start()  # before there is a thread, a connection or a secret
    try:
        spec = SlotSpec.from_json(redeem(ticket))
    except Exception as fault:
        if server is not None:
            server.close()
        return f"failed: {type(fault).__name__}: {fault}"
    return main(spec, server=server)


def at_home(spec: SlotSpec) -> SlotSpec:
    """Return the spec with its folders below the home of the user here, where they begin with
    "~".
    """
    local_dir = os.path.expanduser(spec.local_dir)
    log_dir = os.path.expanduser(spec.log_dir)
    return replace(spec, local_dir=local_dir, log_dir=log_dir)


def meta_of(spec: SlotSpec, host: str) -> dict[str, JsonValue]:
    """Return the properties of a node for schedulers: its rack."""
    return {"rack": spec.racks[host]} if host in spec.racks else {}


def wait_for_slot(spec: SlotSpec) -> ClaimedSlot:
    """Claim the first free (node, port) of this machine; SlotsUnavailableError when all stay
    taken.
    """
    spec, host = at_home(spec), spec.host or socket.gethostname()
    for folder in (spec.local_dir, spec.log_dir):
        _make_folder(folder, host)
    names = [node_of_driver(node, spec.driver_number) for node in spec.nodes or (host,)]
    nodes = [NodeDir(Path(spec.local_dir), node) for node in names]
    deadline = time.monotonic() + PLACE_WAIT_MS / 1000
    while time.monotonic() < deadline:
        for number, (port, node_dir) in enumerate(product(spec.ports(), nodes)):
            if claim := node_dir.try_claim(port):
                return ClaimedSlot(
                    WorkerSlot(node_dir.node, port), host, node_dir, claim, _cpus_of(number, spec)
                )
        # a slot that was just killed gives its port back when the kernel has reaped it
        time.sleep(0.1)
    raise SlotsUnavailableError(
        f"{host}: all {len(spec.ports())} ports of node {', '.join(node_dir.node for node_dir in nodes)} are taken"
    )


def _make_folder(folder: str, host: str) -> None:
    """Make a folder of slots; SlotsUnavailableError when the user here may not, or may not write to
    one that is there, as to another user's.
    """
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        what = "" if os.access(folder, os.W_OK | os.X_OK) else "is another user's"
    except OSError as error:
        what = f"cannot be made ({error.strerror})"
    if what:
        raise SlotsUnavailableError(
            f"{host}: the folder {folder} {what}, slots run as user {_user()} there: "
            "name another one in sparkstorm.worker.local.dir"
        )


def _user() -> str:
    """Return the name of the user of this process, its number where it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _cpus_of(number: int, spec: SlotSpec) -> tuple[int, ...]:
    """Return the CPUs of the workers of a host's slot with that number; empty without
    worker.cpu.affinity and outside Linux.
    """
    settings = SupervisorSettings.of(merge(default_conf(), spec.conf))
    if not settings.has_cpu_affinity or not hasattr(os, "sched_getaffinity"):
        return ()
    cpus = sorted(os.sched_getaffinity(0))
    most = settings.cpus_per_worker
    return tuple(sorted({cpus[(number * most + offset) % len(cpus)] for offset in range(most)}))


def _run(
    spec: SlotSpec, claimed: ClaimedSlot, stopping: threading.Event, server: ForkServer | None
) -> str:
    sync = SlotSync(
        claimed.slot, claimed.node_dir, lambda: _connect(spec, claimed), spec.stop_path, spec.number
    )
    wake_read, wake_write = (
        os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
    )
    os.set_blocking(wake_read, False)
    sync.notify = lambda: _poke(wake_write)
    over = threading.Event()
    thread = threading.Thread(
        target=_drive_clerk, args=(sync, over), name=f"sync-{claimed.slot.port}", daemon=True
    )
    thread.start()
    early_log = NodeDir(Path(spec.local_dir), claimed.slot.node).early_log(claimed.slot.port)
    slot = Slot(spec, claimed, sync, lambda: _spawn(server, spec.entry or DEFAULT_ENTRY, early_log))
    _LOG.info("slot %s of host %s: pid %d", claimed.slot, claimed.host, os.getpid())
    try:
        return _drive_slot(slot, sync, wake_read, stopping)
    finally:
        slot.close()
        over.set()
        sync.wake()
        thread.join(timeout=10)
        if not thread.is_alive():
            os.close(wake_read)
            os.close(wake_write)


def _spawn(server: ForkServer | None, entry: str, early_log: Path) -> WorkerChild:
    if server is not None:
        try:
            return server.fork(entry)
        except OSError as fault:
            _LOG.warning("slot: no worker can be forked (%s); it is started by exec", fault)
    return WorkerChild.spawn(entry, early_log)


def _drive_slot(slot: Slot, sync: SlotSync, wake_fd: int, stopping: threading.Event) -> str:
    clock = SystemClock()
    parent = os.getppid()
    while not slot.is_over:
        if os.getppid() != parent:
            return ORPHANED
        if stopping.is_set():
            sync.stop = True
        now_ms = clock.now_ms()
        due_ms = slot.step(now_ms)
        select.select([wake_fd, *slot.filenos()], [], [], max(0, due_ms - now_ms) / 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(wake_fd, 4096)
    return STOPPED


def _drive_clerk(sync: SlotSync, over: threading.Event) -> None:
    clock = SystemClock()
    while not over.is_set():
        now_ms = clock.now_ms()
        try:
            due_ms = sync.step(now_ms)
        except Exception:  # a slot without this thread would follow no assignment
            _LOG.exception("slot's sync")
            due_ms = now_ms + 1_000
        sync.wait(due_ms - now_ms)
    sync.close()


def _poke(fd: int) -> None:
    with contextlib.suppress(BlockingIOError, OSError):
        os.write(fd, b".")


def _connect(spec: SlotSpec, claimed: ClaimedSlot) -> SlotStores:
    zookeeper = spec.zookeeper
    conf = merge(default_conf(), spec.conf)
    address = ZooKeeperAddress(
        zookeeper.hosts, zookeeper.root, zookeeper.user or None, zookeeper.password or None
    ).with_patience_of(conf)
    address = replace(
        address,
        session_timeout_ms=zookeeper.session_timeout_ms,
        viewer=zookeeper.viewer,
        tls=zookeeper.tls,
    )
    key = bytes.fromhex(spec.hmac_key)
    store = WatchedStore(ZooKeeperStateStore(address), SystemClock().now_ms, str(claimed.slot))
    state = StormState(store, key)
    # As one that only reads: a slot must beat, and a restarted server takes minutes to rewrite a
    # large file. Code that it has put back meanwhile is put back again when it is lost.
    chunks = RedisBytesStore(Link(spec.redis, _REDIS_ANSWER_S, may_write=False, tag=TAG))
    blobs = BlobStore(state, chunks, key)
    settings = SupervisorSettings.of(conf)
    duties = SupervisorDuties(
        host=claimed.host,
        own_port=claimed.slot.port,
        heartbeat_ms=settings.heartbeat_ms,
        monitor_ms=settings.monitor_ms,
        worker_timeout_ms=settings.worker_timeout_ms,
        resources=settings.resources,
        scheduler_meta=meta_of(spec, claimed.host),
        driver=spec.driver,
        host_load=HostMeter().read,
    )
    log_of = lambda topology_id: Path(spec.log_dir) / worker_log_name(topology_id, claimed.slot)  # noqa: E731 - short, and used once
    logs = LogPublisher(claimed.slot, spec.stores, log_of, LOG_PATIENCE_S)
    scratch = NodeDir(Path(spec.local_dir), claimed.slot.node).tmp
    try_code = lambda code: CodeTrial(code, child_environment(), scratch=scratch)  # noqa: E731 - short, and used once
    trials = None
    if NimbusSettings.of(conf).trial_wait_ms:
        trials = CodeTrials(state, blobs, claimed.node_dir, claimed.slot.port, try_code)
    probe, *other_probes = (
        RedisProbe(partial(client_of, redis_address, ANSWER_S))
        for redis_address in spec.stores.all()
    )
    probes = {
        redis_address.name: probe
        for redis_address, probe in zip(spec.other_redis, other_probes, strict=True)
    }
    driver_probe = DriverProbe(spec.driver) if spec.driver else None
    supervisor = Supervisor(duties, claimed.node_dir, state, trials, probe, probes, driver_probe)
    gatherer = TaskBeatGatherer(state, settings.task_heartbeat_ms)
    return SlotStores(state, blobs, supervisor, logs, gatherer, has_several=bool(spec.other_redis))


class _SlotLog(logging.FileHandler):
    """A log file whose full disk is reported once on standard error, not with a traceback for every
    line.
    """

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Report the first failure."""
        if not self._has_failed:
            self._has_failed = True
            print(
                f"{self.baseFilename} cannot be written: {sys.exc_info()[1]}",
                file=sys.stderr,
                flush=True,
            )


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """The slot's own log next to its workers'; taken off again, for Spark may use the process for
    another task.
    """
    handler = _SlotLog(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("sparkstorm")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
