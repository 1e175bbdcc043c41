"""Table of recovery times: `python -m tests.system.recovery` kills each part of a
running word count.

A recovery lasts from the kill to the first commit of the new owner. The source has no end until
every fault was injected, so a fault always meets work. The counts at the end must be exact every
time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.testing.servers.processes import is_gone, parent_of, slot_of
from tests.system.gated_count import expected_counts, job_file
from tests.system.main_job import MainJob, Sight

LINES_BETWEEN = 2_000  # lines acked between two faults
Fault = Callable[["Stage"], float]


@dataclass(slots=True)
class Stage:
    """A main job at work, with a view of its topology."""

    job: MainJob
    sight: Sight
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def wait_at_work(self) -> None:
        """Wait until both workers run and some thousand more lines were acked."""
        self.workers()
        acked = self.sight.acked()
        self.job.wait_for(lambda: self.sight.acked() > acked + LINES_BETWEEN, "some progress")

    def workers(self) -> list[WorkerBeat]:
        """Wait until both workers run and return their beats."""
        return self.job.workers(self.sight, 2)

    def tokens(self) -> dict[int, int]:
        """Return the last token of each task, as soon as Redis answers."""
        found: dict[int, int] = {}

        def are_read() -> bool:
            found.update(self.sight.tokens())
            return bool(found)

        self.job.wait_for(are_read, "tokens")
        return found


def kill_worker(stage: Stage) -> float:
    """A random worker child."""
    beat = stage.dice.choice(stage.workers())
    return _until_taken_over(stage, beat.pid, stage.sight.tasks_of([beat]))


def kill_slot(stage: Stage) -> float:
    """The Python process of a random slot."""
    beat = stage.dice.choice(stage.workers())
    return _until_taken_over(stage, slot_of(beat.pid), stage.sight.tasks_of([beat]))


def kill_executor(stage: Stage) -> float:
    """The executor JVM of a random slot: above the slot and its Python daemon; needs a master with
    executors.
    """
    beats = stage.workers()
    executor = executor_of(stage.dice.choice(beats).pid)
    lost = [beat for beat in beats if executor_of(beat.pid) == executor]
    return _until_taken_over(stage, executor, stage.sight.tasks_of(lost))


def kill_redis(stage: Stage) -> float:
    """The embedded Redis."""
    return _until_committing(stage, "redis")


def kill_zookeeper(stage: Stage) -> float:
    """The embedded ZooKeeper; the data plane does not need it, so this is the time to the next
    reading of the tree.
    """
    pid = _server(stage, "zookeeper")
    stage.job.kill(pid)
    began = time.monotonic()
    stage.job.wait_for(
        lambda: is_gone(pid) and "zookeeper is back" in stage.job.output(), "a new ZooKeeper"
    )
    stage.job.wait_for(stage.sight.workers, "heartbeats in the new ZooKeeper")
    return time.monotonic() - began


def kill_driver(stage: Stage) -> float:
    """The Python driver; then the same command again, from whose start the time counts."""
    tokens = stage.tokens()
    stage.job.kill(stage.job.driver())
    stage.sight.close()
    assert stage.job.wait() != 0
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


def make_corpus(folder: Path, pattern: str = "*.py") -> Path:
    """Make a folder of links to the top modules of Python's standard library (some 5 MB), or to
    those of a pattern, and return it.
    """
    folder.mkdir()
    for module in Path(sysconfig.get_paths()["stdlib"]).glob(pattern):
        Path(folder, module.name).symlink_to(module)
    return folder


def run_with_faults(
    folder: Path,
    corpus: Path,
    faults: Sequence[tuple[str, Fault]],
    master: str,
    settings: Mapping[str, Any],
    variables: Mapping[str, str] | None = None,
    rest_s: float = 0.0,
) -> list[tuple[str, float]]:
    """Run the gated word count in `folder` over the files of `corpus`, inject the faults one after
    the other; `variables` are added to the environment, the sources rest `rest_s` before each line.

    Return (name, seconds) of each recovery. AssertionError unless the counts are exact.
    """
    folder.mkdir(parents=True)
    gate = folder / "gate"
    job_path = folder / "gated-count.yaml"
    taken = []
    job_path.write_text(json.dumps(job_file(corpus, gate, rest_s)))
    job = MainJob(folder, job_path, master=master, settings=settings, variables=variables)
    job.start()
    try:
        stage = Stage(job, job.sight())
        for name, fault in faults:
            stage.wait_at_work()
            taken.append((name, fault(stage)))
        gate.touch()
        stage.sight.close()
        status = job.wait(600)
        assert status == 0, f"exit status {status}; the run said:\n{job.output()}"
        counts = job.counts()
        assert counts == expected_counts(sorted(corpus.iterdir()), counts), (
            "the counts differ from an independent count"
        )
    finally:
        job.close()
    return taken


def main(arguments: Sequence[str]) -> int:
    """Print the table: medians, least and most."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.system.recovery",
        description="Kill each part of a main job at work, and print how long each took to recover.",
    )
    parser.add_argument("--repeat", type=int, default=5, help="how often each fault strikes")
    parser.add_argument(
        "--pending",
        type=int,
        default=1000,
        help="topology.max.spout.pending: the fewer, the slower",
    )
    options = parser.parse_args(arguments)
    seconds_by_fault: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(Path(folder, "corpus"))
        plans = [("local[3]", FAULTS), ("local-cluster[2,2,1024]", CLUSTER_FAULTS)]
        for number, (master, faults) in enumerate(plans * options.repeat):
            settings = {"topology.max.spout.pending": options.pending}
            for name, seconds in run_with_faults(
                Path(folder, str(number)), corpus, list(faults.items()), master, settings
            ):
                print(f"{master:<24}{name:<24}{seconds:8.3f} s", flush=True)
                seconds_by_fault.setdefault(name, []).append(seconds)
    _print_table(seconds_by_fault)
    return 0


def _print_table(seconds_by_fault: dict[str, list[float]]) -> None:
    print(
        f"\nSIGKILL to the first commit after it, counts exact every time\n{'':<24}   median    least     most  runs"
    )
    for name, seconds in seconds_by_fault.items():
        print(
            f"{name:<24}{statistics.median(seconds):8.3f}s{min(seconds):8.3f}s{max(seconds):8.3f}s{len(seconds):6}"
        )


def _until_taken_over(stage: Stage, pid: int, tasks: set[int]) -> float:
    tokens = stage.tokens()
    stage.job.kill(pid)
    return _wait_newer(stage, tokens, tasks)


def _wait_newer(stage: Stage, tokens: dict[int, int], tasks: set[int]) -> float:
    def all_newer() -> bool:
        now = stage.sight.tokens()
        return all(now.get(task, 0) > tokens[task] for task in tasks & tokens.keys())

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


def executor_of(worker: int) -> int:
    """Return the executor's JVM of a worker: above its slot and Spark's Python daemon."""
    return parent_of(parent_of(slot_of(worker)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
