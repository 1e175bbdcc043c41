"""A cluster inside a Spark driver: the stores, the slots as Spark tasks, a Nimbus, and handles on
topologies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext

from sparkstorm.client.cluster import ClusterClient
from sparkstorm.client.connect import zookeeper_address
from sparkstorm.client.handle import TopologyHandle
from sparkstorm.client.request_client import SubmitOptions
from sparkstorm.client.service import NimbusService
from sparkstorm.common.clock import SystemClock
from sparkstorm.common.config import Conf, merge
from sparkstorm.common.errors import (
    InvalidConfigError,
    SlotsUnavailableError,
    StoreUnavailableError,
    TamperedBlobError,
)
from sparkstorm.common.model.names import driver_of_node
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.settings import DriverSettings, ZooKeeperSettings
from sparkstorm.common.slot_spec import SlotSpec, StateAddress
from sparkstorm.common.spark_versions import is_stopped, quiet_java, start_java
from sparkstorm.common.stores.addresses import check_addresses, connection_path, not_configured
from sparkstorm.common.stores.connection import signing_key
from sparkstorm.control_plane.blobs.redis import TAG, RedisBytesStore
from sparkstorm.control_plane.blobs.store import BlobStore
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.nimbus_state import DriverInfo
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.tickets import TicketOffice
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperStateStore
from sparkstorm.control_plane.nimbus.guarded_scheduler import GuardedScheduler
from sparkstorm.control_plane.nimbus.hooks import NimbusHooks, TopologyActionListener
from sparkstorm.control_plane.nimbus.leader_election import LeaderStore, own_name
from sparkstorm.control_plane.nimbus.nimbus import Nimbus
from sparkstorm.control_plane.nimbus.redis_cleanup import (
    PATIENCE_OF_SEVERAL_S,
    PATIENCE_S,
    RedisRetirement,
    read_counts,
)
from sparkstorm.control_plane.scheduling.per_topology import chosen_scheduler
from sparkstorm.control_plane.supervisor.slot_main import main_by_ticket
from sparkstorm.data_plane.transport.connection import Link
from sparkstorm.data_plane.transport.durability import require_durable
from sparkstorm.driver.driver_office import DriverOffice
from sparkstorm.driver.guard import ServerGuard
from sparkstorm.driver.hosting.racks import read_racks
from sparkstorm.driver.hosting.spark import SparkSlots, make_context, slot_conf
from sparkstorm.driver.hosting.spark_security import (
    check_given,
    remove_at_exit,
    secured,
    with_private_scratch,
)
from sparkstorm.driver.nimbus_thread import NimbusThread
from sparkstorm.extensions.embedded.stores import RunningStores, open_stores

SLOT_DAEMON = "sparkstorm.driver.spark_daemon"
_LOG = logging.getLogger(__name__)
_REDIS_ANSWER_S = 10.0
# that differ from driver to driver
_OWN_KEYS = frozenset({"storm.local.dir", "sparkstorm.connection.file", "sparkstorm.racks.file"})
_TRIES_PER_SLOT = 4  # a slot's job that has ended so often before it was up will not come up


class Cluster:
    """A running cluster: `with Cluster.open(conf) as cluster: handle = cluster.submit("name",
    topology, {})`.

    Opening starts what is not configured (embedded servers, a Spark context) and closing stops just
    that.
    """

    def __init__(
        self,
        conf: Conf,
        stores: RunningStores,
        sc: SparkContext,
        say: Callable[[str], None] = lambda _: None,
        is_shared: bool = False,
    ) -> None:
        # workers have the Python of this process, which opens the code when it submits
        has_one_python = not is_shared and (sc.master or "").partition("[")[0] == "local"
        self.conf = merge(conf, {"nimbus.trial.wait.secs": 0}) if has_one_python else conf
        self.stores = stores
        self.sc = sc
        self.clock = SystemClock()
        self._say = say
        self.listeners: list[TopologyActionListener] = []
        """Listeners for actions on topologies (S0.51) by any of this driver's Nimbuses."""
        self._is_alone = not is_shared or bool(stores.embedded)
        self._closers = contextlib.ExitStack()
        self.settings = DriverSettings.of(conf)
        own = self.settings.worker_folder
        self.has_logs_here = (sc.master or "").startswith("local")
        own = os.path.expanduser(own) if own and self.has_logs_here else own
        self.log_dir = Path(own or self.settings.folder.resolve(), "logs")

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        conf: Conf | None = None,
        sc: SparkContext | None = None,
        say: Callable[[str], None] = lambda _: None,
        is_shared: bool = False,
    ) -> Iterator[Cluster]:
        """Start all parts; after any failure nothing is left running. `say` gets a sentence for
        each restarted server.

        With `is_shared`, and no embedded server, other drivers may share the ZooKeeper root: one
        Nimbus leads, the others wait.
        """
        conf = conf or merge({})
        check_addresses(conf)  # a mistake there is reported before Spark is started
        read_racks(DriverSettings.of(conf).racks_file)
        if sc is not None and (warning := check_given(sc, DriverSettings.of(conf).authenticates)):
            _LOG.warning(warning)
        if sc is None and _is_submitted():  # its master is known before anything has to wait for it
            refuse_remote_master(context_conf(conf).get("spark.master") or "", not_configured(conf))
        with contextlib.ExitStack() as opened, ThreadPoolExecutor(1) as pool:
            stores_later = pool.submit(open_stores, conf)  # servers and Spark start side by side
            try:
                context = sc or new_context(conf)
                if sc is None:
                    opened.callback(context.stop)
            finally:
                stores = stores_later.result()
                opened.callback(stores.close)
            guard = ServerGuard(stores.embedded, say)
            opened.callback(guard.stop)
            guard.start()
            cluster = cls(conf, stores, context, say, is_shared)
            opened.callback(cluster._closers.close)
            cluster._start()
            yield cluster

    # -- topologies --------------------------------------------------------------------------------

    def submit(
        self,
        name: str,
        topology: Topology,
        own_conf: Mapping[str, Any],
        by_value: Sequence[str] | None = None,
        options: SubmitOptions | None = None,
    ) -> TopologyHandle:
        """Submit a topology and wait until it is assigned (see ClusterClient.submit)."""
        return self.client.submit(name, topology, own_conf, by_value, options)

    def find(self, name: str) -> TopologyHandle | None:
        """Return the running topology of a name; a submission or hot deploy that a former driver
        left unfinished is waited for.
        """
        return self.client.find(name)

    def handle(self, topology_id: str) -> TopologyHandle:
        """Return a handle on a running topology."""
        return self.client.handle(topology_id)

    def restart_nimbus(self) -> None:
        """Stop Nimbus and start another one; slots and workers go on meanwhile (S3.49)."""
        self._nimbus.stop()
        self._start_nimbus()

    def stop_nimbus(self) -> None:
        """Stop Nimbus: everything that runs goes on, nothing new is assigned."""
        self._nimbus.stop()

    def check_spark(self) -> None:
        """SlotsUnavailableError when Spark, and with it every slot, is gone."""
        try:
            has_stopped = is_stopped(self.sc)
        except Exception as error:  # py4j raises various errors when its JVM is gone
            raise SlotsUnavailableError(
                f"Spark is gone ({type(error).__name__}), and with it every slot"
            ) from error
        if has_stopped:
            raise SlotsUnavailableError("the Spark context was stopped, and with it every slot")

    # -- starting ----------------------------------------------------------------------------------

    def _start(self) -> None:
        refuse_remote_master(self.sc.master or "", self.stores.embedded)
        connection = self.stores.connection
        self._address = address = zookeeper_address(connection, self.conf)
        store = ZooKeeperStateStore(address, self._say)
        self._closers.callback(store.close)
        store.open_to_viewer(paths.TICKETS)
        self.state = StormState(store, self._key)
        self._bytes_store = RedisBytesStore(Link(connection.redis, _REDIS_ANSWER_S, tag=TAG))
        self._closers.callback(self._bytes_store.close)
        self.blobs = BlobStore(self.state, self._bytes_store, self._key)
        self._office = DriverOffice(self.state, self._say)
        self._closers.callback(self._office.leave)
        self._join()
        self.service = NimbusService(self.state, self.blobs, self.conf, self.clock)
        self.client = ClusterClient(self.state, connection.stores, self.service, self.conf)
        self._closers.callback(self.client.close)
        self._start_slots(TicketOffice(store, address))
        # with its slots up: a leader without them would place everything elsewhere, or nowhere
        self._start_nimbus()
        # before the slots: else it would call slots that end dead
        self._closers.callback(lambda: self._nimbus.stop())
        self._closers.callback(store.hurry)

    def _join(self) -> None:
        """Register this driver; InvalidConfigError when it and the drivers that are there have
        different secrets.
        """
        session_ms = ZooKeeperSettings.of(self.conf).session_ms
        self._office.take(
            session_ms, self.settings.folder, self._is_alone, "zookeeper" in self.stores.embedded
        )
        if not self._office.others():
            self._publish_conf()
            return
        try:
            conf_before = self.state.read_cluster_conf()
        except TamperedBlobError as error:
            raise InvalidConfigError(
                f"{connection_path(self.conf)} has another secret than the drivers at {self.state.store.address}: copy the "
                "connection.json of one of them there, or name it in sparkstorm.connection.file"
            ) from error
        own = self.conf.for_clients()
        keys = {
            key for key in {*conf_before, *own} - _OWN_KEYS if conf_before.get(key) != own.get(key)
        }
        if keys:
            self._say(
                f"this driver's configuration differs from the leader's, which is in force, in {', '.join(sorted(keys))}"
            )

    def _publish_conf(self) -> None:
        self.state.write_cluster_conf(self.conf.for_clients())

    def _start_nimbus(self) -> None:
        """Start a Nimbus with its own session, by which it is elected: its end is the end of
        its leadership.
        """
        session = ZooKeeperStateStore(replace(self._address, is_bound=True), _LOG.info)
        store = LeaderStore(session)
        state = StormState(store, self._key)
        wake = threading.Event()
        blobs = BlobStore(state, self._bytes_store, self._key)
        connection = self.stores.connection
        patience_s = PATIENCE_OF_SEVERAL_S if connection.other_redis else PATIENCE_S
        hooks = NimbusHooks(
            wake=wake.set,
            on_lead=self._publish_conf,
            depose=self._office.depose,
            driver=self._office.me,
            retirement=RedisRetirement(connection.redis, patience_s),
            home=connection.redis.name,
            other_stores={
                redis_address.name: RedisRetirement(redis_address, patience_s)
                for redis_address in connection.other_redis
            },
            require_durable=lambda durability, names: require_durable(
                durability,
                [
                    redis_address
                    for redis_address in connection.stores.all()
                    if redis_address.name in names
                ],
            ),
            read_counts=partial(read_counts, connection.stores, patience_s),
            listeners=self.listeners,
        )
        nimbus = Nimbus(
            state,
            blobs,
            chosen_scheduler(self.conf, GuardedScheduler),
            self.conf,
            own_name(),
            hooks,
        )
        self._nimbus = NimbusThread(nimbus, self.clock, wake, store.close, session.hurry)
        self._nimbus.start()

    @property
    def leader(self) -> DriverInfo | None:
        """The driver whose Nimbus leads, as this driver's Nimbus read it last."""
        leader = self._nimbus.nimbus.leader
        return leader.driver if leader else None

    @property
    def me(self) -> DriverInfo:
        """This driver, as the others see it."""
        return self._office.me

    def other_drivers(self) -> list[DriverInfo]:
        """Return the other drivers of this cluster; none while ZooKeeper is away."""
        try:
            return self._office.others()
        except StoreUnavailableError:
            return []

    @property
    def _key(self) -> bytes:
        return signing_key(self.stores.connection.secret)

    def _start_slots(self, tickets: TicketOffice) -> None:
        living = {self._office.me.id, *(other.id for other in self._office.others())}
        for gone in set(self.state.store.children(paths.STOP_SLOTS)) - living:
            self.state.store.delete(f"{paths.STOP_SLOTS}/{gone}")
        spec = self._slot_spec()
        count = self.settings.slots
        ticket = lambda number: tickets.ticket(replace(spec, number=number).to_json())  # noqa: E731 - short, and used once
        stop = partial(self.state.store.put, spec.stop_path, b"")
        move = partial(self._ask_to_move, spec.stop_path)
        slots = SparkSlots(self.sc, count, main_by_ticket, ticket, stop, move)
        self._closers.callback(slots.stop)
        slots.start(
            self.settings.slots_start_ms, self.settings.slots_hosts, self.settings.slots_settle_ms
        )
        self.slots = slots
        self._wait_for_slots(count)

    def _ask_to_move(self, stop_path: str, number: int | None) -> None:
        if number is None:
            self.state.store.delete(stop_path)
        else:
            self.state.store.put(stop_path, str(number).encode())

    def _slot_spec(self) -> SlotSpec:
        connection = self.stores.connection
        is_emulated = (self.sc.master or "").startswith("local")
        supervisors = self.settings.supervisors if is_emulated else 0
        nodes = tuple(f"node-{i + 1}" for i in range(supervisors))
        return SlotSpec(
            zookeeper=StateAddress(
                connection.zookeeper.hosts,
                connection.zookeeper.root,
                connection.zookeeper.user,
                connection.zookeeper.password,
                ZooKeeperSettings.of(self.conf).session_ms,
                self._address.viewer,
                connection.zookeeper.tls,
            ),
            redis=connection.redis,
            other_redis=connection.other_redis,
            local_dir=str(self.log_dir.with_name("supervisors")),
            log_dir=str(self.log_dir),
            # on other masters a host has as many ports as slots land there
            slots_per_node=self.settings.slots_per_supervisor if is_emulated else 0,
            nodes=nodes,
            hmac_key=self._key.hex(),
            conf=self.conf.for_slots(),
            stop_path=paths.stop_slots(self._office.me.id),
            driver_number=self._office.me.number,
            racks=read_racks(self.settings.racks_file),
            driver="" if is_emulated else _address_of_driver(self.sc),
        )

    def _wait_for_slots(self, wanted: int) -> None:
        """Wait until every slot is registered: scheduling earlier would place everything on the
        first one up.

        SlotsUnavailableError when they do not come in time, or Spark ends.
        """
        hopeless = _TRIES_PER_SLOT * wanted

        def is_settled() -> bool:
            self.check_spark()
            return (
                self._registered_slots() >= wanted and self.slots.are_placed
            ) or self.slots.ends >= hopeless

        wait_until(is_settled, self.settings.slots_start_ms)
        there = self._registered_slots()
        if there < wanted:
            few = f"{wanted} worker slots were started, but {f'only {there}' if there else 'none'} came up"
            end = self.slots.last_end
            if self.slots.ends >= hopeless:
                raise SlotsUnavailableError(
                    f"{few}: {self.slots.ends} slot jobs have ended, the last with {end}; "
                    f"logs of slots, where they could be written, are in {self.logs_place}"
                )
            end = f"; the last slot job ended with {end}" if end else ""
            raise SlotsUnavailableError(
                f"{few} within {self.settings.slots_start_ms / 1000:g} s{end}; their logs are in {self.logs_place}; "
                "on a slow or busy machine raise sparkstorm.slots.start.timeout.ms"
            )

    @property
    def logs_place(self) -> str:
        """Return a sentence on the place of the logs of slots and workers."""
        return str(self.log_dir) if self.has_logs_here else f"{self.log_dir} on each worker host"

    def _registered_slots(self) -> int:
        """Return the number of registered slots; 0 while ZooKeeper is away."""
        try:
            return sum(self.slots_by_node().values())
        except StoreUnavailableError:
            return 0

    def slots_by_node(self) -> dict[str, int]:
        """Return the number of this driver's registered slots by supervisor."""
        own = [
            node
            for node in self.state.supervisor_ids()
            if driver_of_node(node) == self._office.me.number
        ]
        infos = [self.state.read_supervisor(node) for node in own]
        return {info.supervisor_id: len(info.ports) for info in infos if info is not None}


