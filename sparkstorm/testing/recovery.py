"""Owns the table of recoveries: `python -m sparkstorm.testing.recovery` kills each part of a main job at work.

A recovery lasts from the kill to the first commit of whoever took over; the counts at the end must be exact every time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkstorm.testing.main_job import ROOT, MainJob, Sight, count_words
from sparkstorm.testing.processes import is_gone, parent_of

WORDCOUNT = ROOT / "conf" / "wordcount.yaml"
WORK_BETWEEN = 0.02  # share of the input between two faults
Fault = Callable[["Stage"], float]


@dataclass(slots=True)
class Stage:
    """A main job at work, with eyes on it."""

    job: MainJob
    sight: Sight
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def wait_at_work(self) -> None:
        """Until every task has committed and the sources have got on by a share of the input."""
        self.job.wait_for(lambda: len(self.sight.workers()) >= 2, "two running workers")
        done, total = self.sight.done()
        self.job.wait_for(lambda: self.sight.done()[0] > done + WORK_BETWEEN * total, "some progress")
        done, total = self.sight.done()
        if done >= 0.95 * total:
            raise AssertionError("the input is too small: the run is nearly over before the fault")


def kill_worker(stage: Stage) -> float:
    """A random worker child."""
    beat = stage.dice.choice(stage.sight.workers())
    return _until_taken_over(stage, beat.pid, stage.sight.tasks_of([beat]))


def kill_slot(stage: Stage) -> float:
    """The Python process of a random slot, its worker's parent."""
    beat = stage.dice.choice(stage.sight.workers())
    return _until_taken_over(stage, parent_of(beat.pid), stage.sight.tasks_of([beat]))


def kill_executor(stage: Stage) -> float:
    """The executor JVM of a random slot: above the slot and its Python daemon; needs a master with executors."""
    beats = stage.sight.workers()
    executor = _executor_of(stage.dice.choice(beats).pid)
    lost = [beat for beat in beats if _executor_of(beat.pid) == executor]
    return _until_taken_over(stage, executor, stage.sight.tasks_of(lost))


def kill_redis(stage: Stage) -> float:
    """The embedded Redis."""
    return _until_committing(stage, "redis")


def kill_zookeeper(stage: Stage) -> float:
    """The embedded ZooKeeper; the data plane does not need it, so this is the time to the next reading of the tree."""
    pid = _server(stage, "zookeeper")
    stage.job.kill(pid)
    began = time.monotonic()
    stage.job.wait_for(lambda: is_gone(pid) and "zookeeper is back" in stage.job.said(), "a new ZooKeeper")
    stage.job.wait_for(stage.sight.workers, "heartbeats in the new ZooKeeper")
    return time.monotonic() - began


def kill_driver(stage: Stage) -> float:
    """The Python driver; then the same command again, from whose start the time counts."""
    tokens = stage.sight.tokens()
    stage.job.kill(stage.job.driver())
    stage.sight.close()
    assert stage.job.wait(30) != 0
    began = time.monotonic()
    stage.job.start()
    stage.sight = stage.job.sight()
    _wait_newer(stage, tokens, set(tokens))
    return time.monotonic() - began


FAULTS: dict[str, Fault] = {
    "worker child": kill_worker,
    "slot's Python process": kill_slot,
    "Redis": kill_redis,
    "driver, and a new run": kill_driver,
    "ZooKeeper": kill_zookeeper,
}
CLUSTER_FAULTS: dict[str, Fault] = {"executor JVM": kill_executor}


def make_corpus(folder: Path, copies: int) -> list[Path]:
    """The standard library's own modules several times over, as links."""
    folder.mkdir()
    for module in Path(sysconfig.get_paths()["stdlib"]).glob("*.py"):
        for copy in range(copies):
            Path(folder, f"{copy}-{module.name}").symlink_to(module)
    return sorted(folder.iterdir())


def run_with_faults(job: MainJob, faults: Sequence[tuple[str, Fault]], files: Sequence[Path]) -> list[tuple[str, float]]:
    """One main job with faults one after the other; seconds of each. AssertionError unless the counts are exact."""
    taken = []
    job.start()
    try:
        stage = Stage(job, job.sight())
        for name, fault in faults:
            stage.wait_at_work()
            taken.append((name, fault(stage)))
        stage.sight.close()
        status = job.wait(600)
        assert status == 0, f"exit status {status}; the run said:\n{job.said()}"
        assert job.counts() == count_words(files), "the counts differ from an independent count of the same files"
    finally:
        job.close()
    return taken


def main(arguments: Sequence[str]) -> int:
    """Print the table: medians, least and most."""
    parser = argparse.ArgumentParser(
        prog="python -m sparkstorm.testing.recovery",
        description="Kill each part of a main job at work, and print how long each took to recover.",
    )
    parser.add_argument("--repeat", type=int, default=5, help="how often each fault strikes")
    parser.add_argument("--pending", type=int, default=1000, help="topology.max.spout.pending: the fewer, the slower")
    parser.add_argument("--copies", type=int, default=6, help="how often the input holds the same 4.7 MB")
    options = parser.parse_args(arguments)
    seconds_by_fault: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = make_corpus(Path(folder, "corpus"), options.copies)
        plans = [("local[3]", FAULTS), ("local-cluster[2,2,1024]", CLUSTER_FAULTS)]
        for number, (master, faults) in enumerate(plans * options.repeat):
            settings = {"topology.max.spout.pending": options.pending}
            job = MainJob(Path(folder, str(number)), WORDCOUNT, [files[0].parent], master, settings)
            for name, seconds in run_with_faults(job, list(faults.items()), files):
                print(f"{master:<24}{name:<24}{seconds:8.3f} s", flush=True)
                seconds_by_fault.setdefault(name, []).append(seconds)
    _print_table(seconds_by_fault)
    return 0


def _print_table(seconds_by_fault: dict[str, list[float]]) -> None:
    print(f"\nSIGKILL to the first commit after it, counts exact every time\n{'':<24}   median    least     most  runs")
    for name, seconds in seconds_by_fault.items():
        print(f"{name:<24}{statistics.median(seconds):8.3f}s{min(seconds):8.3f}s{max(seconds):8.3f}s{len(seconds):6}")


def _until_taken_over(stage: Stage, pid: int, tasks: set[int]) -> float:
    tokens = stage.sight.tokens()
    stage.job.kill(pid)
    return _wait_newer(stage, tokens, tasks)


def _wait_newer(stage: Stage, tokens: dict[int, int], tasks: set[int]) -> float:
    def all_newer() -> bool:
        now = stage.sight.tokens()
        return all(now.get(task, 0) > tokens[task] for task in tasks)

    return stage.job.wait_for(all_newer, f"first commits of new owners of tasks {sorted(tasks)}")


def _until_committing(stage: Stage, name: str) -> float:
    stage.job.kill(_server(stage, name))
    killed_ms = time.time_ns() // 1_000_000
    began = time.monotonic()

    def commits() -> bool:
        progress = stage.sight.progress()
        return progress is not None and progress.now_ms > killed_ms + 5

    stage.job.wait_for(commits, "a commit")
    return time.monotonic() - began


def _server(stage: Stage, name: str) -> int:
    return int((stage.job.folder / "storm-local" / name / f"{name}.pid").read_text().split()[0])


def _executor_of(worker: int) -> int:
    return parent_of(parent_of(parent_of(worker)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
