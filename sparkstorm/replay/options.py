"""Options of a replay, the same for `replay`, `replay_locally`, `back_fill` and
`back_fill_locally`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from sparkstorm.api.components import Effects
from sparkstorm.common.config import check, merge
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.topology import Topology
from sparkstorm.data_plane.checkpoint.restore import Seeds
from sparkstorm.replay.inputs import EventTime
from sparkstorm.replay.plan import Plan, make_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of a replay.

    conf, name: as for the live run. event_time: the column that is the virtual time of rows.
    from_checkpoint: folder of a savepoint or checkpoint to begin with. states: initial states by
    component: frames (key, value and, from a former run, task), or locally mappings. types: columns
    of results by name ("word string, n bigint"), over what streams and states declare. outputs: the
    results to keep; None: all. effects: `Effects` by bolt, over what its class declares. skip_bad:
    put failing records aside instead of ending the replay. columns: whether bolts that take batches
    get batches; else rows. by_value: modules to send to the executors as they are in memory.
    """

    conf: Mapping[str, Any] = field(default_factory=dict)
    name: str = "replay"
    event_time: EventTime | str | None = None
    states: Mapping[str, Any] = field(default_factory=dict)
    from_checkpoint: str | Path | None = None
    types: Mapping[str, str] = field(default_factory=dict)
    outputs: Collection[str] | None = None
    effects: Mapping[str, Effects] = field(default_factory=dict)
    skip_bad: bool = False
    columns: bool = True
    by_value: Iterable[str] = ()

    def plan(self, topology: Topology) -> Plan:
        """Check the configuration, cut the topology into stages, and read the checkpoint.

        InvalidTopologyError, InvalidConfigError; CheckpointError for a checkpoint that is damaged
        or of other components.
        """
        conf = merge(check(self.conf, "the settings of the replay")).as_dict()
        if self.from_checkpoint is None:
            return make_plan(topology, conf, self.name, self.effects)
        # Merging them would need a rule for keys that both
        # have, and windows would not fit other states.
        if self.states:
            raise InvalidTopologyError(
                "a replay begins with states or from_checkpoint, not both: a checkpoint has the states"
            )
        seeds = Seeds.read(self.from_checkpoint, topology)
        plan = make_plan(seeds.topology, conf, self.name, self.effects)
        return replace(
            plan,
            begin={
                task: tuple(entries) for task, entries in seeds.journals(plan.component_by_task)
            },
        )

    def time(self, in_order: bool = True) -> EventTime | None:
        """Return the event time; `in_order` is for one given by its column's name alone."""
        return (
            EventTime(self.event_time, in_order)
            if isinstance(self.event_time, str)
            else self.event_time
        )


class OptionArguments(TypedDict, total=False):
    """The fields of ReplayOptions as keyword arguments."""

    conf: Mapping[str, Any] | None
    name: str
    event_time: EventTime | str | None
    states: Mapping[str, Any] | None
    from_checkpoint: str | Path | None
    types: Mapping[str, str] | None
    outputs: Collection[str] | None
    effects: Mapping[str, Effects] | None
    skip_bad: bool
    columns: bool
    by_value: Iterable[str]


_DEFAULT = ReplayOptions()


def options_of(options: ReplayOptions | None, arguments: Mapping[str, Any]) -> ReplayOptions:
    """Return options with keyword arguments in the place of their fields; InvalidTopologyError
    names an unknown one.
    """
    option_names = [option.name for option in fields(ReplayOptions)]
    unknown = [name for name in arguments if name not in option_names]
    if unknown:
        raise InvalidTopologyError(
            f"a replay has no option '{unknown[0]}', only {', '.join(option_names)}"
        )
    # None stands for the default, so that a caller can pass an option on without a test whether it
    # is set.
    given = {
        name: getattr(_DEFAULT, name) if value is None else value
        for name, value in arguments.items()
    }
    return replace(options or _DEFAULT, **given)