def _address_of_driver(sc: SparkContext) -> str:
    """Return "HOST:PORT" where executors reach the driver; empty when Spark does not say."""
    conf = sc.getConf()
    host, port = conf.get("spark.driver.host"), conf.get("spark.driver.port")
    return f"{host}:{port}" if host and port else ""


def new_context(conf: Conf) -> SparkContext:
    """A Spark context fit for slots."""
    spark_conf = with_private_scratch(context_conf(conf))
    quiet_spark()
    context = make_context(spark_conf)
    context.setLogLevel("ERROR")
    remove_at_exit(context)
    return context


def quiet_spark() -> None:
    """Keep all but errors out of Spark's log from now on, where no file of the user's configures
    that log.

    Without one, Spark prints some 40 lines while its context starts. The end of a slot is reported
    by its keeper in one line.
    """
    if (
        os.environ.get("SPARK_CONF_DIR")
        and Path(os.environ["SPARK_CONF_DIR"], "log4j2.properties").exists()
    ):
        return
    try:
        quiet_java(("executor.Executor", "scheduler.TaskSetManager"), "rpc.netty.Inbox")
    except Exception:  # various errors of py4j; a Spark with another logger prints more, and works
        return


def context_conf(conf: Conf) -> SparkConf:
    """Return Spark's settings; `spark-submit` names the master, without it it is local with cores
    enough.
    """
    start_java()
    spark_conf = slot_conf(SparkConf())
    settings = DriverSettings.of(conf)
    # A gateway of plain Python's own (a notebook's, say) has local[*] when no master is named.
    if spark_conf.get("spark.master") in (None, "", "local[*]") and not _is_submitted():
        spark_conf.setMaster(f"local[{max(os.cpu_count() or 1, settings.slots + 1)}]")
    if (spark_conf.get("spark.master") or "").startswith("local") and not spark_conf.get(
        "spark.pyspark.python"
    ):
        # Spark would take any python3 of the PATH for slots
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    named = with_slot_daemon(spark_conf).setIfMissing("spark.app.name", "sparkstorm")
    return secured(named, settings.authenticates)


