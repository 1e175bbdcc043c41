"""Owns the local twin of a replay: the same plan and the same stages over plain lists, without Spark.

For unit tests of bolts over recorded data and for checking a sample; what it returns equals what Spark returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from sparkstorm.config import check, merge
from sparkstorm.grouping.hashing import stable_hash
from sparkstorm.model.codec import Codec
from sparkstorm.model.tasks import tasks_by_component
from sparkstorm.model.topology import LATE_PREFIX, Topology
from sparkstorm.replay.chunks import DEAD, KEPT_STATE, ROWS, START, STATE, Chunk, ChunkWriter, order_of, unpack_rows
from sparkstorm.replay.fidelity import ReplayWarning, sums_among, warnings_of
from sparkstorm.replay.inputs import LONG_AGO, EventTime, parse_inputs, parse_states, running_times
from sparkstorm.replay.job import Job, Switches, make_job, result_names, targets_of
from sparkstorm.replay.pace import TimedRows
from sparkstorm.replay.plan import Feed, Plan, Stage, make_plan
from sparkstorm.replay.stage import run_exchange, run_feed
from sparkstorm.replay.task import Counts
from sparkstorm.runtime.dead_letter import DeadLetter

Values = Sequence[Any]


@dataclass(slots=True)
class LocalResults:
    """What a local replay left."""

    outputs: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    states: dict[str, dict[Any, Any]] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    warnings: tuple[ReplayWarning, ...] = ()

    def __getitem__(self, name: str) -> list[tuple[Any, ...]]:
        return self.outputs[name]


def replay_locally(
    topology: Topology,
    inputs: Mapping[str, Sequence[Values] | Sequence[Sequence[Values]]],
    *,
    conf: Mapping[str, Any] | None = None,
    name: str = "replay",
    event_time: EventTime | None = None,
    states: Mapping[str, Mapping[Any, Any]] | None = None,
    effects: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    columns: bool = True,
    partitions: int = 1,
    outputs: Collection[str] | None = None,
    quick: bool = True,
) -> LocalResults:
    """Replay rows given as lists; the event time is the name of a field. Rows are dealt to `partitions` in runs.

    Without `quick`, no shortcuts (replay/quick.py, replay/combine.py): for tests that compare the two.
    """
    plan = make_plan(topology, merge(check(conf or {}, "the settings of the replay")).as_dict(), name, effects or {})
    feeds = parse_inputs(topology, inputs)
    times = {feed: event_time.column(feed.spout, feed) for feed in feeds} if event_time is not None else {}
    job = make_job(plan, Switches(times, skip_bad, columns, outputs, quick=quick))
    results = LocalResults(states={component: {} for component in job.kept_states})
    parts = {feed: [rows[len(rows) * n // partitions:len(rows) * (n + 1) // partitions] for n in range(partitions)]
             for feed, rows in feeds.items()}
    run_stages(plan, job, parts, event_time, parse_states(topology, states or {}), results)
    tasks = tasks_by_component(plan.component_by_task)
    results.warnings = warnings_of(plan.topology, plan.conf, tasks, event_time is not None)
    results.warnings += sums_among(plan.topology, results.counts, tasks)
    return results


def run_stages(plan: Plan, job: Job, parts: Mapping[Feed, Sequence[Sequence[Values]]], event_time: EventTime | None,
               states: Mapping[str, Mapping[Any, Any]], results: LocalResults) -> list[Chunk]:
    """Every stage over data that lies in partitions; what they made, and the results filled in."""
    chunks_by_stage: dict[int, list[Chunk]] = {}
    for stage in plan.stages:
        if stage.feed is not None:
            made = _run_feed(job, stage, parts.get(stage.feed, ((),)), event_time, results)
        else:
            arrived = [c for source in plan.exchanges_into(stage) for c in chunks_by_stage[source.number]]
            made = _run_exchange(job, stage, arrived, states.get(stage.bolts[0], {}), results)
        chunks_by_stage[stage.number] = made
    _collect(plan, {feed: list(chain(*each)) for feed, each in parts.items()}, chunks_by_stage, results, job.wanted)
    return list(chain(*chunks_by_stage.values()))


def _run_feed(job: Job, stage: Stage, parts: Sequence[Sequence[Values]], event_time: EventTime | None,
              results: LocalResults) -> list[Chunk]:
    assert stage.feed is not None
    count = min(len(parts), stage.width or len(parts))
    made: list[Chunk] = []
    for partition in range(count):
        mine = list(chain(*parts[len(parts) * partition // count:len(parts) * (partition + 1) // count]))
        batch = _timed(job, stage.feed, mine, event_time)
        made += run_feed(job, stage, partition, [batch], _counter(results))
    return made


def _timed(job: Job, feed: Feed, rows: Sequence[Values], event_time: EventTime | None) -> TimedRows:
    codec = Codec()
    values = [tuple(map(codec.normalise, row)) for row in rows]
    if event_time is None:
        return values, [0] * len(values)
    fields = job.plan.topology.components[feed.spout].streams[feed.stream].fields
    place = fields.index(event_time.column(feed.spout, feed))
    if event_time.in_order:
        values.sort(key=lambda row: LONG_AGO if row[place] is None else row[place])
    return values, running_times([row[place] for row in values], LONG_AGO)


def _run_exchange(job: Job, stage: Stage, arrived: Iterable[Chunk], initial: Mapping[Any, Any],
                  results: LocalResults) -> list[Chunk]:
    tasks = job.plan.tasks(stage.bolts[0])
    chunks = [Chunk(START, task, 0, 0, 0, task, "", 0, b"") for task in tasks]
    chunks += state_chunks(tasks, ((key, value, None) for key, value in initial.items()))
    chunks += [c for c in arrived if c.kind == ROWS and c.target in tasks]
    return list(run_exchange(job, stage, iter(sorted(chunks, key=order_of)), _counter(results)))


def state_chunks(tasks: Sequence[int], rows: Iterable[tuple[Any, Any, int | None]]) -> list[Chunk]:
    """Chunks of an initial state; a row without a task goes where fields grouping by its key would send it."""
    pairs: dict[int, list[Any]] = {}
    for key, value, task in rows:
        home = tasks[stable_hash(key) % len(tasks)] if task is None else task
        pairs.setdefault(home, []).append([key, value])
    writer = ChunkWriter(Codec(), 0, False)
    return [chunk for task in sorted(pairs) for chunk in writer.state(STATE, task, pairs[task])]


def _counter(results: LocalResults) -> Any:
    def count(component: str, counts: Counts) -> None:
        results.counts.setdefault(component, Counter()).update(counts.as_dict())
    return count


def _collect(plan: Plan, feeds: Mapping[Feed, Sequence[Any]], chunks_by_stage: Mapping[int, list[Chunk]],
             results: LocalResults, wanted: Collection[str]) -> None:
    codec = Codec()
    every = [chunk for chunks in chunks_by_stage.values() for chunk in chunks]
    for name, feed in result_names(plan).items():
        if plan.topology.components[feed.spout].kind == "spout":
            results.outputs[name] = [tuple(row) for row in feeds.get(feed, ())]
            continue
        if name not in wanted:
            continue
        tasks, targets = plan.tasks(feed.spout), targets_of(plan, feed.spout, feed.stream)
        results.outputs[name] = [
            values for c in every
            if c.kind == ROWS and c.sender in tasks and c.stream.removeprefix(LATE_PREFIX) == feed.stream and c.target in targets
            for values in unpack_rows(codec, c)[0]
        ]
    for chunk in every:
        if chunk.kind == KEPT_STATE:
            keys, values = codec.unpack(chunk.data)[1]
            state = results.states.setdefault(plan.component_by_task[chunk.target], {})
            state.update((tuple(k) if isinstance(k, list) else k, v) for k, v in zip(keys, values, strict=True))
        elif chunk.kind == DEAD:
            results.dead_letters.append(DeadLetter.decode(codec, chunk.data))
