"""MainJob: a job run by spark-submit in its own processes, observed through processes, stores
and results.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkstorm.common.errors import SparkStormError, StoreUnavailableError
from sparkstorm.common.model.assignment import RUNNING
from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.stores.connection import load_connection, signing_key
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.data_plane.transport.progress import Progress, merge
from sparkstorm.data_plane.transport.reader import RedisReader
from sparkstorm.testing.servers.processes import command_of, descendants, is_gone
from tests.system.polling import pause

ROOT = Path(__file__).parents[2]


class MainJob:
    """One folder in which runs of a job follow each other; each is
    `spark-submit jobs/run_topology.py`.
    """

    def __init__(
        self,
        folder: Path,
        job_file: Path,
        inputs: Sequence[Path] = (),
        master: str = "local[3]",
        settings: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the runs; `variables` are added to the environment, or stand in place of what is
        there.
        """
        self.folder = folder
        self._variables = variables or {}
        self._job_file = job_file
        self._inputs = inputs
        self._master = master
        self._settings = {
            "sparkstorm.progress.interval.ms": 250,
            "storm.local.dir": "storm-local",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: set[int] = set()
        self._former = 0  # length of earlier runs' output, in characters
        self.log = folder / "output.log"

    # -- the process -------------------------------------------------------------------------------

    def start(self, *more: str) -> None:
        """Start a run; its output is appended to `log`."""
        command = [
            _spark_submit(),
            "--master",
            self._master,
            str(ROOT / "jobs" / "run_topology.py"),
            str(self._job_file),
        ]
        for key, value in self._settings.items():
            command += ["-c", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
        command += [*more, *(["--input", *map(str, self._inputs)] if self._inputs else [])]
        self.folder.mkdir(parents=True, exist_ok=True)
        self._former = len(self.output())
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**environment(), **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process that was started: Spark's launcher, a JVM whose child is the driver."""
        assert self._process is not None
        return self._process.pid

    def tree(self) -> set[int]:
        """Return all processes below it, and all that were seen there before and still live."""
        self._seen = {pid for pid in self._seen | descendants(self.pid) if not is_gone(pid)}
        return self._seen

    def below(self, text: str) -> list[int]:
        """Processes below it whose command line holds a text."""
        return sorted(pid for pid in self.tree() if text in command_of(pid))

    def driver(self) -> int:
        """The Python driver."""
        return next(pid for pid in self.below("run_topology.py") if pid != self.pid)

    def wait(self, seconds: float = 900.0) -> int:
        """The run's exit status, with every process of it gone; AssertionError when it does not end
        in time.
        """
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            self.tree()
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"the run did not end within {seconds} s; it said:\n{self.output()}"
                )
            time.sleep(0.05)
        self.wait_for(lambda: not self.tree(), "the end of every process")
        return self._process.returncode

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal."""
        self.tree()
        os.kill(pid, number)

    def workers(self, sight: Sight, least: int = 1) -> list[WorkerBeat]:
        """Wait until so many workers run and return their beats."""
        found: list[WorkerBeat] = []

        def are_up() -> bool:
            found[:] = sight.workers()
            return len(found) >= least

        self.wait_for(are_up, f"{least} running workers")
        return found

    def close(self) -> None:
        """End all processes that still live."""
        if self._process is None:
            return
        for pid in [*self.tree(), self.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()

    def output(self) -> str:
        """Return everything that all runs have printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = 600.0) -> float:
        """Poll until something holds; the seconds it took. AssertionError with the run's output
        when it never does.
        """
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > seconds:
                raise AssertionError(
                    f"{what}: not within {seconds} s; the run said:\n{self.output()}"
                )
            pause(time.monotonic() - began)
        return time.monotonic() - began

    # -- results -----------------------------------------------------------------------------------

    def counts(self) -> Counter[str]:
        """The words of the newest results."""
        newest = max(
            self.folder.glob("results/*/count.jsonl"), key=lambda path: path.stat().st_mtime_ns
        )
        with newest.open(encoding="utf-8") as lines:
            return Counter(dict(json.loads(line) for line in lines))

    def sight(self) -> Sight:
        """View of the running topology."""
        assert self._process is not None
        process = self._process
        self.wait_for(
            lambda: "is assigned" in self.output()[self._former :] or process.poll() is not None,
            "assignment",
            600,
        )
        if process.poll() is not None:
            raise AssertionError(f"the run has ended; it said:\n{self.output()}")
        return Sight(self.folder)


class Sight:
    """View of a cluster's one topology through its connection file."""

    def __init__(self, folder: Path) -> None:
        at = load_connection(folder / "storm-local" / "connection.json")
        keeper = at.zookeeper
        store = ZooKeeperStateStore(
            ZooKeeperAddress(
                keeper.hosts, keeper.root, keeper.user, keeper.password, tls=keeper.tls
            )
        )
        self.state = StormState(store, signing_key(at.secret))
        self.topology_id = next(iter(self.state.topology_ids()))
        self._reader = RedisReader(at.redis, self.topology_id, patience_s=0.0)

    def progress(self) -> Progress | None:
        """Exact counts and gauges of all owners; None while Redis is away."""
        try:
            return merge([Progress.decode(data) for data in self._reader.progress().values()])
        except StoreUnavailableError:
            return None

    def tokens(self) -> dict[int, int]:
        """The token under which each task has committed last; empty while Redis is away."""
        progress = self.progress()
        return (
            {}
            if progress is None
            else {t: c.token for t, c in progress.counts_by_task.items() if c.token}
        )

    def done(self) -> tuple[int, int]:
        """Units done by the sources, and in all."""
        progress = self.progress() or Progress()
        counts = progress.counts_by_task.values()
        return sum(c.done for c in counts), sum(c.total for c in counts)

    def acked(self) -> int:
        """Return how many tuple trees the spouts have seen acked."""
        progress = self.progress() or Progress()
        return sum(c.acked for c in progress.counts_by_task.values())

    def workers(self) -> list[WorkerBeat]:
        """Beats of the running workers."""
        try:
            slots = self.state.worker_beat_slots(self.topology_id)
            beats = [self.state.read_worker_beat(self.topology_id, slot) for slot in slots]
        except SparkStormError:
            return []
        return [
            beat
            for beat in beats
            if beat is not None and beat.state == RUNNING and not is_gone(beat.pid)
        ]

    def tasks_of(self, beats: Sequence[WorkerBeat]) -> set[int]:
        """Tasks that are assigned to these workers and have committed."""
        assignment = self.state.read_assignment(self.topology_id)
        assert assignment is not None
        places = {(beat.node, beat.port) for beat in beats}
        tasks = {
            t
            for e, s in assignment.slot_by_executor.items()
            if (s.node, s.port) in places
            for t in e.tasks
        }
        return tasks & self.tokens().keys()

    def close(self) -> None:
        """Close the connections to the stores."""
        self.state.store.close()
        self._reader.close()


def environment() -> dict[str, str]:
    """The environment of `make run`: this very interpreter, this very source tree."""
    folder = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([folder, os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_CONF_DIR": os.environ.get("SPARK_CONF_DIR", str(ROOT / "conf" / "spark")),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def count_words(files: Sequence[Path]) -> Counter[str]:
    """An independent count of the same files, in three plain lines."""
    counts: Counter[str] = Counter()
    for file in files:
        counts.update(file.read_bytes().decode("utf-8", "replace").split())
    return counts


def _spark_submit() -> str:
    found = shutil.which("spark-submit", path=environment()["PATH"])
    if found is None:
        raise AssertionError("spark-submit is not on PATH: install pyspark beside this interpreter")
    return found
