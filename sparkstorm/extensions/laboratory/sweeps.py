"""Sweeps: many generated clusters, scheduled by several schedulers, in several
processes.

A job is a seed with values of the parameters, so a row depends on nothing that another job has done.
Jobs are dealt to the processes before they start, and rows come back in the order of the jobs: the
table is the same for any number of processes. Left out: a pool of `multiprocessing`, which imports
the caller's script again, or forks a notebook's threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from itertools import product
from typing import Any

from sparkstorm.common.errors import InvalidConfigError, SparkStormError, show
from sparkstorm.control_plane.scheduling.records import Conf
from sparkstorm.data_plane.executor.user_traceback import describe_error
from sparkstorm.extensions.laboratory.arguments import (
    check_conf,
    check_known,
    checked_whole,
    listed,
)
from sparkstorm.extensions.laboratory.costs import costs
from sparkstorm.extensions.laboratory.generator import MOST_SEED, generate
from sparkstorm.extensions.laboratory.network import predict
from sparkstorm.extensions.laboratory.optimum import distance
from sparkstorm.extensions.laboratory.results import Sweep
from sparkstorm.extensions.laboratory.scene import Row, Scene, moved

_PARAMETERS = (
    "num_nodes",
    "num_topologies",
    "executors_each",
    "workers_each",
    "slots_per_node",
    "shapes",
    "cluster",
    "used",
)
_OF_SCENE = ("executors", "unplaced", "workers", "idle_nodes")
_SERVE = "from sparkstorm.extensions.laboratory.sweeps import serve; serve()"


def sweep(
    schedulers: Sequence[str],
    seeds: Iterable[int],
    parameters: Mapping[str, Sequence[Any]] | None = None,
    conf: Conf | None = None,
    processes: int = 1,
    timed: bool = False,
    progress: bool | None = None,
) -> Sweep:
    """Schedule the clusters of all seeds and of all combinations of `parameters`, which are those of
    `generate`, each with its values.

    A row has the costs of a first placement (`costs`), the network model's throughput (share of the
    measured rates that the tightest topology can take) and latency, multiples of the optimum where
    it can be searched, executors that move when the first topology is given one worker more, and
    those that move although their node lives, or have no place, when the node with most executors
    is lost. A scheduler is a name or `module:Class`; a `conf` is JSON. With `timed`
    rows have the seconds of CPU of the first round, which differ from run to run. A progress bar is
    drawn on a terminal. InvalidConfigError names what cannot be.
    """
    wanted = _values_of(parameters or {})
    chosen = [dict(zip(wanted, values, strict=True)) for values in product(*wanted.values())]
    schedulers = [schedulers] if isinstance(schedulers, str) else schedulers
    names = _some("schedulers", schedulers, "names or module:Class, such as ['even']")
    numbers = _some("seeds", seeds, "whole numbers, such as range(3)")
    for seed in numbers:
        checked_whole(seed, "seeds", MOST_SEED, least=0)
    check_conf(conf)
    checked_whole(processes, "processes")
    task = {"schedulers": names, "conf": dict(conf or {}), "timed": bool(timed)}
    jobs = [
        task | {"seed": seed, "chosen": parameters} for seed in numbers for parameters in chosen
    ]
    try:
        # Other processes have no tuples, so none are here either.
        jobs = json.loads(json.dumps(jobs, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfigError(
            f"schedulers, parameters and conf of a sweep go to other processes as JSON: {error}"
        ) from None
    shown = sys.stderr.isatty() if progress is None else progress
    with _bar(len(jobs), shown) as step:
        if min(processes, len(jobs)) <= 1:
            rows_by_job = [(job_rows(job), step())[0] for job in jobs]
        else:
            rows_by_job = _in_processes(jobs, min(processes, len(jobs)), step)
    return Sweep(tuple(row for rows in rows_by_job for row in rows), tuple(wanted))


def _values_of(parameters: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the values of each parameter; InvalidConfigError where there are none."""
    if not isinstance(parameters, Mapping):
        raise InvalidConfigError(
            f"parameters: a mapping of lists by name is needed, not {show(parameters)}"
        )
    for name in parameters:
        check_known(name, _PARAMETERS, "parameters")
    return {
        name: _some(f"parameters: {name}", values, f"values, such as [{values!r:.40}]")
        for name, values in parameters.items()
    }


def _some(name: str, values: Iterable[Any], what: str) -> list[Any]:
    """Return values as a list; InvalidConfigError for none, since a table without rows says nothing
    of what was left out, and for one that is repeated.
    """
    if not (given := listed(name, values, what)):
        raise InvalidConfigError(f"{name} is to have a list of {what}: none is given")
    ((words, number),) = Counter(map(repr, given)).most_common(1)
    if number > 1:
        raise InvalidConfigError(f"{name}: {words:.80} is given {number} times: give it once")
    return given


def job_rows(job: Mapping[str, Any]) -> list[Row]:
    """Return the rows of one cluster, one for each scheduler."""
    chosen = {"shapes": "random"} | job["chosen"]
    scene = generate(seed=job["seed"], **chosen)
    named = {
        name: "+".join(value) if isinstance(value, list) else value
        for name, value in job["chosen"].items()
    }
    rows = []
    for name in job["schedulers"]:
        row = {"seed": job["seed"]} | named | {"scheduler": name} | dict.fromkeys(_columns(job))
        try:
            row |= _judged(scene, name, job["conf"], job["timed"])
        except SparkStormError as error:
            row["reason"] = str(error)
        except (Exception, SystemExit) as error:  # user code
            row["reason"] = describe_error(error)
        rows.append(row)
    return rows


