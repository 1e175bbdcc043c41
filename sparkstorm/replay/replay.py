"""Entry point of replays on Spark: a topology over the caller's DataFrames, with lazy DataFrames as
results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from pyspark.sql import DataFrame

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.topology import Topology
from sparkstorm.replay.arrow_map import ReadByParts
from sparkstorm.replay.failures import check_frame
from sparkstorm.replay.inputs import parse_inputs, parse_name, parse_states
from sparkstorm.replay.job import OpenEnd, RunSettings, make_job
from sparkstorm.replay.options import OptionArguments, ReplayOptions, options_of
from sparkstorm.replay.results.columns import declared_columns
from sparkstorm.replay.results.frames import Replay
from sparkstorm.replay.spark import SparkStages


def replay(
    topology: Topology,
    inputs: Mapping[str, DataFrame],
    options: ReplayOptions | None = None,
    **arguments: Unpack[OptionArguments],
) -> Replay:
    """Run a topology over history, lazily: {"spout-id[:stream]": DataFrame} replaces spouts.

    Options are a ReplayOptions record, its fields as keyword arguments, or both (keyword arguments
    win).
    """
    return start(topology, inputs, options_of(options, arguments))


def start(
    topology: Topology,
    inputs: Mapping[str, DataFrame | ReadByParts],
    options: ReplayOptions,
    open_end: OpenEnd | None = None,
) -> Replay:
    """Run a topology over history; with an open end, windows that are not complete do not fire."""
    plan = options.plan(topology)
    _check_frames(inputs, options.states)
    result_types = declared_columns(plan, options.types)
    feeds = parse_inputs(topology, inputs)
    names = {parse_name(topology, name): name for name in inputs}
    job = make_job(plan, RunSettings.of(options, names, options.time(), open_end), options.by_value)
    if not feeds:
        raise InvalidTopologyError("a replay needs data for every spout")
    stages = SparkStages(plan, job, feeds, parse_states(topology, options.states), names)
    return Replay(plan, stages, result_types)


def _check_frames(inputs: Any, states: Any) -> None:
    for what, frames in (("inputs", inputs), ("states", states)):
        if not isinstance(frames, Mapping):
            raise InvalidTopologyError(
                f"{what} are a {type(frames).__name__}: write {{name: DataFrame}}"
            )
        for name, given in frames.items():
            frame = given.parts if isinstance(given, ReadByParts) else given
            check_frame(
                f"input '{name}'" if what == "inputs" else f"the initial state of '{name}'", frame
            )
