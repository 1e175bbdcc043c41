"""Local replay: the same plan and stages over plain lists, without Spark.

For unit tests of bolts over recorded data and for checking a sample. Its results equal those on
Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import Any, Unpack

from sparkstorm.common.errors import InvalidTopologyError, ReplayFailedError
from sparkstorm.common.grouping.routes import place_of
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.topology import LATE_PREFIX, Grouping, Topology
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.data_plane.executor.state import merged_states
from sparkstorm.replay.equality_warnings import ReplayWarning, warnings_of
from sparkstorm.replay.evidence import Evidence
from sparkstorm.replay.inputs import (
    LONG_AGO,
    check_times,
    parse_inputs,
    parse_name,
    parse_states,
    plain_rows,
    plain_state,
    running_times,
    starts_of,
)
from sparkstorm.replay.job import Job, RunSettings, make_job, result_name, result_names, targets_of
from sparkstorm.replay.options import OptionArguments, ReplayOptions, options_of
from sparkstorm.replay.plan import Feed, Plan
from sparkstorm.replay.tasks.batches import TimedRows
from sparkstorm.replay.tasks.chunks import (
    CLOCK,
    DEAD,
    KEPT_STATE,
    ROWS,
    START,
    STATE,
    ChunkWriter,
    EdgeChunk,
    order_of,
    unpack_rows,
)
from sparkstorm.replay.tasks.stage import StageRun

Values = Sequence[Any]


@dataclass(slots=True)
class LocalResults:
    """Results of a local replay."""

    outputs: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    states_by_task: dict[str, dict[int, dict[Any, Any]]] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    evidence: Evidence = field(default_factory=Evidence)
    warnings: tuple[ReplayWarning, ...] = ()

    def __getitem__(self, name: str) -> list[tuple[Any, ...]]:
        if name not in self.outputs:
            raise KeyError(f"there is no result '{name}', only {', '.join(self.outputs) or 'none'}")
        return self.outputs[name]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Counts of each component, added up over tasks."""
        return self.evidence.counts

    @property
    def metrics(self) -> dict[str, dict[str, MetricValue]]:
        """Counters and histograms of user code by component and name, without spouts."""
        return self.evidence.metrics

    @property
    def states(self) -> Mapping[str, dict[Any, Any]]:
        """Final states over all tasks, by component; ValueError for one in which several tasks have
        a key.
        """
        return _Merged(self.states_by_task)


# Merged when asked for: states behind a shuffle may have one key in
# several tasks, which is an error only when it is read.
class _Merged(Mapping[str, dict[Any, Any]]):
    """States of components, merged when they are asked for."""

    def __init__(self, states_by_task: Mapping[str, Mapping[int, Mapping[Any, Any]]]) -> None:
        self._states_by_task = states_by_task

    def __getitem__(self, component: str) -> dict[Any, Any]:
        if component not in self._states_by_task:
            raise KeyError(
                f"there is no state of '{component}', only of {', '.join(self._states_by_task) or 'no component'}"
            )
        return merged_states(component, self._states_by_task[component])

    def __contains__(self, component: object) -> bool:
        return component in self._states_by_task

    def __iter__(self) -> Iterator[str]:
        return iter(self._states_by_task)

    def __len__(self) -> int:
        return len(self._states_by_task)


