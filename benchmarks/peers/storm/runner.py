"""Runs of Apache Storm for comparisons: the jars from Maven, one JVM or a cluster of worker JVMs,
the time of each phase.

VERSION is 2.8.3. A newer one is asked for by `class_path(version)`; Storm 3 needs a JDK 21 or
newer, by JAVA_HOME and PATH.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.homes import PEERS
from sparkstorm.extensions.embedded.process import free_ports

VERSION = "2.8.3"
_HERE = Path(__file__).parent
_OPENS = [
    word
    for package in ("java.lang", "java.util", "java.nio", "java.net", "java.io", "sun.nio.ch")
    for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
]
_PATIENCE_S = 180.0
_NIMBUS = "org.apache.storm.daemon.nimbus.Nimbus"
_SUPERVISOR = "org.apache.storm.daemon.supervisor.Supervisor"
_ZOOKEEPER = "org.apache.storm.shade.org.apache.zookeeper.server.ZooKeeperServerMain"


@dataclass(frozen=True, slots=True)
class Job:
    """One topology of WordCount.java: words, id, yahoo, q0, q1 or q2 (texts in the folder), chain
    (generated texts over hops) or latency.

    `style` is tuned or shipped (Storm's own settings), `form` rich (BaseRichBolt) or basic
    (BaseBasicBolt). `amount` is the phases, seconds for latency; `tasks` those of each component
    (0: one per worker). A chain's phase has `count` texts of `size` bytes over `hops` hops.
    """

    kind: str
    amount: int
    workers: int = 1
    tasks: int = 0
    count: int = 0
    size: int = 0
    hops: int = 0
    style: str = "tuned"
    form: str = "rich"

    def arguments(self, mode: str, folder: Path) -> list[str]:
        """Return the arguments of WordCount's main method."""
        numbers = (self.tasks or self.workers, self.count, self.size, self.hops)
        return [
            self.kind,
            mode,
            str(self.workers),
            str(folder),
            str(self.amount),
            *map(str, numbers),
            self.style,
            self.form,
        ]


def class_path(version: str = VERSION) -> str:
    """Fetch the jars of a version and compile the topologies, once; return both as a class path.

    SystemExit in one sentence when a tool is missing or Maven does not have that version.
    """
    if missing := [tool for tool in ("mvn", "javac", "java", "jar") if shutil.which(tool) is None]:
        raise SystemExit(f"{missing[0]} is not on PATH: Maven and a JDK 17 are needed")
    cache = PEERS / f"storm-{version}"
    jars = cache / "jars.txt"
    classes = cache / "classes"
    if not jars.exists():
        cache.mkdir(parents=True, exist_ok=True)
        pom = cache / "pom.xml"
        pom.write_text((_HERE / "pom.xml").read_text().replace(VERSION, version))
        command = [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:build-classpath",
            f"-Dmdep.outputFile={jars}",
        ]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            raise SystemExit(f"Maven does not give org.apache.storm:storm-server:{version}")
    jar_path = jars.read_text().strip()
    subprocess.run(
        ["javac", "-nowarn", "-d", str(classes), "-cp", jar_path, str(_HERE / "WordCount.java")],
        check=True,
    )
    return f"{classes}:{jar_path}"


def phases(folder: Path) -> list[float]:
    """Seconds of each phase that all spout tasks have ended, from the first's begin to the last's
    end.
    """
    with contextlib.suppress(FileNotFoundError):
        rows = [
            tuple(map(int, line.split()))
            for line in (folder / "phases.txt").read_text().splitlines()
        ]
        tasks = len({task for _, task, *_ in rows})
        ended = [
            [row for row in rows if row[0] == phase] for phase in sorted({row[0] for row in rows})
        ]
        return [
            (max(r[3] for r in records) - min(r[2] for r in records)) / 1000
            for records in ended
            if len(records) == tasks
        ]
    return []


def counted(folder: Path) -> dict[str, int]:
    """Return what bolts have counted over all tasks and phases so far; they write it once a
    second.
    """
    count_by_word: dict[str, int] = {}
    for file in folder.glob("counts-*.tsv"):
        for key, count in (line.split("\t") for line in file.read_text().splitlines()):
            count_by_word[key] = count_by_word.get(key, 0) + int(count)
    return count_by_word


Watch = Callable[[int], None]


def _settled(folder: Path, is_whole: Callable[[dict[str, int]], bool]) -> None:
    """Wait until the counts of the last phase are written: until they are whole, or stay for two of
    their seconds.
    """
    before: dict[str, int] = {}
    for _ in range(20):
        for _ in range(11):
            if is_whole(counts := counted(folder)):
                return
            time.sleep(0.2)
        if counts and counts == before:
            return
        before = counts


def wait_for(
    folder: Path,
    is_over: str | int,
    process: subprocess.Popen[bytes] | None = None,
    watch: Watch | None = None,
    is_whole: Callable[[dict[str, int]], bool] = lambda _: False,
) -> None:
    """Wait for so many phases, or for a file of that name; `watch` is called with the number of
    phases that have ended, and then the counts are waited for: until `is_whole` says so of them, or
    they stay.
    """
    until = time.monotonic() + _PATIENCE_S
    while (
        (len(phases(folder)) < is_over)
        if isinstance(is_over, int)
        else not (folder / is_over).exists()
    ):
        if watch is not None:
            watch(len(phases(folder)))
        if time.monotonic() > until or (process is not None and process.poll() is not None):
            raise SystemExit(
                "Storm did not come to its end; its log:\n"
                + (folder / "storm.log").read_text()[-3000:]
            )
        time.sleep(0.05)
    if watch is not None and isinstance(is_over, int):
        watch(is_over)
        _settled(folder, is_whole)
    (folder / "end").write_text("")


def run_job(
    path: str,
    folder: Path,
    job: Job,
    watch: Watch | None = None,
    is_whole: Callable[[dict[str, int]], bool] = lambda _: False,
) -> None:
    """Run a topology to its end: in one JVM for one worker, else on a cluster of worker JVMs;
    `watch` and `is_whole` as of `wait_for`.
    """
    is_over = "measured" if job.kind == "latency" else job.amount
    with (folder / "storm.log").open("wb") as log:
        if job.workers == 1:
            command = [
                "java",
                "-Xmx3g",
                "-XX:+UseParallelGC",
                *_OPENS,
                "-cp",
                path,
                "WordCount",
                *job.arguments("local", folder),
            ]
            with started(command, log) as process:
                wait_for(folder, is_over, process, watch, is_whole)
        else:
            with storm_cluster(path, job.workers) as submit:
                subprocess.run(
                    [*submit, *job.arguments("remote", folder)],
                    check=True,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                wait_for(folder, is_over, None, watch, is_whole)
    if (folder / "failed").exists():
        raise SystemExit("Storm: tuples failed")


@contextlib.contextmanager
def started(command: Sequence[str], log: object) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in its own group, and end the group."""
    process = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )  # type: ignore[call-overload]
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def storm_cluster(path: str, slots: int) -> Iterator[list[str]]:
    """Start ZooKeeper, Nimbus and a supervisor with a number of slots; gives the command that
    submits.
    """
    zk_port, thrift_port, supervisor_port, *slot_ports = free_ports(3 + slots)
    with (
        tempfile.TemporaryDirectory(prefix="storm-peer-") as name,
        contextlib.ExitStack() as opened,
    ):
        home = Path(name)
        for folder_name in (
            "lib-worker",
            "extlib",
            "extlib-daemon",
            "conf",
            "log4j2",
            "logs",
            "state",
        ):
            (home / folder_name).mkdir()
        for jar in path.split(":")[1:]:
            (home / "lib-worker" / Path(jar).name).symlink_to(jar)
        _write_settings(home, zk_port, thrift_port, supervisor_port, slot_ports)
        jar = home / "topology.jar"
        subprocess.run(["jar", "cf", str(jar), "-C", path.split(":")[0], "."], check=True)
        log = opened.enter_context((home / "logs" / "storm.log").open("wb"))
        java = [
            "java",
            "-Xmx400m",
            f"-Dstorm.home={home}",
            f"-Dstorm.log.dir={home / 'logs'}",
            *_OPENS,
        ]
        java += ["-cp", f"{home / 'conf'}:{path}"]
        opened.enter_context(started([*java, _ZOOKEEPER, str(home / "zoo.cfg")], log))
        time.sleep(2.0)
        for daemon in (_NIMBUS, _SUPERVISOR):
            opened.enter_context(started([*java, daemon], log))
        _wait_for_nimbus(thrift_port, home / "logs" / "storm.log")
        opened.callback(_end_workers, home)
        yield [*java, f"-Dstorm.jar={jar}", "WordCount"]


def _write_settings(
    home: Path, zk_port: int, thrift_port: int, supervisor_port: int, slot_ports: Sequence[int]
) -> None:
    """Write the files that configure ZooKeeper, Storm's daemons and the logging of its workers."""
    (home / "zoo.cfg").write_text(
        f"dataDir={home / 'zk'}\nclientPort={zk_port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
    )
    (home / "log4j2" / "worker.xml").write_text(
        '<Configuration><Loggers><Root level="warn"/></Loggers></Configuration>'
    )
    settings = {
        "storm.zookeeper.servers": '["127.0.0.1"]',
        "storm.zookeeper.port": zk_port,
        "nimbus.seeds": '["127.0.0.1"]',
        "nimbus.thrift.port": thrift_port,
        "supervisor.thrift.port": supervisor_port,
        "storm.local.hostname": "127.0.0.1",
        "storm.local.dir": str(home / "state"),
        "supervisor.slots.ports": str(slot_ports),
        "storm.log4j2.conf.dir": str(home / "log4j2"),
        "topology.min.replication.count": 1,
        "worker.childopts": '"'
        + " ".join(["-Xmx1800m", "-XX:+UseParallelGC", *_OPENS]).replace(
            "--add-opens ", "--add-opens="
        )
        + '"',
    }
    (home / "conf" / "storm.yaml").write_text(
        "".join(f"{key}: {value}\n" for key, value in settings.items())
    )


def _wait_for_nimbus(port: int, log: Path) -> None:
    """Wait until Nimbus answers; after a minute, end with the last of its log."""
    until = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)):
        if time.monotonic() > until:
            raise SystemExit("Storm's Nimbus does not answer:\n" + log.read_text()[-3000:])
        time.sleep(0.3)


def _end_workers(home: Path) -> None:
    """End the worker processes that the supervisor has started: their pids are in its folder."""
    for file in home.glob("state/workers/*/pids/*"):
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int(file.name), signal.SIGKILL)
