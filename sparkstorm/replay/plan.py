"""Plan of a replay: which components run together in one Spark stage, and the order of stages.
PURE.

A stage is a bolt, or a spout's stream of data, with every downstream bolt that takes its input by
shuffle alone: those need no exchange. Each task belongs to one of the stage's partitions, as to a
worker, so `local or shuffle` means the same as live. Every other grouping is an exchange between
two stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkstorm.api.components import Effects, Stateful, check_effects
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.normalise import normalise_topology
from sparkstorm.common.model.tasks import number_tasks, tasks_by_component
from sparkstorm.common.model.topology import Component, Grouping, Topology, validate
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.value_types import register
from sparkstorm.common.settings import SubmissionSettings
from sparkstorm.data_plane.task_kit.task_parts import TaskParts

# Groupings that leave the choice of the task to the
# runtime, so a task of the same partition will do.
_FREE = ("shuffle", "load_aware_shuffle", "none", "local_or_shuffle")
NOT_RUN = (Effects.MUTE, Effects.REDIRECT)
INPUT_MARK = "!input"


@dataclass(frozen=True, slots=True)
class Feed:
    """A stream of a spout, replaced by data."""

    spout: str
    stream: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One Spark stage; `width` partitions hold the tasks of its bolts, 0 means as many as the data
    has.
    """

    number: int
    feed: Feed | None
    bolts: tuple[str, ...] = ()
    width: int = 0

    def has(self, component: str) -> bool:
        """Return whether a bolt runs here."""
        return component in self.bolts

    @property
    def name(self) -> str:
        """Return its components in order, for messages."""
        return " + ".join([*([self.feed.spout] if self.feed else []), *self.bolts])


@dataclass(frozen=True, slots=True)
class Plan:
    """A topology cut for replay: `topology` has the groupings that routing uses and only the bolts
    that run.
    """

    name: str
    topology: Topology
    conf: Mapping[str, Any]
    component_by_task: Mapping[int, str]
    stages: tuple[Stage, ...]
    not_run: Mapping[str, Effects]  # bolts whose effects are muted or redirected
    # by result name: the stream that a bolt that does not run would have got
    redirected: Mapping[str, Feed]
    # tasks that do not run but may be named by emit_direct
    direct_targets_not_run: Mapping[Feed, tuple[int, ...]]
    # idempotent bolts: their inputs are counted, and the counts name their effects
    idempotent: frozenset[str] = frozenset()
    # by task: the journal of a checkpoint to begin with
    begin: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)

    def tasks(self, component: str) -> list[int]:
        """Return the sorted task ids of a component, as live."""
        return tasks_by_component(self.component_by_task)[component]

    def parts(self, codec: Codec, streams: Mapping[str, tuple[str, ...]]) -> TaskParts:
        """Return the parts of the tasks of one host, to which streams of these fields come next to
        the declared ones.
        """
        # A live run's id goes on with a number and a time. Seeds of groupings use the name before
        # them alone, so that the first targets of shuffles are those of the live run.
        return TaskParts(
            f"{self.name}-0-0", self.topology, self.conf, self.component_by_task, codec, streams
        )

    def stateful(self) -> list[str]:
        """Return the bolts that keep a state."""
        return [c.id for c in self.topology.bolts if isinstance(c.instance, Stateful)]

    def key_grouping(self, component: str) -> Grouping:
        """Return the grouping by which the keys of a bolt's state find their tasks: key ranges of
        an input, else fields.
        """
        groupings = [source.grouping for source in self.topology.components[component].inputs]
        return next(
            (grouping for grouping in groupings if grouping.kind == "key_range"), Grouping("fields")
        )

    def stage_of(self, component: str, stream: str) -> Stage:
        """Return the stage that emits a stream."""
        feed = Feed(component, stream)
        return next(s for s in self.stages if s.has(component) or s.feed == feed)

    def exchanges_into(self, stage: Stage) -> list[Stage]:
        """Return the stages whose rows reach this one by an exchange, in order."""
        wanted = {
            (s.component, s.stream) for b in stage.bolts for s in self.topology.components[b].inputs
        }
        sources = {self.stage_of(component, stream).number for component, stream in wanted}
        return [s for s in self.stages if s.number in sources - {stage.number}]

    def readers(self, stage: Stage) -> list[Stage]:
        """Return the stages that this one's rows reach by an exchange."""
        return [s for s in self.stages if stage in self.exchanges_into(s)]


def make_plan(
    topology: Topology, conf: Mapping[str, Any], name: str, effects: Mapping[str, Effects]
) -> Plan:
    """Check a topology, number its tasks as live, cut it into stages; InvalidTopologyError names a
    cycle or a wrong effect.
    """
    validate(topology)
    register(SubmissionSettings.of(conf).serializers)
    # All bolts, those that do not run included: task ids are the live ones.
    normalised = normalise_topology(topology, conf)
    order = components_in_order(normalised)
    component_by_task = number_tasks(normalised, conf)
    effect_by_bolt = _effects(normalised, effects)
    not_run = {c: how for c, how in effect_by_bolt.items() if how in NOT_RUN}
    keyed = frozenset(c for c, how in effect_by_bolt.items() if how is Effects.IDEMPOTENT)
    kept_topology = Topology({c.id: c for c in normalised if c.id not in not_run})
    counts = {c: len(tasks) for c, tasks in tasks_by_component(component_by_task).items()}
    stages = _cut(kept_topology, [c for c in order if c in kept_topology.components], counts)
    redirected = _redirected(
        normalised, [c for c, how in not_run.items() if how is Effects.REDIRECT]
    )
    direct_targets_not_run = _direct_targets_not_run(
        normalised, not_run, tasks_by_component(component_by_task)
    )
    return Plan(
        name,
        _routed(kept_topology, stages),
        conf,
        component_by_task,
        stages,
        not_run,
        redirected,
        direct_targets_not_run,
        keyed,
    )


