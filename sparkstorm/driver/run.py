"""Run of one job on a cluster, its own or a standing one: submit or resume, watch, collect, end."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

from sparkstorm.api.components import Spout
from sparkstorm.client.handle import TopologyHandle, TopologyProgress
from sparkstorm.client.request_client import wait_in_real_time
from sparkstorm.common.config import keys
from sparkstorm.common.errors import (
    InvalidConfigError,
    NimbusUnavailableError,
    NotAliveError,
    StoreFullError,
    StoreUnavailableError,
    TopologyPausedError,
    WorkerFailedError,
    show,
)
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.normalise import normalise_conf
from sparkstorm.common.model.requests import topology_name
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.settings import (
    CONTINUE,
    STORE_LOSS,
    BuilderSettings,
    DriverSettings,
    SubmissionSettings,
)
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.data_plane.transport.servers.opening import AccessRefusedError
from sparkstorm.data_plane.transport.store_loss import LOST
from sparkstorm.driver.console import RunConsole
from sparkstorm.driver.dead_letter_file import DeadLetterFile
from sparkstorm.driver.exit_status import DATA_LOST, INTERRUPTED, OK, PARKED
from sparkstorm.driver.job_file import JobFile, topology_conf
from sparkstorm.driver.results import DEAD_LETTERS, collect, result_folder
from sparkstorm.driver.waits import Absence
from sparkstorm.driver.watch import FileLogs, PublishedLogs, RunOutcome, Watch
from sparkstorm.extensions.recording.capsule_files import BUILDER, BUILDER_ARGUMENTS

# on a host that lends a tenth of a core an end took 40 s, and the error that began it was hidden
_END_WAIT_MS = 120_000
_RETRY_S = 0.5
_OF_NEW_RUNS = (BUILDER, "topology.from.checkpoint")  # the checkpoint has its own sentence
Result = TypeVar("Result")
_PARKED = ("tuple was parked after its tries", "tuples were parked after their tries")


class Host(Protocol):
    """Cluster of a run: the one of this driver, or a client of a standing one."""

    @property
    def state(self) -> StormState: ...
    def find(self, name: str) -> TopologyHandle | None: ...
    def submit(
        self,
        name: str,
        topology: Topology,
        conf: Mapping[str, Any],
        by_value: Sequence[str] | None = None,
    ) -> TopologyHandle: ...


class Run:
    """One run of a job; its result is an exit status. `is_shared`: others use the cluster as well,
    and it outlives this run.
    """

    def __init__(
        self,
        job: JobFile,
        topology: Topology,
        by_value: Sequence[str] = (),
        is_fresh: bool = False,
        console: RunConsole | None = None,
        is_shared: bool = False,
        confirm: Callable[[str], bool] = lambda question: False,
    ) -> None:
        self._job = job
        self._topology = topology
        self._by_value = by_value
        self._is_fresh = is_fresh
        self._is_shared = is_shared
        self._confirm = confirm
        self.console = console or RunConsole()
        self._settings = DriverSettings.of(job.conf)
        self._patience_s = self._settings.patience_ms / 1000
        self.stop = threading.Event()  # sources rest, what is under way is finished
        self.has_begun = False
        self.topology_id = ""  # once it has begun
        self._started = time.monotonic()
        # whether results and dead letters are in files, so that the stores may go
        self.is_all_kept = True

    def begin(self, cluster: Host, log_dir: Path | None = None) -> TopologyHandle:
        """Submit the topology, or take its unfinished run up, and print where it is."""
        self.has_begun = True
        handle = self.patiently(lambda: self._begin(cluster))
        self.topology_id = handle.topology_id
        took_s = time.monotonic() - self._started
        placed = self.patiently(
            lambda: placed_text(cluster.state, handle.topology_id, took_s, self._is_shared)
        )
        logs = f"logs are in {log_dir}" if log_dir else f"its logs: sparkstorm logs {handle.name}"
        self.console.say(f"{placed}; {logs}")
        return handle

    def on(
        self, cluster: Host, check: Callable[[], None] = lambda: None, log_dir: Path | None = None
    ) -> int:
        """Run to the end of a finite source, or until `stop`; what is unfinished then stays for
        another run.
        """
        handle = self.begin(cluster, log_dir)
        logs = FileLogs(log_dir, handle.topology_id) if log_dir else PublishedLogs(handle)
        line_every_s = self._settings.progress_ms / 1000
        letters = self._dead_letters(handle)
        try:
            watch = Watch(handle, self.console, logs, line_every_s, self._patience_s, letters)
            outcome, progress = watch.run(self.stop.is_set, check)
        except (WorkerFailedError, TopologyPausedError) as error:
            is_lost = LOST in str(error)
            self.patiently(lambda: self._leave_failed(handle, is_lost))
            raise
        self.console.show(progress)
        self.console.total(progress)
        self.patiently(letters.collect)
        if outcome is RunOutcome.STOPPED:
            self._say_stopped(handle, progress)
            self._collect_so_far(handle)
            return INTERRUPTED
        status = self._judge(letters, progress)
        if losses := self.patiently(handle.losses):
            self.console.say(f"results may lack rows or repeat them: {losses[-1]}")
            status = DATA_LOST
        self.patiently(lambda: collect(self._job.results, handle, self.console.say))
        self.patiently(lambda: end(handle))
        return status

    # -- beginning and end -------------------------------------------------------------------------

    def _begin(self, cluster: Host) -> TopologyHandle:
        """The unfinished run of this name, or a new one."""
        handle = cluster.find(self._job.name)
        if handle is not None and (self._is_fresh or handle.status() is TopologyStatus.KILLED):
            self._require_consent(handle)
            self._dead_letters(handle).collect()
            end(handle)
            handle = None
        if handle is None:
            return cluster.submit(
                self._job.name, self._topology, topology_conf(self._job), self._by_value
            )
        self._require_same_topology(handle)
        self._accept_loss(handle)
        self._compare_settings(handle)
        handle.activate()
        self.console.say(
            f"going on with unfinished run {handle.topology_id}, in the code it began with (--fresh drops it)"
        )
        if SubmissionSettings.of(self._job.own_conf).from_checkpoint:
            self.console.say("what it has is newer than the checkpoint, which is for new runs")
        return handle

    def _require_consent(self, handle: TopologyHandle) -> None:
        """Refuse to drop a topology that is at work on a session cluster unless the user agrees."""
        if not self._is_shared or handle.status() is not TopologyStatus.ACTIVE:
            return
        end = f"--fresh ends {handle.topology_id}, which is ACTIVE, and deletes its state"
        if not self._confirm(f"{end}; go on?"):
            raise InvalidConfigError(f"{end}: --yes does it without a question")

    def _require_same_topology(self, handle: TopologyHandle) -> None:
        """Refuse a name that another topology has: one of another function, or of other
        components.
        """
        builder = BuilderSettings.of(handle.conf()).function or ""
        tasks = handle.tasks().values()
        components = {task.component_id for task in tasks if not task.component_id.startswith("__")}
        own = set(self._topology.components)
        is_other = builder not in ("", self._job.topology) or (components and components != own)
        if is_other:
            raise InvalidConfigError(
                f"the name {show(self._job.name)} is taken by {handle.topology_id} "
                f"({_described(builder, components)}); {self._job.path} has another topology "
                f"({_described(self._job.topology, own)}): give it another name with --name, replace "
                "the code with `sparkstorm update`, or end the former one with --fresh"
            )

    def _accept_loss(self, handle: TopologyHandle) -> None:
        """Give an unfinished run the one setting that its stored configuration may lack: going on
        after a loss of Redis.
        """
        wanted = SubmissionSettings.of(self._job.own_conf).store_loss
        if wanted == CONTINUE and SubmissionSettings.of(handle.conf()).store_loss != wanted:
            handle.rebalance(RebalanceOptions(conf={STORE_LOSS: wanted}), 0)

    def _compare_settings(self, handle: TopologyHandle) -> None:
        """Refuse a setting of the command line that what runs does not have; name those of the job
        file.

        A job file may be older than a rebalance; an option -c states a present intent.
        """
        running = handle.conf()
        known_keys = keys()
        own = topology_conf(self._job)
        normalised = normalise_conf(self._job.conf.as_dict(), own)
        for key, value in own.items():
            default = known_keys[key].default if key in known_keys else None
            was = running.get(key, default)
            if (
                was in (value, normalised.get(key))
                or key in _OF_NEW_RUNS
                or (key not in running and key == BUILDER_ARGUMENTS)
            ):
                continue
            if key not in self._job.overrides:
                self.console.say(
                    f"note: {self._job.path} says {key}: {show(value)}, the run goes on with {show(was)}"
                )
                continue
            text = value if isinstance(value, str) else json.dumps(value)
            change = f"--workers {text}" if key == "topology.workers" else f"-c {key}={text}"
            raise InvalidConfigError(
                f"{handle.topology_id} runs with {key} {show(was)}, and -c {key}={text} would not change it: "
                f"`sparkstorm rebalance {self._job.name} {change}` does, --fresh begins anew"
            )

    def patiently(self, call: Callable[[], Result]) -> Result:
        """Call again while a store is away or has no room; for what may be done twice."""
        absence = Absence(self.console.say, self._patience_s)
        while True:
            try:
                result = call()
            except (StoreUnavailableError, StoreFullError) as error:
                hopeless = (
                    (AccessRefusedError, NimbusUnavailableError)
                    if self._is_shared
                    else AccessRefusedError
                )
                if self.stop.is_set() or isinstance(error, hopeless):
                    raise
                absence.bear(error)
                time.sleep(_RETRY_S)
            else:
                absence.end()
                return result

    def _leave_failed(self, handle: TopologyHandle, is_lost: bool) -> None:
        """A run that got nothing done is dropped: the next one shall take fixed code; not one
        whose data Redis has lost.
        """
        progress = handle.progress()
        if is_lost or progress.executed or progress.acked or progress.parked:
            handle.deactivate()
            self.console.say(
                f"{handle.topology_id} is kept as it stands; the same command goes on with it, --fresh drops it"
            )
        else:
            end(handle)

    def _say_stopped(self, handle: TopologyHandle, progress: TopologyProgress) -> None:
        rest = (
            "every tree is settled"
            if progress.is_settled
            else f"{counted(progress.pending, 'tree is open', 'trees are open')}"
        )
        self.console.say(
            f"stopped; {rest}; the same command goes on with {handle.topology_id} from here, --fresh drops it"
        )

    def _collect_so_far(self, handle: TopologyHandle) -> None:
        """Write the states of a run that was stopped, as they are now: an endless one has no other
        results. A table is left out: it takes the rows of a run once.
        """
        files = [result for result in self._job.results if result.format != "table"]
        if files:
            self.console.say("results so far:")
            with contextlib.suppress(StoreUnavailableError):  # the next run collects them
                collect(files, handle, self.console.say)

    def _dead_letters(self, handle: TopologyHandle) -> DeadLetterFile:
        path = result_folder(self._job.results, handle.topology_id) / DEAD_LETTERS
        return DeadLetterFile(path, handle.dead_letters.stored, self._settings.dead_letters_bytes)

    def _judge(self, letters: DeadLetterFile, progress: TopologyProgress) -> int:
        if progress.parked:
            self.is_all_kept = letters.is_whole
            self.console.say(
                f"{counted(progress.parked, *_PARKED)}; {kept_where(letters)}; the first causes by component, error and line:"
            )
            for line in letters.groups.lines(5):
                self.console.say(f"  {line}")
            return PARKED
        if progress.failed and not self._replays():
            self.console.say(
                f"{counted(progress.failed, 'tree')} failed, and no spout emits them again"
            )
            return PARKED
        return OK

    def _replays(self) -> bool:
        spouts = [c.instance for c in self._topology if c.kind == "spout"]
        return all(type(spout).fail is not Spout.fail for spout in spouts)


def _described(builder: str, components: Collection[str]) -> str:
    names = ", ".join(sorted(components))
    return "; ".join(filter(None, (builder, f"components {names}" if names else "")))


def placed_text(state: StormState, topology_id: str, took_s: float, is_shared: bool) -> str:
    """Return a sentence: the topology is assigned, or which other topologies may hold the slots it
    waits for, and what frees some.
    """
    if state.read_assignment(topology_id) is not None:
        return f"{topology_id} is assigned {took_s:.1f} s after the start"
    others = sorted(other for other in state.topology_ids() if other != topology_id)
    waits = f"{topology_id} waits for free slots"
    if is_shared:
        names = ", ".join(topology_name(other) for other in others)
        held = f"they may be held by {names}" if others else "the cluster has too few of them"
        return (
            f"{waits}; {held}: `sparkstorm hosts` lists them, `sparkstorm rebalance NAME --workers N` "
            "or `sparkstorm kill NAME` frees some"
        )
    held = (
        f"they may be held by {', '.join(others)}: finish or drop that run"
        if others
        else "there are too few of them"
    )
    return f"{waits}; {held}, or set storm.local.dir to a folder of this run's own"


def kept_where(letters: DeadLetterFile) -> str:
    """Return a sentence on the place of dead letters."""
    return (
        f"they are in {letters.path}"
        if letters.is_whole
        else f"{letters.trouble}; what it lacks is kept in Redis"
    )


def end(handle: TopologyHandle) -> None:
    """Kill the topology, wait until its workers and records are gone, and delete its data and its
    code.
    """
    handle.blob_keys()
    with contextlib.suppress(NotAliveError):  # killed by another client, or in its last moments
        handle.kill(0)
    if not wait_in_real_time(lambda: handle.status() is None, _END_WAIT_MS):
        raise WorkerFailedError(
            f"{handle.topology_id} did not end within {_END_WAIT_MS // 1000} s of its kill"
        )
    handle.delete_data()


class StoppedError(BaseException):
    """Interrupt by the signal handler, in any code of the main thread: no library may take it for a
    fault of its own.
    """


class Signals:
    """Context in which Ctrl-C, SIGTERM and a hangup call `act`; `nohup` ignores the hangup, and so
    does this then.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def __enter__(self) -> None:
        def handler(_signal: int, _frame: FrameType | None) -> None:
            self._act()

        taken = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            taken.append(signal.SIGHUP)
        self._former = {number: signal.signal(number, handler) for number in taken}

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
