"""Real Apache Storm 2.8.3 beside SparkStorm: word count with acking on one and two workers, and latency over three hops.

Run: python -m benchmarks.peers.storm [--words N] [--runs N] [--seconds S] [--skip-two] [--skip-words] [--skip-latency]. Needs
Maven and a JDK 17; the jars are fetched once from Maven Central and never committed. One worker is Storm's LocalCluster in one
JVM; two are a real ZooKeeper, Nimbus and supervisor with two worker JVMs, all from the jars. All systems run in turn in every
round. A run of Storm has several phases over the same text: the first is cold, "warm" is the median of the others. Storm keeps
its counts in memory only: it neither stores nor recovers them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.latency import measure
from benchmarks.pipeline import cluster, run
from benchmarks.topologies import word_count
from benchmarks.wordcount import bare_loop, few_words, zipf_words
from sparkstorm.app.cluster import Cluster

_HERE = Path(__file__).parent
_CACHE = Path(tempfile.gettempdir()) / "sparkstorm-storm-peer"
_OPENS = [
    word
    for package in ("java.lang", "java.util", "java.nio", "java.net", "java.io", "sun.nio.ch")
    for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
]
_PHASES = 4
_PATIENCE_S = 150.0
_NIMBUS = "org.apache.storm.daemon.nimbus.Nimbus"
_SUPERVISOR = "org.apache.storm.daemon.supervisor.Supervisor"
_ZOOKEEPER = "org.apache.storm.shade.org.apache.zookeeper.server.ZooKeeperServerMain"


def class_path() -> str:
    """Fetch the jars and compile the topology, once; return both as a class path."""
    jars, classes = _CACHE / "jars.txt", _CACHE / "classes"
    if not jars.exists():
        _CACHE.mkdir(exist_ok=True)
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={jars}"]
        subprocess.run(["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), *goal], check=True)
    found = jars.read_text().strip()
    subprocess.run(["javac", "-nowarn", "-d", str(classes), "-cp", found, str(_HERE / "WordCount.java")], check=True)
    return f"{classes}:{found}"


def phases(folder: Path) -> list[float]:
    """Seconds of each phase that all spout tasks have ended, from the first's begin to the last's end."""
    with contextlib.suppress(FileNotFoundError):
        rows = [tuple(map(int, line.split())) for line in (folder / "phases.txt").read_text().splitlines()]
        tasks = len({task for _, task, *_ in rows})
        ended = [[row for row in rows if row[0] == phase] for phase in sorted({row[0] for row in rows})]
        return [(max(r[3] for r in each) - min(r[2] for r in each)) / 1000 for each in ended if len(each) == tasks]
    return []


def wait_for(folder: Path, is_over: str | int, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for so many phases, or for a file of that name."""
    until = time.monotonic() + _PATIENCE_S
    while (len(phases(folder)) < is_over) if isinstance(is_over, int) else not (folder / is_over).exists():
        if time.monotonic() > until or (process is not None and process.poll() is not None):
            raise SystemExit(f"Storm did not come to its end; its log: {folder / 'storm.log'}")
        time.sleep(0.05)
    (folder / "end").write_text("")


def one_worker(path: str, folder: Path, what: str, amount: int) -> None:
    """Run the topology in one JVM."""
    command = [
        "java",
        "-Xmx3g",
        "-XX:+UseParallelGC",
        *_OPENS,
        "-cp",
        path,
        "WordCount",
        what,
        "local",
        "1",
        str(folder),
        str(amount),
    ]
    with (folder / "storm.log").open("wb") as log, started(command, log) as process:
        wait_for(folder, amount if what == "words" else "measured", process)


