"""Checks of components' own configuration and of rebalance options, before anything is stored.

Unchecked, a misspelt key would have no effect, a number of tasks below one would leave a component
without tasks and its senders without receivers, and an amount that is no number would fail the
scheduler for all topologies. Law: a client checks before it stores, so that a mistake is reported
where it was made; Nimbus checks again what it has read, since records come from any process with
the key. Both call these functions. Left out: checks in Nimbus alone, as in Storm, where a client
has uploaded its code before a misspelt key is found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sparkstorm.api.components import Effects, Stateful
from sparkstorm.api.sinks import TransactionalSink
from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError, SparkStormError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.normalise import check_own_conf, conf_bytes
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.shared_memory import check_regions
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.upgrade import UpgradeOptions
from sparkstorm.common.settings import RequestSettings, TrackingSettings
from sparkstorm.control_plane.scheduling import per_topology
from sparkstorm.control_plane.scheduling.settings import ChoiceSettings

_WORKERS_KEY = "topology.workers"
# Tasks, and with them ackers, are fixed at submission (S3.12); ids are Nimbus's.
# The tasks' number decides which task a key belongs to: changed, states and streams would belong to
# other tasks than before.
_FIXED_KEYS = (
    "topology.acker.executors",
    "topology.delivery.guarantee",
    "topology.id",
    "storm.id",
    "topology.name",
    "topology.redis.store",
    "topology.cells",
)


def checked_rebalance(
    name: str, options: RebalanceOptions, outline: TopologyOutline, cluster_conf: Mapping[str, Any]
) -> RebalanceOptions:
    """The options with a checked conf, whose topology.workers counts as the number of workers.

    InvalidTopologyError or InvalidConfigError names what cannot be.
    """
    where = f"rebalance of {name}"
    tasks = Counter(outline.component_by_task.values())
    for part in (options.executors_by_component, options.resources_by_component):
        _check_components(where, part, tasks)
    for component, wanted in options.executors_by_component.items():
        # More executors than tasks would leave some without a task.
        if not _is_count(wanted) or wanted > tasks[component]:
            raise InvalidTopologyError(
                f"{where}: component '{component}' has {tasks[component]} tasks, "
                f"so it can have 1 to {tasks[component]} executors, not {wanted!r:.60}"
            )
    for component, resources in options.resources_by_component.items():
        check_resources(f"{where}: component '{component}'", resources)
    conf = _checked_conf(where, name, options.conf, cluster_conf)
    return replace(options, num_workers=_workers(where, options.num_workers, conf), conf=conf)


def upgrade_options(workers: Iterable[str], component: str, worker_num: int) -> UpgradeOptions:
    """Return the choice of a batch; InvalidConfigError for a worker that is no NODE:PORT."""
    slots = []
    for worker in workers:
        try:
            slots.append(WorkerSlot.parse(str(worker)))
        except ValueError as error:
            raise InvalidConfigError(f"topology.upgrade.workers: {error}") from None
    return UpgradeOptions(tuple(slots), component, worker_num)


def check_upgraded_outline(
    name: str, before: TopologyOutline, after: TopologyOutline, is_forced: bool
) -> None:
    """InvalidTopologyError unless old and new code of a topology can run side by side: same
    components, tasks and streams.

    A state in another form is refused as well, unless forced: after a rollback the former code
    could not read it.
    """
    where = f"upgrade of {name}: "
    # Old and new workers send to each other during an upgrade: a component that one half lacks
    # would get rows that are never read.
    if added := after.components.keys() ^ before.components.keys():
        word = "adds" if min(added) in after.components else "lacks"
        raise InvalidTopologyError(
            f"{where}the new code {word} component '{min(added)}'; use a hot deploy (sparkstorm update)"
        )
    for component, was in before.components.items():
        now = after.components[component]
        here = f"{where}component '{component}'"
        tasks = [
            sum(
                task_component == component for task_component in outline.component_by_task.values()
            )
            for outline in (before, after)
        ]
        if tasks[0] != tasks[1]:
            raise InvalidTopologyError(
                f"{here} has {tasks[1]} tasks in the new code, {tasks[0]} run; use a hot deploy"
            )
        if was.kind != now.kind:
            raise InvalidTopologyError(
                f"{here} is a {now.kind} in the new code, a {was.kind} runs; use a hot deploy"
            )
        for stream in sorted(was.streams.keys() | now.streams.keys()):
            fields = [spec.streams.get(stream) for spec in (was, now)]
            if fields[0] != fields[1]:
                words = [
                    f"({', '.join(names)})" if names is not None else "nothing" for names in fields
                ]
                raise InvalidTopologyError(
                    f"{here}, stream '{stream}': the new code declares {words[1]}, {words[0]} runs; use a hot deploy"
                )
        if sorted(map(str, was.inputs)) != sorted(map(str, now.inputs)):
            raise InvalidTopologyError(
                f"{here} has other inputs or groupings in the new code; use a hot deploy"
            )
        if was.state_backend and was.state_backend != now.state_backend:
            raise InvalidTopologyError(
                f"{here}: topology.state.backend is {now.state_backend} in the new code, {was.state_backend} runs: after a "
                "rollback the state could not be read; use a hot deploy"
            )
        # Unless forced, because the upgrade itself would work: only the way back would not.
        if was.state_version != now.state_version and not is_forced:
            raise InvalidTopologyError(
                f"{here}: its state has version {was.state_version}, that of the new code {now.state_version}: after a rollback "
                "the code that runs now could not read it; set topology.upgrade.force to upgrade nevertheless"
            )


def check_shadowed(name: str, topology: Topology, component: str) -> None:
    """InvalidTopologyError unless new code can run next to a task of that component without an
    effect of its own.
    """
    bolts = {bolt.id: bolt for bolt in topology.bolts}
    where = f"upgrade of {name}: topology.upgrade.shadow.component"
    if component not in bolts:
        raise InvalidTopologyError(
            f"{where} names {component!r:.80}, which is no bolt: {', '.join(sorted(bolts))} are"
        )
    bolt = bolts[component].instance
    effects: Effects | None = getattr(bolt, "effects", None)
    # A bolt without outputs and state can only be there for what it does outside.
    is_sink = isinstance(bolt, TransactionalSink) or not (
        bolts[component].streams or isinstance(bolt, Stateful)
    )
    if is_sink or effects not in (None, Effects.RUN):
        raise InvalidTopologyError(
            f"{where}: '{component}' writes to the outside (it has neither outputs nor state, or declares its effects): a shadow "
            "would write a second time; name a bolt before it"
        )


def check_master(conf: Mapping[str, Any]) -> None:
    """InvalidConfigError when a topology master is to be alone in its worker under a scheduler that
    does not support it.
    """
    choice = ChoiceSettings.of_partial(conf)
    name = choice.topology or choice.cluster
    if TrackingSettings.of_partial(conf).master and name != "jstorm":
        raise InvalidConfigError(
            f"topology.master.single.worker: the scheduler {name or 'default'!r} gives no task a worker of its own; "
            "set topology.scheduler to jstorm, or leave the key out: Nimbus then does the master's work"
        )


def _workers(where: str, asked: int | None, conf: Mapping[str, Any]) -> int | None:
    by_conf = conf.get(_WORKERS_KEY)
    if asked is None:
        return by_conf
    if not _is_count(asked):
        raise InvalidTopologyError(
            f"{where}: {asked!r:.60} workers; a whole number of at least 1 is needed"
        )
    # Two values that differ are a mistake of the client; to choose one silently would be a guess.
    if by_conf not in (None, asked):
        raise InvalidConfigError(
            f"{where}: {asked} workers are asked for, but {_WORKERS_KEY} says {by_conf}"
        )
    return asked


def _check_components(where: str, part: object, tasks: Mapping[str, int]) -> None:
    if not isinstance(part, Mapping):
        raise InvalidTopologyError(f"{where}: expected a map by component, got {part!r:.60}")
    for component in part:
        if component not in tasks:
            names = ", ".join(sorted(tasks))
            raise InvalidTopologyError(
                f"{where}: there is no component {component!r:.60}, only {names}"
            )


def _checked_conf(
    where: str, name: str, conf: Mapping[str, Any], cluster_conf: Mapping[str, Any]
) -> dict[str, Any]:
    checked = check_own_conf(conf, cluster_conf, name)
    fixed = [key for key in _FIXED_KEYS if key in checked]
    if fixed:
        raise InvalidConfigError(f"{where}: {fixed[0]} is fixed for a topology's life")
    conf_bytes(checked)
    check_resources(where, RequestSettings.of_partial(checked).others or {})
    check_choice({**cluster_conf, **checked})
    return checked


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_TASKS_KEY = "topology.tasks"


def check_components(topology: Topology, cluster_conf: Mapping[str, Any], name: str) -> None:
    """Each component's own settings, by the rules for those of the topology; InvalidConfigError or
    InvalidTopologyError.
    """
    check_regions(
        (
            (component.id, component.conf)
            for component in topology
            if isinstance(component.conf, Mapping)
        ),
        f"{name}: ",
    )
    for component in topology:
        where = f"component '{component.id}' of {name}"
        own = check_own_conf(_without_tasks(component.conf), cluster_conf, where)
        conf_bytes(own)
        check_resources(where, RequestSettings.of_partial(own).others or {})
        # A bool is an int to Python: true would be one task.
        tasks = component.conf.get(_TASKS_KEY)
        if tasks is not None and (
            isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1
        ):
            raise InvalidTopologyError(
                f"{where}: {_TASKS_KEY} must be a whole number of at least 1, not {tasks!r:.60}"
            )


def _without_tasks(conf: Any) -> Any:
    """Return a configuration without Storm's own key for the number of tasks, which is no setting;
    a value that is no mapping is refused by the check that follows.
    """
    return (
        {key: value for key, value in conf.items() if key != _TASKS_KEY}
        if isinstance(conf, Mapping)
        else conf
    )


def check_resources(where: str, resources: object) -> None:
    """Amounts by resource, none below zero; InvalidTopologyError otherwise."""
    if not isinstance(resources, Mapping):
        raise InvalidTopologyError(f"{where}: expected amounts by resource, got {resources!r:.60}")
    for resource, amount in resources.items():
        is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
        if (
            not isinstance(resource, str)
            or not is_number
            or not math.isfinite(amount)
            or amount < 0
        ):
            raise InvalidTopologyError(
                f"{where}: {resource!r:.60}: expected an amount of at least 0, got {amount!r:.60}"
            )


def check_choice(conf: Mapping[str, Any]) -> None:
    """Refuse a topology.scheduler that cannot be made, also by an error of a plug-in's own code:
    InvalidConfigError.
    """
    try:
        per_topology.check_choice(conf)
    except SparkStormError as error:
        reason = (
            str(error)
            .removeprefix(f"{per_topology.TOPOLOGY_KEY}: ")
            .removeprefix(f"{per_topology.CLUSTER_KEY}: ")
        )
        raise InvalidConfigError(f"{per_topology.TOPOLOGY_KEY}: {reason}") from error
    except Exception as error:  # user code
        name = ChoiceSettings.of(conf).topology
        raise InvalidConfigError(
            f"{per_topology.TOPOLOGY_KEY}: {name} cannot be made: {type(error).__name__}: {error}"
        ) from error
