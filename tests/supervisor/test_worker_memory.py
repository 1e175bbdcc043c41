"""Figures of a process and the watch over its memory limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkstorm.control_plane.supervisor.worker_memory import (
    HostMeter,
    MemoryWatch,
    Usage,
    oom_kills,
    usage_of,
)

MB = 1 << 20


def test_a_process_is_measured_and_one_that_is_gone_is_not() -> None:
    usage = usage_of(os.getpid())
    assert usage is not None and usage.rss_bytes > 10 * MB and usage.cpu_ms >= 0
    assert usage_of(2**22 + 1) is None


def test_a_host_is_measured_by_its_cores_and_by_what_the_hypervisor_took(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    meter = HostMeter(stat)
    assert meter.read() == (len(os.sched_getaffinity(0)), 0.0)
    stat.write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n", "ascii")
    assert meter.read()[1] == 0.0
    stat.write_text("cpu  150 0 150 880 0 0 0 20 0 0\n", "ascii")
    assert meter.read()[1] == pytest.approx(0.1)
    stat.write_text("cpu of another kind\n", "ascii")
    assert meter.read()[1] == 0.0


def test_growth_and_cpu_are_those_of_the_last_two_minutes() -> None:
    watch = MemoryWatch(None)
    assert watch.figures() == {}
    for second in range(0, 200, 10):
        watch.note(second * 1000, Usage((100 + second) * MB, second * 500))
    result = watch.figures()
    assert result == {"memory_mb": 290, "memory_growth_mb_per_minute": 60, "cpu_percent": 50}
    assert watch.complaint([]) == ""


def test_a_limit_is_warned_of_once_with_the_growth_and_reached_once() -> None:
    watch, said = MemoryWatch(1000), []
    for second in range(0, 130, 10):
        watch.note(second * 1000, Usage((100 + 8 * second) * MB, 0))
        said.append(watch.complaint(["1,200,000 keys of state in count#3"]))
    near, reached = [each for each in said if each]
    assert near == (
        "it uses 820 MiB, growing by 480 MiB a minute, and is restarted at 1,000 (worker.memory.limit.mb); "
        "its tasks keep: 1,200,000 keys of state in count#3"
    )
    assert reached.startswith(
        "restarted: it uses 1,060 MiB, and worker.memory.limit.mb is 1,000; its tasks keep"
    )
    assert watch.is_over


def test_a_jump_over_the_limit_needs_no_warning_before() -> None:
    watch = MemoryWatch(100)
    watch.note(0, Usage(5000 * MB, 0))
    assert watch.complaint([]).startswith(
        "restarted: it uses 5,000 MiB, and worker.memory.limit.mb is 100. Raise the limit"
    )


@pytest.mark.parametrize(
    ("cgroup", "file", "text", "count"),
    [
        ("0::/", "memory.events", "low 0\noom 9\noom_kill 7\n", 7),
        ("0::/host/path", "memory.events", "oom_kill 3\n", 3),
        (
            "5:cpu,memory:/pod",
            "memory/pod/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            2,
        ),
        ("0::/", "cpu.stat", "usage_usec 1\n", 0),
        ("0::/", "memory.events", "not a table at all\n", 0),
    ],
)
def test_kills_for_want_of_memory_are_counted(
    tmp_path: Path, cgroup: str, file: str, text: str, count: int
) -> None:
    proc, counted = tmp_path / "cgroup", tmp_path / "fs" / file
    proc.write_text(f"{cgroup}\n")
    counted.parent.mkdir(parents=True)
    counted.write_text(text)
    assert oom_kills(proc, tmp_path / "fs") == count


def test_without_proc_no_kill_is_known(tmp_path: Path) -> None:
    assert oom_kills(tmp_path / "none") == 0