def replay_locally(
    topology: Topology,
    inputs: Mapping[str, Sequence[Values] | Sequence[Sequence[Values]]],
    options: ReplayOptions | None = None,
    *,
    partitions: int | Sequence[int] = 1,
    shortcuts: bool = True,
    **arguments: Unpack[OptionArguments],
) -> LocalResults:
    """Replay rows given as lists; options as those of `replay`, results are plain values.

    `partitions`: number of parts of each input, or the sorted positions of the cuts. `shortcuts`:
    whether rows are combined before they travel (tests compare both).
    """
    options = options_of(options, arguments)
    if options.types:
        raise InvalidTopologyError(
            "types are of DataFrames: replay_locally returns values as bolts emit them"
        )
    plan = options.plan(topology)
    time = options.time()
    for input_name, rows in inputs.items():
        # Before anything else: a frame given by mistake would be iterated column by column.
        if not isinstance(rows, Sequence) or isinstance(rows, str | bytes):
            raise InvalidTopologyError(
                f"input '{input_name}' is a {type(rows).__name__}, not a list of rows; replay(...) takes DataFrames"
            )
    components = topology.components
    feeds = {
        feed: plain_rows(
            result_name(feed.spout, feed.stream),
            components[feed.spout].streams[feed.stream].fields,
            rows,
        )
        for feed, rows in parse_inputs(topology, inputs).items()
    }
    names = {parse_name(topology, name): name for name in inputs}
    job = make_job(plan, RunSettings.of(options, names, time, shortcuts=shortcuts), is_local=True)
    results = LocalResults(states_by_task={component: {} for component in job.kept_states})
    parts = {
        feed: [rows[start:end] for start, end in pairwise(_cuts(len(rows), partitions))]
        for feed, rows in feeds.items()
    }
    run_stages(plan, job, parts, parse_states(topology, options.states), results)
    results.warnings = warnings_of(plan, results.evidence, job.sequence, time is not None)
    return results