def effect_of(component: Component) -> Effects:
    """Return the effects that a bolt declares; undeclared, a bolt without outputs and state is
    redirected.
    """
    declared: Effects | None = getattr(component.instance, "effects", None)
    if declared is not None:
        return declared
    is_pure_sink = not component.streams and not isinstance(component.instance, Stateful)
    return Effects.REDIRECT if is_pure_sink else Effects.RUN


def _effects(topology: Topology, given: Mapping[str, Effects]) -> dict[str, Effects]:
    bolts = {c.id: c for c in topology.bolts}
    for id in given:
        if id not in bolts:
            raise InvalidTopologyError(
                f"effects names '{id}', which is no bolt; there are {', '.join(sorted(bolts))}"
            )
    effects = {id: given.get(id) or effect_of(bolt) for id, bolt in bolts.items()}
    for id, how in effects.items():
        check_effects(id, how)
        if how not in NOT_RUN and isinstance(bolts[id].instance, TransactionalSink):
            raise InvalidTopologyError(
                f"component '{id}' is a TransactionalSink, which cannot run in a replay: use Effects.REDIRECT or Effects.MUTE"
            )
        listeners = [c.id for c in topology.bolts for s in c.inputs if s.component == id]
        running = [c for c in listeners if effects[c] not in NOT_RUN]
        if how in NOT_RUN and running:
            raise InvalidTopologyError(
                f"component '{id}' does not run in this replay ({how.value}), but '{running[0]}' listens to it"
            )
    return effects


def _redirected(topology: Topology, bolts: Sequence[str]) -> dict[str, Feed]:
    """Return the inputs of bolts as results: "alert!input", or "alert!input:component:stream" if a
    bolt has several.
    """
    feed_by_name: dict[str, Feed] = {}
    for id in bolts:
        inputs = topology.components[id].inputs
        for s in inputs:
            suffix = "" if len(inputs) == 1 else f":{s.component}:{s.stream}"
            feed_by_name[f"{id}{INPUT_MARK}{suffix}"] = Feed(s.component, s.stream)
    return feed_by_name


def _direct_targets_not_run(
    topology: Topology, not_run: Mapping[str, Effects], tasks: Mapping[str, list[int]]
) -> dict[Feed, tuple[int, ...]]:
    targets_by_feed: dict[Feed, tuple[int, ...]] = {}
    for id in not_run:
        for s in topology.components[id].inputs:
            if s.grouping.kind == "direct":
                feed = Feed(s.component, s.stream)
                targets_by_feed[feed] = (*targets_by_feed.get(feed, ()), *tasks[id])
    return targets_by_feed


def components_in_order(topology: Topology) -> list[str]:
    """Return component ids, sources first, ties by id; InvalidTopologyError names the components of
    a cycle.
    """
    missing = {c.id: {s.component for s in c.inputs} for c in topology}
    order: list[str] = []
    while missing:
        # By id among those that are ready: stages, and with them the sources of chunks, have the
        # same numbers in any order in which a program adds its components.
        ready = sorted(id for id, sources in missing.items() if not sources - set(order))
        if not ready:
            raise InvalidTopologyError(
                f"a cyclic topology cannot be replayed: {_cycle(missing)}; break the cycle, or replay its parts apart"
            )
        order += ready
        missing = {id: sources for id, sources in missing.items() if id not in ready}
    return order


def _cycle(missing: Mapping[str, set[str]]) -> str:
    path = [min(missing)]
    while path[-1] not in path[:-1]:
        path.append(min(missing[path[-1]] & set(missing)))
    return " <- ".join(path[path.index(path[-1]) :])


def _cut(topology: Topology, order: Sequence[str], counts: Mapping[str, int]) -> tuple[Stage, ...]:
    stages: list[Stage] = []
    for id in order:
        component = topology.components[id]
        if component.kind == "spout":
            stages += [
                Stage(len(stages) + i, Feed(id, name)) for i, name in enumerate(component.streams)
            ]
            continue
        home = _home(component, stages, counts)
        if home is None:
            stages.append(Stage(len(stages), None, (id,), counts[id]))
        else:
            stages[home.number] = replace(
                home, bolts=(*home.bolts, id), width=home.width or counts[id]
            )
    return tuple(stages)


def _home(component: Component, stages: Sequence[Stage], counts: Mapping[str, int]) -> Stage | None:
    """Return the stage that a bolt can join: all its inputs come from there by shuffle; None if
    there is none.
    """
    # Tasks of a stage of data that have no partition are not created, but
    # every state must be there, and may be given by task from a former run.
    if isinstance(component.instance, Stateful) or not component.inputs:
        return None
    if any(s.grouping.kind not in _FREE for s in component.inputs):
        return None
    homes = {_emitting(stages, s.component, s.stream).number for s in component.inputs}
    home = stages[next(iter(homes))]
    # With fewer tasks than the stage has partitions some partition would have none.
    return home if len(homes) == 1 and counts[component.id] >= home.width else None


def _emitting(stages: Sequence[Stage], component: str, stream: str) -> Stage:
    return next(s for s in stages if s.has(component) or s.feed == Feed(component, stream))


def _routed(topology: Topology, stages: Sequence[Stage]) -> Topology:
    """Return the topology with inputs inside a stage grouped by local_or_shuffle, all others as
    live.
    """
    joined = {b for s in stages for b in (s.bolts if s.feed else s.bolts[1:])}
    local = Grouping("local_or_shuffle")
    return Topology(
        {
            c.id: replace(c, inputs=tuple(replace(s, grouping=local) for s in c.inputs))
            if c.id in joined
            else c
            for c in topology
        }
    )
