"""Trial of a topology's code on every host before its slots start: a module that a host lacks is named with the host."""

from __future__ import annotations

import fcntl
import hashlib
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pyspark import SparkContext, SparkFiles

from sparkstorm.blobs.trial import problem_with
from sparkstorm.errors import InvalidTopologyError
from sparkstorm.hosting.spark import task_room


def try_on_hosts(sc: SparkContext, code: bytes) -> None:
    """Open the code in a fresh process of each executor; InvalidTopologyError names host and module of the first that fails.

    Nothing is done on a local master, whose workers have the Python of this process.
    """
    if (sc.master or "").partition("[")[0] == "local":
        return
    room = task_room(sc)
    found: list[str] = sc.parallelize(range(room), room).mapPartitions(_trial(code)).collect()
    if found:
        raise InvalidTopologyError(min(found))


def _trial(code: bytes) -> Callable[[Iterable[int]], Iterator[str]]:
    def run(_: Iterable[int]) -> Iterator[str]:
        name = f"sparkstorm-trial-{hashlib.sha256(code).hexdigest()[:32]}"
        with Path(SparkFiles.getRootDirectory(), name).open("a+") as done:
            fcntl.flock(done, fcntl.LOCK_EX)  # the other tasks of this executor wait, so that every executor gets some
            if done.tell():
                return
            problem = problem_with(code)
            done.write("done")
        if problem:
            yield f"the topology cannot run on host {socket.gethostname()}: {problem}"

    return run