_COSTS = (
    "bytes",
    "bytes_between_workers",
    "bytes_between_nodes",
    "bytes_between_racks",
    "busiest_node",
    "imbalance",
    "fragmentation",
)
_AFTER = (
    "throughput",
    "latency_ms",
    "crossing_by_least",
    "busiest_by_least",
    "moved_by_rebalance",
    "moved_by_loss",
    "unplaced_by_loss",
)


def _columns(job: Mapping[str, Any]) -> tuple[str, ...]:
    timed = ("seconds",) if job["timed"] else ()
    return (*_OF_SCENE, *_COSTS, *_AFTER, *timed, "reason")


def _judged(scene: Scene, name: str, conf: Conf, timed: bool) -> Row:
    began = time.process_time()
    after = scene.scheduled(name, conf)
    row: Row = {"seconds": time.process_time() - began} if timed else {}
    measures = after.measures()
    row |= {key: measures[key] for key in _OF_SCENE} | costs(after)
    unplaced = after.unplaced()
    row["reason"] = next((entry["reason"] for entry in unplaced if entry["reason"]), None)
    if not unplaced:
        predicted = predict(after)
        latencies = [rates["latency_ms"] for rates in predicted]
        # A topology of sources alone sends no rows: there is no rate of which to take a share.
        row["throughput"] = min(
            (
                rates["most_rows_per_s"] / rates["rows_per_s"]
                for rates in predicted
                if rates["rows_per_s"]
            ),
            default=None,
        )
        row["latency_ms"] = None if None in latencies else sum(latencies) / len(latencies)
    if (ratios := distance(after)) is not None:
        row["crossing_by_least"], row["busiest_by_least"] = ratios
    first = scene.topologies[0]
    asked = after.rebalanced(first.id, num_workers=first.num_workers + 1)
    row["moved_by_rebalance"] = _count_moved(after, asked.scheduled(name, conf))
    nodes = sorted(after.nodes(), key=lambda node: (-node["executors"], node["node"]))
    rest = after.without(nodes[0]["node"])
    later = rest.scheduled(name, conf)
    row["moved_by_loss"] = _count_moved(rest, later)
    row["unplaced_by_loss"] = sum(entry["unplaced"] for entry in later.unplaced())
    return row


def _count_moved(before: Scene, after: Scene) -> int:
    return sum(move["before"] is not None for move in moved(before, after))


# -- processes -------------------------------------------------------------------------------------

Step = Callable[[], None]


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Step]:
    """Draw how many jobs are done: by rich where it is installed (it comes with the extra `cli`)."""
    if not shown:
        yield lambda: None
        return
    try:
        progress = import_module("rich.progress")
        console = import_module("rich.console").Console(stderr=True)
    except ImportError:
        done = iter(range(1, total + 1))
        yield lambda: print(f"\r{next(done)} of {total} clusters", end="", file=sys.stderr)
        print(file=sys.stderr)
        return
    with progress.Progress(console=console) as bar:
        task = bar.add_task("clusters", total=total)
        yield lambda: bar.advance(task)


def _in_processes(jobs: Sequence[Row], processes: int, step: Step) -> list[list[Row]]:
    """Return the rows of all jobs in their order; every n-th job belongs to the same process."""
    rows_by_job: list[list[Row]] = [[] for _ in jobs]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            encoding="utf-8",
        )
        for _ in range(processes)
    ]
    try:
        with ThreadPoolExecutor(processes) as pool:
            asked = {
                pool.submit(_ask, child, jobs[at::processes], step): at
                for at, child in enumerate(children)
            }
            try:
                for batch in as_completed(asked):
                    rows_by_job[asked[batch] :: processes] = batch.result()
            except BaseException:
                for child in children:
                    child.kill()
                raise
    finally:
        for child in children:
            with child:
                child.kill()
    return rows_by_job


def _ask(child: subprocess.Popen[str], jobs: Sequence[Row], step: Step) -> list[list[Row]]:
    assert child.stdin and child.stdout
    # A process that has ended reads nothing: what is missing below says so.
    with suppress(BrokenPipeError), child.stdin:
        child.stdin.writelines(json.dumps(job) + "\n" for job in jobs)
    rows_by_job: list[list[Row]] = []
    for line in child.stdout:
        answer = json.loads(line)
        if "error" in answer:
            raise InvalidConfigError(answer["error"])
        rows_by_job.append(answer["rows"])
        step()
    if len(rows_by_job) < len(jobs):
        raise SparkStormError(
            f"a process of the sweep ended at job {len(rows_by_job)} of {len(jobs)} with status {child.wait()}"
        )
    return rows_by_job


def serve() -> None:
    """Answer the jobs of standard input, a line of JSON each. What a plug-in prints goes to the
    standard error.
    """
    for line in sys.stdin.readlines():
        try:
            with redirect_stdout(sys.stderr):
                answer: Row = {"rows": job_rows(json.loads(line))}
        except SparkStormError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
