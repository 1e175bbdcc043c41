"""Scenes out of public cluster traces: machines and jobs of Alibaba's cluster-trace-v2018 and of Google's
ClusterData2019. PURE: lines in, a scene out.

Neither trace has traffic, so topologies have no measurements: what a component asks for is what the
scheduler of resources goes by. Both traces scale memory to their largest machine.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparkstorm.common.errors import InvalidConfigError, reason_of, show
from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.control_plane.scheduling.records import (
    ComponentView,
    InputView,
    SupervisorView,
    TopologyView,
)
from sparkstorm.extensions.laboratory.arguments import checked_whole, is_amount
from sparkstorm.extensions.laboratory.generator import CPU_KEY, MEMORY_KEY, MOST_SLOTS
from sparkstorm.extensions.laboratory.scene import Scene

_UPTIME_MS = 3_600_000
_MACHINE = (
    "machine_id",
    "time_stamp",
    "failure_domain_1",
    "failure_domain_2",
    "cpu_num",
    "mem_size",
)
_TASK = ("task_name", "instance_num", "job_name", "task_type", "status", "start_time", "end_time")
_GOOGLE_CORES = 64.0  # of the machine with the capacity 1.0: the trace does not say
# "M1" and "R3_1_2": stage 1, and stage 3 behind 1 and 2. Other tasks of a job depend on none.
_STAGE = re.compile(r"[A-Za-z]+(\d+)((?:_\d+)*)$")


def from_alibaba(
    machines: Iterable[str | bytes],
    tasks: Iterable[str | bytes],
    jobs: int = 10,
    memory_mb: float = 96 * 1024.0,
    most_executors: int = 64,
    slots: int = 16,
) -> Scene:
    """Return the machines of `machine_meta.csv` and the first jobs of `batch_task.csv`.

    A job is a topology: its tasks are components, their instances executors, and their names
    ("R3_1_2": behind 1 and 2) the streams. `plan_cpu` is percent of a core, `plan_mem` a share of
    100 of `memory_mb`, the largest machine. A job of more than `most_executors` instances has
    fewer of each task, in proportion. A rack is the second failure domain.
    """
    _check(jobs, memory_mb, most_executors, slots)
    supervisors: dict[str, SupervisorView] = {}
    for line, row in _rows("machine_meta.csv", machines, _MACHINE):
        name = _name("machine_meta.csv", line, "machine_id", row[0])
        # a machine has a line for each change of its status; the last one counts
        cpu, memory = _numbers("machine_meta.csv", line, row[4:6])
        supervisors[name] = _machine(name, row[3], slots, cpu * 100, memory / 100 * memory_mb)
    # a task, too, has the values of its last line
    stages_by_job: dict[str, dict[str, tuple[str, int, float, float]]] = {}
    for line, row in _rows("batch_task.csv", tasks, _TASK):
        _name("batch_task.csv", line, "task_name", row[0])
        _name("batch_task.csv", line, "job_name", row[2])
        if row[2] not in stages_by_job and len(stages_by_job) >= jobs:
            continue
        wanted = [*row[7:9], "", ""][:2]
        count, cpu, memory = _numbers("batch_task.csv", line, (row[1] or "1", *wanted))
        stage = (row[0], max(1, int(count)), cpu or 100.0, (memory or 0.5) / 100 * memory_mb)
        stages_by_job.setdefault(row[2], {})[row[0]] = stage
    topologies = (
        _job(name, [*stages.values()], most_executors) for name, stages in stages_by_job.items()
    )
    return Scene(tuple(supervisors.values()), tuple(topologies), {}, {})


def from_google(
    machines: Iterable[str | bytes],
    instances: Iterable[str | bytes],
    jobs: int = 10,
    memory_mb: float = 96 * 1024.0,
    most_executors: int = 64,
    slots: int = 16,
) -> Scene:
    """Return the machines of `machine_events` and the first collections of `instance_events`, both
    as lines of JSON, as BigQuery exports them.

    A collection is a topology of one component, since the trace knows no streams; its instances
    are executors. Capacities and requests are shares of the largest machine: of `memory_mb`, and of
    64 cores, an assumption. A rack is a `switch_id`.
    """
    _check(jobs, memory_mb, most_executors, slots)
    supervisors: dict[str, SupervisorView] = {}
    for line, event in _events("machine_events", machines, "machine_id"):
        name = str(event["machine_id"])
        if str(event.get("type")) in ("2", "REMOVE"):
            supervisors.pop(name, None)
            continue
        cpu, memory = _pair("machine_events", line, event.get("capacity"))
        rack = str(event.get("switch_id") or "")
        supervisors[name] = _machine(
            name, rack, slots, cpu * _GOOGLE_CORES * 100, memory * memory_mb
        )
    wanted_by_job: dict[str, dict[str, tuple[float, float]]] = {}
    for line, event in _events("instance_events", instances, "collection_id"):
        job = str(event["collection_id"])
        if job not in wanted_by_job and len(wanted_by_job) >= jobs:
            continue
        place = str(event.get("instance_index"))
        request = _pair("instance_events", line, event.get("resource_request"))
        wanted = wanted_by_job.setdefault(job, {})
        if any(request) or place not in wanted:  # of an instance's events the last request counts
            wanted[place] = request
    topologies = []
    for job, wanted in wanted_by_job.items():
        count = len(wanted)
        cpu = sum(cpus for cpus, _ in wanted.values()) / count * _GOOGLE_CORES * 100
        memory = sum(share for _, share in wanted.values()) / count * memory_mb
        topologies.append(_job(job, [("instances", count, cpu, memory)], most_executors))
    return Scene(tuple(supervisors.values()), tuple(topologies), {}, {})


def _machine(name: str, rack: str, slots: int, cpu: float, memory_mb: float) -> SupervisorView:
    resources = {"supervisor.cpu.capacity": cpu, "supervisor.memory.capacity.mb": memory_mb}
    ports = tuple(range(6700, 6700 + slots))
    return SupervisorView(name, name, ports, f"rack-{rack}", _UPTIME_MS, resources)


def _job(name: str, rows: Sequence[tuple[str, int, float, float]], most: int) -> TopologyView:
    """Return a job's stages, each with its name, instances, percent of a core and MB, as a
    topology. It asks for a worker for each core that its executors need.
    """
    number_of = {stage: match for stage, *_ in rows if (match := _STAGE.match(stage))}
    stage_by_number = {match[1]: stage for stage, match in number_of.items()}
    share = min(1.0, most / sum(count for _, count, _, _ in rows))
    components = []
    next_task = 1
    cpu_in_all = 0.0
    for stage, count, cpu, memory_mb in rows:
        width = max(1, int(count * share))
        executors = tuple(ExecutorId(task, task) for task in range(next_task, next_task + width))
        next_task += width
        cpu_in_all += width * cpu
        before = number_of[stage][2].split("_")[1:] if stage in number_of else []
        senders = [
            stage_by_number[number]
            for number in dict.fromkeys(before)
            if stage_by_number.get(number, stage) != stage
        ]
        inputs = tuple(InputView(sender, "default", "shuffle") for sender in senders)
        conf = {CPU_KEY: cpu, MEMORY_KEY: memory_mb}
        components.append(
            ComponentView(stage, "bolt" if inputs else "spout", executors, conf, inputs)
        )
    workers = max(1, min(next_task - 1, round(cpu_in_all / 100)))
    return TopologyView(
        name, name, tuple(components), workers, "trace", _UPTIME_MS, {"topology.workers": workers}
    )


def _rows(
    file: str, lines: Iterable[str | bytes], names: Sequence[str]
) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of a CSV with their numbers; neither empty ones nor a header."""
    reader = csv.reader(text for _, text in _lines(file, lines))
    for line in itertools.count(1):
        try:
            row = next(reader, None)
        except csv.Error as error:  # a bare carriage return, a field of 128 KiB
            raise InvalidConfigError(f"{file}, line {line}: it is no CSV ({error})") from error
        if row is None:
            return
        is_header = line == 1 and row[:1] == [*names[:1]]  # of a copy that has one
        if is_header or not "".join(row).strip():
            continue
        if len(row) < len(names):
            raise InvalidConfigError(
                f"{file}, line {line}: {len(row)} columns; the trace has {', '.join(names)}"
            )
        yield line, row


