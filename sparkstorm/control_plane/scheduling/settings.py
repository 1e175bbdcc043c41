"""Typed settings of the schedulers: each key is read here once, with its default from
defaults.yaml. PURE.

JStorm's schedulers read problems in JStorm's own form, where flags are texts: jstorm/records.py
does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from sparkstorm.common.settings import Settings


@dataclass(frozen=True, slots=True)
class ChoiceSettings(Settings):
    """Which scheduler schedules, for the cluster and for one topology."""

    cluster: Annotated[str | None, "storm.scheduler"]
    topology: Annotated[str | None, "topology.scheduler"]
    allowed: Annotated[list[str], "storm.scheduler.allowed"]


@dataclass(frozen=True, slots=True)
class DefaultSettings(Settings):
    """The default scheduler's."""

    scope: Annotated[str, "default.scheduler.scope"]


@dataclass(frozen=True, slots=True)
class EvenSettings(Settings):
    """The even scheduler's: workers for supervisors that have none."""

    is_enabled: Annotated[bool, "nimbus.even.rebalance.idle.supervisor.enabled"]
    most_per_topology: Annotated[int, "nimbus.even.rebalance.max.free.per.topology"]
    stable_rounds: Annotated[int, "nimbus.even.rebalance.idle.supervisor.min.stable.rounds"]
    monitor_ms: Annotated[int, "supervisor.monitor.frequency.secs"]


@dataclass(frozen=True, slots=True)
class IsolationSettings(Settings):
    """The isolation scheduler's: machines by topology name; for JStorm, the hosts to use."""

    machines: Annotated[Any, "isolation.scheduler.machines"]


@dataclass(frozen=True, slots=True)
class MultitenantSettings(Settings):
    """The multitenant scheduler's: most nodes by user."""

    pools: Annotated[dict[str, int] | None, "multitenant.scheduler.user.pools"]


@dataclass(frozen=True, slots=True)
class BlacklistSettings(Settings):
    """The blacklist's."""

    monitor_ms: Annotated[int, "nimbus.monitor.freq.secs"]
    tolerance_ms: Annotated[int, "blacklist.scheduler.tolerance.time.secs"]
    tolerance_count: Annotated[int, "blacklist.scheduler.tolerance.count"]
    resume_ms: Annotated[int, "blacklist.scheduler.resume.time.secs"]
    counts_bad_ports: Annotated[bool, "blacklist.scheduler.assume.supervisor.bad.based.on.bad.slot"]
    strategy: Annotated[str, "blacklist.scheduler.strategy"]


@dataclass(frozen=True, slots=True)
class ResourceAwareSettings(Settings):
    """The resource-aware scheduler's, for the cluster."""

    guarantees: Annotated[dict[str, Any] | None, "resource.aware.scheduler.user.pools"]
    attempts: Annotated[int, "resource.aware.scheduler.max.topology.scheduling.attempts"]
    strategy: Annotated[str, "resource.aware.scheduler.priority.strategy"]
    max_states: Annotated[int, "resource.aware.scheduler.constraint.max.state.search"]
    min_cpu: Annotated[float, "storm.worker.min.cpu.pcore.percent"]


@dataclass(frozen=True, slots=True)
class TrafficSettings(Settings):
    """The traffic scheduler's."""

    balance_weight: Annotated[float, "traffic.scheduler.balance.weight"]
    rack_weight: Annotated[float, "traffic.scheduler.rack.weight"]
    worker_weight: Annotated[float, "traffic.scheduler.worker.weight"]
    budget: Annotated[int, "traffic.scheduler.search.budget"]
    period_ms: Annotated[int, "traffic.scheduler.period.secs"]
    hold_ms: Annotated[int, "traffic.scheduler.hold.secs"]
    move_ms: Annotated[int, "traffic.scheduler.move.secs"]
    min_gain: Annotated[float, "traffic.scheduler.min.gain"]


@dataclass(frozen=True, slots=True)
class StrategySettings(Settings):
    """The resource-aware scheduler's search for one topology."""

    strategy: Annotated[str, "topology.scheduler.strategy"]
    max_states: Annotated[int, "topology.ras.constraint.max.state.search"]
    is_by_proximity: Annotated[bool, "topology.ras.order.executors.by.proximity.needs"]
    favored: Annotated[list[str] | None, "topology.scheduler.favored.nodes"]
    unfavored: Annotated[list[str] | None, "topology.scheduler.unfavored.nodes"]
    constraints: Annotated[Any, "topology.ras.constraints"]


@dataclass(frozen=True, slots=True)
class WorkerLimits(Settings):
    """Limits of one worker under the resource-aware scheduler."""

    max_heap_mb: Annotated[float, "topology.worker.max.heap.size.mb"]
    one_executor: Annotated[bool, "topology.ras.one.executor.per.worker"]
    one_component: Annotated[bool, "topology.ras.one.component.per.worker"]
    ackers: Annotated[int, "topology.ras.acker.executors.per.worker"]


@dataclass(frozen=True, slots=True)
class PrioritySettings(Settings):
    """Rank of a topology among others."""

    priority: Annotated[int, "topology.priority"]


@dataclass(frozen=True, slots=True)
class MachineSettings(Settings):
    """Machines of a topology, and its components of which no two executors share one."""

    machines: Annotated[int | None, "topology.isolate.machines"]
    spread: Annotated[list[str] | None, "topology.spread.components"]
