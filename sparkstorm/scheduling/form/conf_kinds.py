"""The kinds of the configuration keys that schedulers read; other keys pass unread."""

from collections.abc import Callable, Mapping
from typing import Any

from sparkstorm.errors import show
from sparkstorm.scheduling.form.fields import integer, list_of, map_of, mapping, number, switch, text, wrong

Reader = Callable[[object, str], object]


def _whole(least: int) -> Reader:
    return lambda value, where: integer(value, where, least)


def _hosts_or_machines(value: object, where: str) -> object:
    """Storm's isolation: {topology: machines}; JStorm's: a list of hosts."""
    if isinstance(value, dict):
        return map_of(lambda count, at: integer(count, at, 1))(value, where)
    return list_of(text)(value, where)


def _constraints(value: object, where: str) -> object:
    if isinstance(value, dict):
        return map_of(mapping)(value, where)
    pairs = list_of(list_of(text))(value, where)
    for at, pair in enumerate(pairs):
        if len(pair) != 2:
            raise wrong(f"{where}[{at}]", "two components", list(pair))
    return pairs


_KINDS: dict[str, Reader] = {
    "topology.workers": _whole(0),
    "topology.acker.executors": _whole(0),
    "topology.priority": _whole(0),
    "topology.isolate.machines": _whole(0),
    "topology.spread.components": list_of(text),
    "topology.worker.max.heap.size.mb": number,
    "topology.component.resources.onheap.memory.mb": number,
    "topology.component.resources.offheap.memory.mb": number,
    "topology.component.cpu.pcore.percent": number,
    "topology.component.resources.map": map_of(number),
    "topology.acker.resources.onheap.memory.mb": number,
    "topology.acker.resources.offheap.memory.mb": number,
    "topology.acker.cpu.pcore.percent": number,
    "topology.metrics.consumer.resources.onheap.memory.mb": number,
    "topology.metrics.consumer.resources.offheap.memory.mb": number,
    "topology.metrics.consumer.cpu.pcore.percent": number,
    "topology.ras.one.executor.per.worker": switch,
    "topology.ras.one.component.per.worker": switch,
    "topology.ras.acker.executors.per.worker": _whole(0),
    "topology.ras.order.executors.by.proximity.needs": switch,
    "topology.ras.constraint.max.state.search": _whole(0),
    "topology.ras.constraints": _constraints,
    "topology.scheduler.strategy": text,
    "topology.scheduler.favored.nodes": list_of(text),
    "topology.scheduler.unfavored.nodes": list_of(text),
    "isolation.scheduler.machines": _hosts_or_machines,
    "multitenant.scheduler.user.pools": map_of(_whole(0)),
    "resource.aware.scheduler.user.pools": map_of(map_of(number)),
    "resource.aware.scheduler.priority.strategy": text,
    "resource.aware.scheduler.max.topology.scheduling.attempts": _whole(1),
    "resource.aware.scheduler.constraint.max.state.search": _whole(0),
    "storm.worker.min.cpu.pcore.percent": number,
    "nimbus.monitor.freq.secs": _whole(1),
    "blacklist.scheduler.tolerance.time.secs": _whole(1),
    "blacklist.scheduler.tolerance.count": _whole(1),
    "blacklist.scheduler.resume.time.secs": _whole(1),
    "blacklist.scheduler.assume.supervisor.bad.based.on.bad.slot": switch,
    "blacklist.scheduler.strategy": text,
    "jstorm.reserve.workers": _whole(0),
    "worker.memory.size": lambda value, where: integer(value, where, 0, 2**62),
    "worker.cpu.slot.num": _whole(0),
    "topology.master.worker.memory.size": lambda value, where: integer(value, where, 0, 2**62),
}


def conf(value: object, where: str) -> Mapping[str, Any]:
    """A configuration: known keys checked, null ones left out, so that defaults apply."""
    found = {key: each for key, each in mapping(value, where).items() if each is not None}
    for key, each in found.items():
        if key in _KINDS:
            _KINDS[key](each, f"{where}[{show(key)}]")
    return found
