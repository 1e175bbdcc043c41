"""A main job on Spark whose Redis fails over: its counts are exact, and no run begins anew."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from tests.sim.watched_redis import WatchedRedis
from tests.system.recovery import Stage, make_corpus, run_with_faults

pytestmark = [pytest.mark.system, pytest.mark.nightly]
SLOWLY = {"topology.max.spout.pending": 300}  # each pass is short, and the results stay small


def test_a_main_job_is_exact_over_a_fail_over_of_its_redis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = WatchedRedis(tmp_path)
    monkeypatch.setenv("SPARKSTORM_REDIS_PASSWORD", watched.address.password)

    def fail_over(stage: Stage) -> float:
        """The primary dies; the time to the first commit that the promoted replica has taken."""
        primary = watched.primary()
        began = time.monotonic()
        primary.kill()
        watched.until_promoted(watched.other(primary))
        promoted_ms = time.time_ns() // 1_000_000

        def commits() -> bool:
            progress = stage.sight.progress()
            return progress is not None and progress.now_ms > promoted_ms + 5

        stage.job.wait_for(commits, "a commit at the promoted server")
        return time.monotonic() - began

    with contextlib.closing(watched):
        [(_, seconds)] = run_with_faults(
            tmp_path / "run",
            make_corpus(tmp_path / "corpus"),
            [("primary of a watched Redis", fail_over)],
            "local[3]",
            {**SLOWLY, "sparkstorm.redis.url": watched.url},
        )
    print(f"\nfail-over under a main job: {seconds:.1f} s until commits went on")
