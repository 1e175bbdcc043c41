"""Run of a job on a standing cluster: submitted and followed by a process without Spark, which may
leave at any time.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from sparkstorm.client import ClusterClient, connect
from sparkstorm.common.config import keys
from sparkstorm.common.model.names import counted
from sparkstorm.common.settings import DriverSettings
from sparkstorm.driver.console import RunConsole
from sparkstorm.driver.dead_letter_file import DeadLetterFile
from sparkstorm.driver.exit_status import DATA_LOST, INTERRUPTED, OK, PARKED
from sparkstorm.driver.job_file import JobFile
from sparkstorm.driver.results import DEAD_LETTERS, result_folder
from sparkstorm.driver.run import Run, Signals, kept_where
from sparkstorm.driver.watch import PublishedLogs, Watch

# keys of the cluster that a follower of a run uses
_OF_FOLLOWERS = (
    "sparkstorm.progress.",
    "sparkstorm.dead.letters.file.",
    "sparkstorm.stores.patience.",
    "nimbus.request.",
)
_PARKED = ("tuple was parked after its tries", "tuples were parked after their tries")


def run_remotely(
    run: Run, job: JobFile, connection: str, is_detached: bool, is_json: bool = False
) -> int:
    """Submit a job, or take its unfinished run up, and follow it to its end; Ctrl-C leaves it to
    the cluster.
    """
    known_keys = keys()
    for key in job.own_conf:
        if (
            key in known_keys
            and known_keys[key].scope == "cluster"
            and not key.startswith(_OF_FOLLOWERS)
        ):
            run.console.say(f"note: {key} is a matter of the cluster; it changes nothing here")
    how = f"sparkstorm follow {job.name} follows it; sparkstorm kill {job.name} ends it"
    with connect(connection) as cluster:
        status = INTERRUPTED
        with _leaving(
            run.console,
            lambda: f"{job.name} goes on in the cluster: {how}" if run.topology_id else "",
        ):
            if is_detached:
                run.begin(cluster)
                run.console.say(how)
                status = OK
            else:
                status = run.on(cluster)
    if is_json:
        print(
            json.dumps({"name": job.name, "topology_id": run.topology_id, "status": status}),
            flush=True,
        )
    return status


def follow(cluster: ClusterClient, name: str, is_json: bool = False) -> int:
    """Follow a topology until its sources are drained; the topology stays."""
    console = RunConsole(sys.stderr if is_json else None)
    settings = DriverSettings.of(cluster.conf)
    handle = cluster.topology(name)
    path = result_folder((), handle.topology_id) / DEAD_LETTERS
    letters = DeadLetterFile(path, handle.dead_letters.stored, settings.dead_letters_bytes)
    patience_s = settings.patience_ms / 1000
    line_every_s = settings.progress_ms / 1000
    watch = Watch(handle, console, PublishedLogs(handle), line_every_s, patience_s, letters)
    status = INTERRUPTED
    with _leaving(
        console, lambda: f"{name} goes on in the cluster: sparkstorm follow {name} follows it again"
    ):
        console.say(
            f"following {handle.topology_id} ({handle.status()}); Ctrl-C leaves it to the cluster"
        )
        _, progress = watch.run(lambda: False)
        console.show(progress)
        console.total(progress)
        letters.collect()
        console.say(
            f"{name} has nothing more to do; its job's command collects the results, sparkstorm kill {name} ends it"
        )
        if progress.parked:
            console.say(f"{counted(progress.parked, *_PARKED)}; {kept_where(letters)}")
        status = PARKED if progress.parked else OK
        status = DATA_LOST if handle.losses() else status
    if is_json:
        print(
            json.dumps({"name": handle.name, "topology_id": handle.topology_id, "status": status}),
            flush=True,
        )
    return status


@contextlib.contextmanager
def _leaving(console: RunConsole, last_words: Callable[[], str]) -> Iterator[None]:
    """Leave at Ctrl-C and SIGTERM, wherever the work inside is; the outcome of an interrupted
    request is printed.
    """

    def leave() -> NoReturn:
        raise KeyboardInterrupt

    began = time.monotonic()
    with Signals(leave):
        try:
            yield
        except KeyboardInterrupt as interrupt:
            rest = str(interrupt) or last_words() or "nothing was submitted"
            console.say(f"left after {time.monotonic() - began:.0f} s; {rest}")