@contextlib.contextmanager
def started(command: Sequence[str], log: object) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a group of its own, and end the group."""
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def storm_cluster(path: str) -> Iterator[list[str]]:
    """Start ZooKeeper, Nimbus and a supervisor with two slots; gives the command that submits."""
    zk_port, thrift_port = _free_port(), _free_port()
    with tempfile.TemporaryDirectory(prefix="storm-peer-") as name, contextlib.ExitStack() as opened:
        home = Path(name)
        for each in ("lib-worker", "extlib", "extlib-daemon", "conf", "log4j2", "logs", "state"):
            (home / each).mkdir()
        for jar in path.split(":")[1:]:
            (home / "lib-worker" / Path(jar).name).symlink_to(jar)
        (home / "log4j2" / "worker.xml").write_text('<Configuration><Loggers><Root level="warn"/></Loggers></Configuration>')
        settings = {
            "storm.zookeeper.servers": '["127.0.0.1"]',
            "storm.zookeeper.port": zk_port,
            "nimbus.seeds": '["127.0.0.1"]',
            "nimbus.thrift.port": thrift_port,
            "storm.local.hostname": "127.0.0.1",
            "storm.local.dir": str(home / "state"),
            "supervisor.slots.ports": f"[{_free_port()}, {_free_port()}]",
            "storm.log4j2.conf.dir": str(home / "log4j2"),
            "topology.min.replication.count": 1,
            "worker.childopts": '"'
            + " ".join(["-Xmx1800m", "-XX:+UseParallelGC", *_OPENS]).replace("--add-opens ", "--add-opens=")
            + '"',
        }
        (home / "conf" / "storm.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
        jar = home / "topology.jar"
        subprocess.run(["jar", "cf", str(jar), "-C", path.split(":")[0], "."], check=True)
        log = opened.enter_context((home / "logs" / "storm.log").open("wb"))
        java = ["java", "-Xmx400m", f"-Dstorm.home={home}", f"-Dstorm.log.dir={home / 'logs'}", *_OPENS]
        java += ["-cp", f"{home / 'conf'}:{path}"]
        (home / "zoo.cfg").write_text(
            f"dataDir={home / 'zk'}\nclientPort={zk_port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
        )
        opened.enter_context(started([*java, _ZOOKEEPER, str(home / "zoo.cfg")], log))
        time.sleep(2.0)
        for daemon in (_NIMBUS, _SUPERVISOR):
            opened.enter_context(started([*java, daemon], log))
        until = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", thrift_port)):
            if time.monotonic() > until:
                raise SystemExit("Storm's Nimbus does not answer:\n" + (home / "logs" / "storm.log").read_text()[-3000:])
            time.sleep(0.3)
        opened.callback(_end_workers, home)
        yield [*java, f"-Dstorm.jar={jar}", "WordCount"]


def _end_workers(home: Path) -> None:
    """End the worker processes that the supervisor has started: their pids are in its folder."""
    for file in home.glob("state/workers/*/pids/*"):
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int(file.name), signal.SIGKILL)


def two_workers(path: str, folder: Path, what: str, amount: int) -> None:
    """Run the topology on a cluster with two worker JVMs."""
    with storm_cluster(path) as submit:
        words = [*submit, what, "remote", "2", str(folder), str(amount)]
        with (folder / "storm.log").open("wb") as log:
            subprocess.run(words, check=True, stdout=log, stderr=subprocess.STDOUT)
        wait_for(folder, amount if what == "words" else "measured")


RUNNERS = {"Storm, one worker JVM": one_worker, "Storm, two worker JVMs": two_workers}


def compare_words(on: Cluster, path: str, title: str, lines: list[str], runs: int, runners: Sequence[str]) -> None:
    """Print words/s of every system, run in turn."""
    expected = Counter(word for line in lines for word in line.split())
    figures: dict[str, list[float]] = {}
    for round_ in range(runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            files = [folder / f"{i}.txt" for i in (0, 1)]
            for i, file in enumerate(files):
                file.write_text("\n".join(lines[i::2]))
            taken = {"bare Python loop": bare_loop(lines)}
            for workers in (1, 2):
                conf = {"topology.workers": workers, "topology.acker.executors": workers, "topology.max.spout.pending": 5_000}
                found = run(on, word_count([str(file) for file in files]), conf, "count")
                if found.state != expected:
                    raise SystemExit("wrong counts")
                taken[f"SparkStorm, {workers} worker{'s' * (workers > 1)}"] = found.seconds
            for runner in runners:
                for old in folder.glob("[!01]*"):
                    old.unlink()
                RUNNERS[runner](path, folder, "words", _PHASES)
                cold, *warm = phases(folder)
                taken |= {f"{runner}, cold": cold, f"{runner}, warm": statistics.median(warm)}
                if (folder / "failed").exists():
                    raise SystemExit(f"{runner}: tuples failed")
        for system, seconds in taken.items():
            figures.setdefault(system, []).append(expected.total() / seconds)
        print(f"  round {round_ + 1}: " + ", ".join(f"{s} {v[-1] / 1e6:.2f} M" for s, v in figures.items()), flush=True)
    print(f"\n| {title}, n = {runs} | M words/s | least-most |\n|---|---|---|")
    for system, rates in figures.items():
        print(f"| {system} | {statistics.median(rates) / 1e6:.2f} | {min(rates) / 1e6:.2f}-{max(rates) / 1e6:.2f} |", flush=True)


def compare_latency(on: Cluster, path: str, seconds: int, runs: int, runners: Sequence[str]) -> None:
    """Print p50 and p99 of 1,000 tuples/s over three hops."""
    figures: dict[str, list[tuple[float, float]]] = {}
    for _ in range(runs):
        p50, p99, _ = measure(on, 1000, seconds)
        figures.setdefault("SparkStorm, 2 workers", []).append((p50, p99))
        for runner in runners:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                RUNNERS[runner](path, folder, "latency", seconds)
                found = sorted(int(line) / 1000 for line in (folder / "latencies.txt").read_text().split())
                figures.setdefault(runner, []).append((found[len(found) // 2], found[len(found) * 99 // 100]))
    print(f"\n| 1,000 tuples/s, 3 hops, n = {runs} | p50 ms | p99 ms |\n|---|---|---|")
    for system, rows in figures.items():
        p50, p99 = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {system} | {p50:.2f} | {p99:.2f} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=3_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--skip-two", action="store_true", help="without the cluster of two worker JVMs")
    parser.add_argument("--skip-words", action="store_true")
    parser.add_argument("--skip-latency", action="store_true")
    options = parser.parse_args()
    if missing := [tool for tool in ("mvn", "javac", "java", "jar") if shutil.which(tool) is None]:
        parser.error(f"{missing[0]} is not on PATH: Maven and a JDK 17 are needed")
    path = class_path()
    runners = list(RUNNERS)[: 1 if options.skip_two else 2]
    with cluster() as on:
        for title, lines in (
            () if options.skip_words else (("27 words", few_words(options.words)), ("20 k words, Zipf", zipf_words(options.words)))
        ):
            compare_words(on, path, title, lines, options.runs, runners)
        if not options.skip_latency:
            compare_latency(on, path, options.seconds, options.runs, runners)


if __name__ == "__main__":
    main()