def with_slot_daemon(conf: SparkConf) -> SparkConf:
    """Return the conf with a Python daemon that has preloaded a slot's imports, on masters whose
    hosts have that module.
    """
    if (conf.get("spark.master") or "").startswith("local"):
        conf.setIfMissing("spark.python.daemon.module", SLOT_DAEMON)
    return conf


def _is_submitted() -> bool:
    """Return whether spark-submit started this process, its JVM first."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def wait_until(condition: Callable[[], bool], timeout_ms: int, every_ms: int = 50) -> bool:
    """Poll a condition until it holds; False when the time is over."""
    clock = SystemClock()
    deadline_ms = clock.now_ms() + timeout_ms
    pause = threading.Event()
    while not condition():
        if clock.now_ms() >= deadline_ms:
            return False
        pause.wait(every_ms / 1000)
    return True


def refuse_remote_master(master: str, embedded: Iterable[str]) -> None:
    """InvalidConfigError when slots may land on other hosts, which do not reach servers on this
    one's loopback.
    """
    missing = " and ".join(sorted(embedded))
    if missing and not master.startswith("local"):
        raise InvalidConfigError(
            f"master {master} may run slots on other hosts, which cannot reach the embedded {missing} on this one: "
            "set sparkstorm.redis.url and storm.zookeeper.servers to servers of your own"
        )