def _lines(file: str, lines: Iterable[str | bytes]) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers; those of a file that was opened for bytes are decoded."""
    if isinstance(lines, str | bytes | Mapping) or not isinstance(lines, Iterable):
        raise InvalidConfigError(
            f"{file}: lines of text are needed, such as an open file, not {show(lines)}"
        )
    reader = itertools.chain(lines)  # a closed file fails below, as one that ends too early
    for line in itertools.count(1):
        try:
            text = next(reader)
            text = text.decode() if isinstance(text, bytes) else text
        except StopIteration:
            return
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise InvalidConfigError(
                f"{file}, line {line}: it cannot be read: {reason_of(error)}"
            ) from error
        if not isinstance(text, str):
            raise InvalidConfigError(f"{file}, line {line}: a text is needed, not {show(text)}")
        yield line, text


def _name(file: str, line: int, column: str, text: str) -> str:
    if not text.strip():
        raise InvalidConfigError(f"{file}, line {line}: {column} is empty")
    return text


def _check(jobs: int, memory_mb: float, most_executors: int, slots: int) -> None:
    """Raise InvalidConfigError for an argument that no scene can have."""
    checked_whole(jobs, "jobs")
    checked_whole(most_executors, "most_executors")
    checked_whole(slots, "slots", MOST_SLOTS)
    if not is_amount(memory_mb) or not 0.0 < memory_mb <= 1e15:
        raise InvalidConfigError(
            f"memory_mb: more than 0 and up to 10^15 is needed, not {show(memory_mb)}"
        )


def _numbers(file: str, line: int, texts: Sequence[str]) -> list[float]:
    """Return numbers; 0 for an empty text, as the trace leaves unknown ones."""
    try:
        numbers = [float(text) if text.strip() else 0.0 for text in texts]
    except ValueError as error:
        raise InvalidConfigError(f"{file}, line {line}: {error}") from error
    if any(not 0.0 <= number < 1e15 for number in numbers):
        raise InvalidConfigError(f"{file}, line {line}: {', '.join(texts):.80} are no amounts")
    return numbers


def _events(
    file: str, lines: Iterable[str | bytes], key: str
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the events, which have a `key`, with their lines' numbers."""
    for line, text in _lines(file, lines):
        if not text.strip():
            continue
        try:
            event = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidConfigError(f"{file}, line {line}: it is no JSON ({error})") from error
        if not isinstance(event, dict):
            raise InvalidConfigError(f"{file}, line {line}: {text!r:.60} is no object")
        if event.get(key) is None:
            raise InvalidConfigError(f"{file}, line {line}: {key} is missing")
        yield line, event


def _pair(file: str, line: int, capacity: Any) -> tuple[float, float]:
    """Return `cpus` and `memory`; 0 where the trace has none."""
    fields = capacity if isinstance(capacity, dict) else {}
    cpu, memory = _numbers(file, line, [str(fields.get(name) or "") for name in ("cpus", "memory")])
    return cpu, memory
