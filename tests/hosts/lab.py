"""A cluster over several hosts of one machine: Spark's master and workers, Redis, ZooKeepers,
drivers and a client.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkstorm.extensions.embedded.java import find_java
from sparkstorm.extensions.embedded.redis import find_redis_binary
from sparkstorm.extensions.embedded.zookeeper import class_path
from tests.chaos.topologies import words_of
from tests.hosts.network import Host, Network, User
from tests.hosts.settings import (
    ASK,
    ASK_SENTINEL,
    JAVA,
    JOB,
    KEEPER,
    KEEPER_TLS,
    PORTS,
    REDIS,
    REDIS_TLS,
    REPLICATED,
    SENTINEL,
    SLOTS,
    SPARK,
    TLS_OPTIONS,
    TLS_PORTS,
)
from tests.transport.bare_redis import debian_redis
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
ANN, SPARK_USER = User("ann", 4001), User("spark", 4002)
_BIN = Path(sys.executable).parent
_ANSWERS_S = 900.0  # a loaded machine starts a dozen JVMs in that
_WATCH = Path(__file__).with_name("watch.py")


@dataclass
class Watch:
    """Looks of a client at a topology: a line for each, until it had drained."""

    process: subprocess.Popen[str]
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        Host.end(self.process, number=signal.SIGKILL)
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _follow(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def done(self) -> int:
        """Return the numbers whose trees were complete at the last look."""
        return max((line.get("done", 0) for line in self.lines), default=0)

    def sums(self) -> Mapping[str, int] | None:
        """Return the sums of the drained topology; None before."""
        found: Mapping[str, int] | None = self.lines[-1].get("sums") if self.lines else None
        return found

    def longest_pause(self, since: float) -> float:
        """Return the longest time without a complete tree among the looks from a moment on, in
        seconds.
        """
        longest, last_at, last = 0.0, since, -1
        for line in [each for each in self.lines if each["at"] >= since and "done" in each]:
            if line["done"] != last:
                longest, last_at, last = (
                    max(longest, line["at"] - last_at),
                    line["at"],
                    line["done"],
                )
        return longest

    def named_after(self, host: str, since: float) -> float | None:
        """Return after how many seconds a problem named a host, or a worker there was called dead;
        None if never.
        """
        for line in list(self.lines):
            if line["at"] >= since and is_named(
                host, line.get("problems", ()), line.get("workers", {})
            ):
                return float(line["at"] - since)
        return None


class Lab:
    """The hosts, with everything on them; `cluster` starts a driver, `submit` a topology with a
    known answer.
    """

    def __init__(
        self,
        folder: Path,
        keepers: int = 3,
        workers: int = 3,
        drivers: int = 2,
        is_guarded: bool = False,
        is_encrypted: bool = False,
        spare_cores: int = 0,
        old_jars: Path | None = None,
        has_users: bool = False,
        stores: int = 1,
        replicas: int = 0,
    ) -> None:
        """Make the hosts; each executor has so many cores more than slots.

        Topologies are cut over all stores. Every Redis has a host; where stores have replicas, each
        ZooKeeper's host has a Sentinel too.

        Guarded hosts are each behind a firewall that lets only the ports of docs/operations.md
        through. With encryption Redis and ZooKeeper take TLS alone, and ask for a client's
        certificate. The ZooKeepers are those of `old_jars` until they are replaced. With users
        drivers and clients are run by one, Spark's master and workers by another; none is root.
        """
        self._is_guarded, self._is_encrypted = is_guarded, is_encrypted
        self._ports = PORTS | (TLS_PORTS if is_encrypted else {})
        self._folder, self._drivers = folder, drivers
        self._cores = SLOTS + spare_cores  # of each executor
        self._closers = ExitStack()
        primaries = ["redis", *(f"redis{number}" for number in range(2, stores + 1))]
        redis = {
            name: [name, *(f"{name}-{letter}" for letter in "bcd"[:replicas])] for name in primaries
        }
        names = {name: [f"{name}.example"] for group in redis.values() for name in group}
        names |= {"head": []}
        names |= {f"zk{number}": [f"zk{number}.example"] for number in range(1, keepers + 1)}
        names |= {f"w{number}": [] for number in range(1, workers + 1)} | {
            f"d{number}": [] for number in range(1, drivers + 1)
        }
        names |= {"client": []}
        users = {name: user for name in names if has_users and (user := _user_of(name))}
        self.network = Network(folder, names, users)
        self.hosts = self.network.hosts
        self.keepers = [self.hosts[f"zk{number}"] for number in range(1, keepers + 1)]
        self.workers = [self.hosts[f"w{number}"] for number in range(1, workers + 1)]
        self._servers = {
            store: [self.hosts[name] for name in group] for store, group in redis.items()
        }
        self.head, self.client = self.hosts["head"], self.hosts["client"]
        self.cut_off = ""  # the driver that a fault has cut off
        self.harmed = self.redis[0]  # the primary that a fault has harmed
        self._old_jars = old_jars
        self._keepers_run: dict[str, subprocess.Popen[bytes]] = {}
        self._password, self._secret = secrets.token_hex(16), secrets.token_hex(32)
        self._spark_home = Path(importlib.util.find_spec("pyspark").origin or "").parent  # type: ignore[union-attr]

    def __enter__(self) -> Lab:
        self._closers.enter_context(self.network)
        try:
            for host in self.hosts.values() if self._is_guarded else ():
                self._guard(host)
            if self._is_encrypted:
                self._make_certificates()
            for servers in self._servers.values():
                for server in servers:
                    self.start_redis(server, None if server is servers[0] else servers[0])
            for keeper in self.keepers:
                self.start_keeper(keeper)
                if self.has_replicas:
                    self._start_sentinel(keeper)
            for name in [name for name in self.hosts if re.fullmatch(r"head|[wd]\d", name)]:
                self._settle(self.hosts[name])
            self._start_spark(self.head, "master.Master", "--port", "7077")
            for worker in self.workers:
                self.start_worker(worker)
            wait_until(
                lambda: self._says("head", "spark.log", "Registering worker", len(self.workers)),
                "Spark's workers",
                _ANSWERS_S,
            )
            wait_until(self._keepers_serve, "a leader among the ZooKeepers", _ANSWERS_S)
        except BaseException:
            self._closers.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closers.close()

    def _guard(self, host: Host) -> None:
        found = re.match("[a-z]+", host.name)
        assert found is not None
        host.guard(self._ports[found[0]])

    def _make_certificates(self) -> None:
        """Make certificates by the command of docs/operations.md, and copy them to every host."""
        servers = [host.name for host in (*self.redis, *self.keepers)]
        # ZooKeepers look one another's names up by address, which gives the short ones
        names = [*servers, *(f"{name}.example" for name in servers)]
        script = [sys.executable, "-m", "sparkstorm.extensions.embedded.certificates"]
        subprocess.run([*script, str(self._folder / "tls"), *names], check=True, timeout=_ANSWERS_S)
        for host in self.hosts.values():
            shutil.copytree(self._folder / "tls", host.folder / "tls")
            host.give(host.folder / "tls")

    # -- servers -----------------------------------------------------------------------------------

    @property
    def redis(self) -> list[Host]:
        """Return the hosts of every Redis."""
        return [server for servers in self._servers.values() for server in servers]

    @property
    def has_replicas(self) -> bool:
        """Return whether stores have replicas and Sentinels."""
        return len(self.redis) > len(self._servers)

    def start_redis(self, server: Host, primary: Host | None = None) -> None:
        """Start Redis on its host, over what its folder has; as a replica of another if one is
        given. Sentinels make a former primary a replica by themselves.
        """
        ports = REDIS_TLS if self._is_encrypted else "port 6379"
        text = REDIS.format(password=self._password, ports=ports)
        text += REPLICATED.format(password=self._password) if self.has_replicas else ""
        text += f"replicaof {primary.address} 6379\n" if primary else ""
        _write_private(server.folder / "redis.conf", text)
        # the packaged server is built without TLS
        binary = debian_redis() if self._is_encrypted else find_redis_binary()
        server.start("redis.log", [binary, "/srv/redis.conf"])

    def _start_sentinel(self, host: Host) -> None:
        """Start a Sentinel of all stores on a host."""
        text = "port 26379\nbind 0.0.0.0\nprotected-mode no\ndir /srv\n" + "".join(
            SENTINEL.format(name=name, address=servers[0].address, password=self._password)
            for name, servers in self._servers.items()
        )
        _write_private(host.folder / "sentinel.conf", text)
        host.start("sentinel.log", [find_redis_binary(), "/srv/sentinel.conf", "--sentinel"])

    def primary(self, store: str) -> Host:
        """Return the host of a store's primary, as a Sentinel names it."""
        servers = self._servers[store]
        if len(servers) == 1:
            return servers[0]
        ask = [sys.executable, "-I", "-S", "-c", ASK_SENTINEL, store]
        said = self.client.must(*ask)
        return next(server for server in servers if server.address in said)

    def start_keeper(self, keeper: Host) -> None:
        """Start a ZooKeeper on its host, one of an ensemble if there are several."""
        (keeper.folder / "data").mkdir(exist_ok=True)
        (keeper.folder / "data" / "myid").write_text(keeper.name.removeprefix("zk"))
        peers = [
            f"server.{each.name.removeprefix('zk')}={each.name}:2888:3888\n"
            for each in self.keepers
        ]
        ports = KEEPER_TLS if self._is_encrypted else "clientPort=2181"
        text = KEEPER.format(ports=ports, peers="".join(peers) if len(peers) > 1 else "")
        (keeper.folder / "zoo.cfg").write_text(text)
        # TLS takes Netty, which Spark has
        every = self._old_jars or self._spark_home / "jars"
        classes = f"{every}/*" if self._is_encrypted or self._old_jars else class_path()
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._keepers_run[keeper.name] = keeper.start(
            "keeper.log",
            [find_java(), "-Xmx96m", *JAVA, "-cp", classes, main, "/srv/zoo.cfg"],
        )

    def replace_keepers(self) -> None:
        """End each ZooKeeper in turn and start that of this PySpark over its data; the next one
        follows when all serve again.
        """
        self._old_jars = None
        for keeper in self.keepers:
            Host.end(self._keepers_run[keeper.name])
            self.start_keeper(keeper)
            wait_until(self._keepers_serve, "every ZooKeeper serves again", _ANSWERS_S)

    def start_worker(self, worker: Host) -> None:
        """Start Spark's worker on its host, which may have been off."""
        if self._is_guarded:
            self._guard(worker)
        size = ["--cores", str(self._cores * self._drivers), "--memory", "4g"]
        self._start_spark(
            worker,
            "worker.Worker",
            "--port",
            "7078",
            *size,
            "--work-dir",
            "/srv/work",
            "spark://head:7077",
        )

    def _start_spark(self, host: Host, main: str, *arguments: str) -> None:
        scala = (
            next(self._spark_home.glob("jars/spark-core_*.jar")).name.split("_")[1].split("-")[0]
        )
        environment = {**self._environment(), "SPARK_SCALA_VERSION": scala}
        java = [find_java(), "-Xmx160m", *JAVA, "-cp", f"/srv/conf:{self._spark_home}/jars/*"]
        own = [
            "--host",
            host.name,
            "--webui-port",
            "0",
            "--properties-file",
            "/srv/conf/spark-defaults.conf",
        ]
        host.start(
            "spark.log", [*java, f"org.apache.spark.deploy.{main}", *own, *arguments], environment
        )

    def _settle(self, host: Host) -> None:
        """Give a host of Spark its settings, Redis' password, and what README's commands name."""
        (host.folder / "conf").mkdir(mode=0o700)
        java = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir=/srv/tmp"
        most = self._cores * len(self.workers)
        settings = SPARK.format(
            secret=self._secret, java=java, python=sys.executable, slots=self._cores, cores=most
        )
        _write_private(host.folder / "conf" / "spark-defaults.conf", settings)
        _write_private(host.folder / "redis.password", self._password + "\n")
        for name in ("jobs", "README.md"):
            (host.folder / name).symlink_to(ROOT / name)
        host.give(host.folder)
        if host in self.workers and host.user:
            # that of a driver's storm.local.dir, which is somebody else's here
            (host.folder / "storm-local").mkdir(mode=0o755)

    def _environment(self) -> dict[str, str]:
        path = f"{_BIN}:{os.environ.get('PATH', os.defpath)}"
        home = str(Path(find_java()).resolve().parents[1])
        return {
            "SPARK_HOME": str(self._spark_home),
            "SPARK_CONF_DIR": "/srv/conf",
            "PATH": path,
            "JAVA_HOME": home,
        }

    def _keepers_serve(self) -> bool:
        ask = [sys.executable, "-I", "-S", "-c", ASK]
        port = str(self._ports["zk"][0])
        return all(
            "Mode" in self.client.run(*ask, f"{keeper.name}.example", port).stdout
            for keeper in self.keepers
        )

    def _says(self, host: str, log: str, text: str, times: int = 1) -> bool:
        path = self.hosts[host].folder / log
        return path.exists() and path.read_text(errors="replace").count(text) >= times

    # -- drivers and the client --------------------------------------------------------------------

    def type_documented_command(self, driver: str) -> subprocess.CompletedProcess[str]:
        """Type the standalone master's command of docs/deploy.md at a driver's host, to the letter, in a
        folder that has what it names; return what came of it.
        """
        host = self.hosts[driver]
        (host.folder / "conf" / "wordcount.yaml").symlink_to(ROOT / "conf" / "wordcount.yaml")
        return host.run(
            "bash", "-ec", documented_command(), environment=self._environment(), limit_s=_ANSWERS_S
        )

    def store_options(self) -> list[str]:
        """Return the options that docs/deploy.md gives for the addresses of the stores."""
        port = ":2281" if self._is_encrypted else ""
        keepers = ", ".join(f"{keeper.name}.example{port}" for keeper in self.keepers)
        scheme = "rediss" if self._is_encrypted else "redis"
        port_of_redis = self._ports["redis"][0]
        sentinels = ",".join(f"{keeper.name}.example" for keeper in self.keepers)
        urls = [
            f"{scheme}+sentinel://{sentinels}/{store}"
            if self.has_replicas
            else f"{scheme}://{store}.example:{port_of_redis}#{store}"
            for store in self._servers
        ]
        options = [
            f"sparkstorm.redis.urls={json.dumps(urls)}"
            if len(urls) > 1
            else f"sparkstorm.redis.url={urls[0].partition('#')[0]}",
            "sparkstorm.redis.password.file=redis.password",
            *(TLS_OPTIONS if self._is_encrypted else ()),
        ]
        return [
            word
            for each in [*options, f"storm.zookeeper.servers=[{keepers}]"]
            for word in ("-c", each)
        ]

    def cluster(
        self, driver: str, slots_per_host: int = SLOTS, *options: str
    ) -> subprocess.Popen[bytes]:
        """Start a driver as docs/deploy.md says, with slots on every worker host; return when its cluster
        is up.
        """
        process = self.begin_cluster(
            driver,
            slots_per_host,
            "-c",
            f"sparkstorm.worker.local.dir={self.slots_folder}",
            *options,
        )
        said = (self.hosts[driver].folder / "driver.log").read_text()
        assert "the cluster is up" in said, said
        return process

    @property
    def slots_folder(self) -> str:
        """Return the folder of slots on worker hosts, as drivers name it."""
        return "~/of-slots" if self.workers[0].user else "/srv/of-slots"

    def begin_cluster(
        self, driver: str, slots_per_host: int, *options: str
    ) -> subprocess.Popen[bytes]:
        """Start a driver; return when its cluster is up, or it has ended."""
        host = self.hosts[driver]
        size = [
            "-c",
            f"sparkstorm.supervisors={len(self.workers)}",
            "-c",
            f"sparkstorm.slots.per.supervisor={slots_per_host}",
        ]
        size += [
            "-c",
            f"sparkstorm.slots.hosts={len(self.workers)}",
            "-c",
            "sparkstorm.slots.start.timeout.ms=600000",
        ]
        (host.folder / "racks").write_text(
            "".join(f"{worker.name} /rack-of-{worker.name}\n" for worker in self.workers)
        )
        size += [
            "-c",
            "sparkstorm.racks.file=racks",
        ]
        command = [
            str(_BIN / "sparkstorm"),
            "cluster",
            "--master",
            "spark://head:7077",
            *self.store_options(),
            *size,
            *options,
        ]
        (host.folder / "driver.log").unlink(missing_ok=True)
        process = host.start(
            "driver.log",
            command,
            {name: value for name, value in self._environment().items() if name != "SPARK_HOME"},
        )
        wait_until(
            lambda: (
                self._says(driver, "driver.log", "the cluster is up") or process.poll() is not None
            ),
            driver,
            _ANSWERS_S,
        )
        return process

    def share_connection(self, owner: str, others: Sequence[str]) -> None:
        """Copy a driver's connection file to the client, and to drivers that are to join."""
        source = self.hosts[owner].folder / "storm-local" / "connection.json"
        places = [(self.client, self.client.folder)]
        places += [(self.hosts[each], self.hosts[each].folder / "storm-local") for each in others]
        for host, folder in places:
            folder.mkdir(mode=0o700, exist_ok=True)
            shutil.copy(source, folder / "connection.json")
            (folder / "connection.json").chmod(0o600)
            host.give(folder)

    def verb(
        self,
        *words: str,
        limit_s: float = 180.0,
        host: Host | None = None,
        connection: str = "/srv/connection.json",
    ) -> subprocess.CompletedProcess[str]:
        """Run a verb of `sparkstorm` at the client, or at another host, without Java and Spark."""
        environment = {
            "PATH": f"{_BIN}:/usr/bin:/bin",
            "SPARKSTORM_CLUSTER": connection,
            "JAVA_HOME": "",
            "SPARK_HOME": "",
        }
        return (host or self.client).run(
            str(_BIN / "sparkstorm"), *words, environment=environment, limit_s=limit_s
        )

    def answer(self, *words: str) -> str:
        """Return what a verb says; AssertionError when it fails."""
        done = self.verb(*words)
        assert not done.returncode, f"sparkstorm {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def leader(self) -> str:
        """Return the host of the driver that leads."""
        drivers = json.loads(self.answer("status", "--json"))["drivers"]
        (found,) = [each["host"] for each in drivers if each["state"] == "leads"]
        return str(found)

    def slots_by_host(self) -> dict[str, int]:
        """Return the slots of each host, as `sparkstorm hosts` shows them."""
        return {
            row["host"]: len(row["slots"])
            for row in json.loads(self.answer("hosts", "--json"))["hosts"]
        }

    def submit(self, name: str, per_second: int, workers: int = 3) -> Watch:
        """Submit a topology with a known answer, and watch it from the client's host."""
        shutil.copytree(Path(__file__).with_name("job"), self.client.folder, dirs_exist_ok=True)
        cells = min(len(self._servers), workers)
        job = JOB.format(name=name, per_second=per_second, workers=workers, cells=cells)
        job += "topology.cells.durability: replica\n" if cells > 1 and self.has_replicas else ""
        (self.client.folder / f"{name}.yaml").write_text(job)
        for host in self.hosts.values():
            (host.folder / f"gate-{name}").unlink(missing_ok=True)  # of an earlier one of that name
        self.client.give(self.client.folder)
        self.answer("submit", f"{name}.yaml", "--detach")
        environment = {**os.environ, "SPARKSTORM_CLUSTER": "/srv/connection.json"}
        command = self.client.inside([sys.executable, str(_WATCH), name])
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        )
        watch = Watch(process)
        self._closers.callback(watch.close)
        return watch

    def wait_for(self, watch: Watch, done: int) -> None:
        """Wait until so many numbers of a topology are done."""
        wait_until(
            lambda: watch.done() >= done or watch.process.poll() is not None,
            f"{done} numbers",
            _ANSWERS_S,
        )
        assert watch.process.poll() is None, "the client that watches has ended"

    def end(self, name: str, watch: Watch) -> int:
        """End a source, wait until the topology has drained, check its sums and kill it; return how
        many numbers there were.
        """
        for host in self.hosts.values():
            (host.folder / f"gate-{name}").touch()
        wait_until(
            lambda: watch.sums() is not None or watch.process.poll() is not None,
            f"the end of {name}",
            _ANSWERS_S,
        )
        sums = watch.sums()
        assert sums is not None and sums == expected(sums["total"]), f"{name}: wrong sums {sums}"
        self.answer("kill", name, "--wait", "0")
        return sums["total"]


def _user_of(host: str) -> User | None:
    """Return the user of a host: one of drivers and clients, one of Spark's master and workers."""
    if host.startswith(("redis", "zk")):
        return None
    return ANN if host.startswith(("d", "client")) else SPARK_USER


def documented_command() -> str:
    """Return the command of docs/deploy.md for a standalone master, without the prompt."""
    blocks = re.findall(
        r"```console\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.DOTALL
    )
    (found,) = [block for block in blocks if "--master spark://head:7077" in block]
    return str(found).removeprefix("$ ")


def is_named(host: str, problems: Iterable[str], workers: Mapping[str, str]) -> bool:
    """Return whether a problem names a host, or a worker there is called dead; `workers` has the
    state of each slot.
    """
    dead = [slot for slot, state in workers.items() if state == "dead"]
    return any(re.search(rf"\b{host}\b", text) for text in (*problems, *dead))


def expected(total: int) -> dict[str, int]:
    """Return the sums over the numbers below `total`."""
    found: dict[str, int] = {"total": total}
    for n in range(total):
        for word in words_of(n):
            found[word] = found.get(word, 0) + 1
    return found


def now() -> float:
    """Return the time of day, which all hosts here share."""
    return time.time()


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