def _cuts(size: int, partitions: int | Sequence[int]) -> list[int]:
    places = (
        [size * n // partitions for n in range(1, partitions)]
        if isinstance(partitions, int)
        else partitions
    )
    return [0, *(min(cut, size) for cut in places), size]


def run_stages(
    plan: Plan,
    job: Job,
    parts: Mapping[Feed, Sequence[Sequence[Values]]],
    states: Mapping[str, Mapping[Any, Any]],
    results: LocalResults,
) -> list[EdgeChunk]:
    """Run every stage over partitions of data, fill in the results and return all chunks; rows are
    those of `plain_rows`.
    """
    states = {component: plain_state(component, state) for component, state in states.items()}
    chunks_by_stage: dict[int, list[EdgeChunk]] = {}
    for stage in plan.stages:
        run = StageRun(job, stage, results.evidence.merge)
        if stage.feed is not None:
            made = _over_data(run, parts.get(stage.feed, ((),)))
        else:
            arrived = [
                c for source in plan.exchanges_into(stage) for c in chunks_by_stage[source.number]
            ]
            bolt = stage.bolts[0]
            made = _over_chunks(run, arrived, states.get(bolt, {}), plan.key_grouping(bolt))
        chunks_by_stage[stage.number] = made
    _collect(
        plan,
        {feed: list(chain(*partition_values)) for feed, partition_values in parts.items()},
        chunks_by_stage,
        results,
        job.wanted,
    )
    return list(chain(*chunks_by_stage.values()))


def _over_data(run: StageRun, parts: Sequence[Sequence[Values]]) -> list[EdgeChunk]:
    # As on Spark, where a stage with bolts has at most as many partitions as tasks.
    count = min(len(parts), run.stage.width or len(parts))
    cuts = [len(parts) * n // count for n in range(count + 1)]
    batches = _timed(run, [list(chain(*parts[start:end])) for start, end in pairwise(cuts)])
    return [
        chunk
        for partition, batch in enumerate(batches)
        for chunk in run.over_data(partition, [batch])
    ]


def _timed(run: StageRun, parts: Sequence[Sequence[Values]]) -> list[TimedRows]:
    """Return the rows of every partition with the virtual times they have on Spark."""
    job = run.job
    feed = run.stage.feed
    assert feed is not None
    normalise = Codec().normalise  # copies: bolts may change lists in them
    values = [[tuple(map(normalise, row)) for row in part] for part in parts]
    # A stream without rows need not have the column.
    if feed not in job.settings.time_fields or not any(values):
        return [(part, [0] * len(part)) for part in values]
    fields = job.plan.topology.components[feed.spout].streams[feed.stream].fields
    column = job.settings.time_fields[feed]
    name = result_name(feed.spout, feed.stream)
    if column not in fields:
        raise ReplayFailedError(
            f"input '{name}' has no column '{column}' for the event time; it has {', '.join(fields)}"
        )
    index = fields.index(column)
    check_times(name, column, index, values)
    if feed in job.to_sort:
        all_rows = sorted(chain(*values), key=partial(_at, index))
        values = [all_rows[start:end] for start, end in pairwise(_cuts(len(all_rows), len(values)))]
    elif job.settings.is_sorted:
        for part in values:
            part.sort(key=partial(_at, index))
    newest = [
        max((row[index] for row in part if row[index] is not None), default=None) for part in values
    ]
    starts = starts_of(newest, LONG_AGO) if feed in job.sequence else [LONG_AGO] * len(values)
    return [
        (part, running_times([row[index] for row in part], start))
        for part, start in zip(values, starts, strict=True)
    ]


def _at(index: int, row: tuple[Any, ...]) -> int:
    at_ms: int | None = row[index]
    return LONG_AGO if at_ms is None else at_ms


def _over_chunks(
    run: StageRun, arrived: Iterable[EdgeChunk], initial: Mapping[Any, Any], by: Grouping
) -> list[EdgeChunk]:
    bolt = run.stage.bolts[0]
    tasks = run.job.plan.tasks(bolt)
    chunks = [EdgeChunk(START, task, 0, 0, 0, task, "", 0, b"") for task in tasks]
    chunks += state_chunks(bolt, tasks, ((key, value, None) for key, value in initial.items()), by)
    chunks += [c for c in arrived if c.kind in (CLOCK, ROWS) and c.target in tasks]
    return list(run.over_chunks(sorted(chunks, key=order_of)))


def state_chunks(
    component: str, tasks: Sequence[int], rows: Iterable[tuple[Any, Any, int | None]], by: Grouping
) -> list[EdgeChunk]:
    """Return chunks of a component's initial state; a row without a task goes to that of its key
    under the grouping `by`.
    """
    pairs: dict[int, list[Any]] = {}
    place = place_of(by, len(tasks), f"initial state of '{component}'")
    for key, value, task in rows:
        # As tuples of this key come. A state that a bolt
        # keeps under other keys needs the task next to it.
        home = tasks[place(key)] if task is None else task
        pairs.setdefault(home, []).append([key, value])
    writer = ChunkWriter(Codec(), 0, False)
    return [chunk for task in sorted(pairs) for chunk in writer.state(STATE, task, pairs[task])]


def _collect(
    plan: Plan,
    feeds: Mapping[Feed, Sequence[Any]],
    chunks_by_stage: Mapping[int, list[EdgeChunk]],
    results: LocalResults,
    wanted: Collection[str],
) -> None:
    codec = Codec()
    every = [chunk for chunks in chunks_by_stage.values() for chunk in chunks]
    for name, feed in result_names(plan).items():
        if plan.topology.components[feed.spout].kind == "spout":
            results.outputs[name] = [tuple(row) for row in feeds.get(feed, ())]
            continue
        if name not in wanted:
            continue
        tasks = plan.tasks(feed.spout)
        targets = targets_of(plan, feed.spout, feed.stream)
        results.outputs[name] = [
            values
            for c in every
            if c.kind == ROWS
            and c.sender in tasks
            and c.stream.removeprefix(LATE_PREFIX) == feed.stream
            and c.target in targets
            for values in unpack_rows(codec, c)[0]
        ]
    for chunk in every:
        if chunk.kind == KEPT_STATE:
            keys, values = codec.unpack(chunk.data)[1]
            state = results.states_by_task.setdefault(
                plan.component_by_task[chunk.target], {}
            ).setdefault(chunk.target, {})
            state.update(
                (tuple(k) if isinstance(k, list) else k, v)
                for k, v in zip(keys, values, strict=True)
            )
        elif chunk.kind == DEAD:
            results.dead_letters.append(DeadLetter.decode(codec, chunk.data))
