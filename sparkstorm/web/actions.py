"""Changes from the page: each with its plan, its command line, and its request to Nimbus."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sparkstorm.client import TopologyHandle
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.requests import LOG_LEVELS, LogLevel
from sparkstorm.common.model.status import RebalanceOptions
from sparkstorm.web.answers import checked, whole

Body = Mapping[str, Any]
_MOST_IDS = 1_000


class TopologyFinder(Protocol):
    """The part of a ClusterClient that finds topologies."""

    def topology(self, name: str) -> TopologyHandle: ...


def command(verb: str, body: Body) -> str:
    """Return the command line that does the same."""
    words = ["sparkstorm", *_COMMANDS[_known(verb)](body)]
    return shlex.join(words)


def plan(cluster: TopologyFinder, verb: str, body: Body) -> dict[str, Any]:
    """Return what an action would do now; nothing is changed."""
    answer: dict[str, Any] = {"command": command(verb, body)}
    if verb == "rebalance":
        handle = cluster.topology(_text(body, "topology"))
        made = handle.plan_rebalance(_rebalance_options(body))
        tasks = handle.tasks()

        def named(executor: Any) -> str:
            info = tasks.get(executor.first_task)
            return f"{info.component_id if info else 'task'}#{executor}"

        movement = made.movement
        answer["workers"] = [
            len(set(made.before.values())),
            made.given_workers,
            made.wanted_workers,
        ]
        answer["shortfall"] = made.shortfall
        answer["stay"] = len(movement.stayed)
        answer["move"] = [
            [named(executor), str(before or "new"), str(after)]
            for executor, before, after in movement.moved
        ]
        answer["end"] = [[named(executor), str(slot)] for executor, slot in movement.dropped]
    return answer


def carry_out(cluster: TopologyFinder, verb: str, body: Body) -> str:
    """Carry an action out; return what was done, in one sentence."""
    _known(verb)
    handle = cluster.topology(_text(body, "topology"))
    return _DEEDS[verb](handle, body)


def _known(verb: str) -> str:
    if verb not in _COMMANDS:
        raise InvalidConfigError(f"there is no action {verb!r:.40}, only {', '.join(_COMMANDS)}")
    return verb


def _text(body: Body, key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 500:
        raise InvalidConfigError(
            f"{key}: expected a text of 1 to 500 characters, got {value!r:.60}"
        )
    return value


def _number(body: Body, key: str, least: int = 0) -> int | None:
    value = whole(body.get(key))
    if value is None:
        return None
    if type(value) is not int or not least <= value <= 1_000_000:
        raise InvalidConfigError(f"{key}: expected an integer from {least} on, got {value!r:.60}")
    return value


def _rebalance_options(body: Body) -> RebalanceOptions:
    executors = {name: whole(n) for name, n in checked(body, "executors", dict, {}).items()}
    if not all(type(n) is int and 0 < n <= 100_000 for n in executors.values()):
        raise InvalidConfigError(
            f"executors: expected numbers of executors by component, got {executors!r:.80}"
        )
    return RebalanceOptions(
        _number(body, "workers", 1),
        executors,
        {},
        reassign=checked(body, "reassign", bool, False),
    )


def _ids(body: Body) -> list[str]:
    ids = body.get("ids")
    if (
        not isinstance(ids, list)
        or not 0 < len(ids) <= _MOST_IDS
        or not all(isinstance(identifier, str) for identifier in ids)
    ):
        raise InvalidConfigError(f"ids: expected a list of 1 to {_MOST_IDS} ids of dead letters")
    return ids


def _kill(handle: TopologyHandle, body: Body) -> str:
    if body.get("typed") != handle.name:
        raise InvalidConfigError(f"to kill {handle.name}, its name must be typed")
    handle.kill(_number(body, "wait"))
    return f"{handle.topology_id} is killed"


def _activate(handle: TopologyHandle, body: Body) -> str:
    handle.activate()
    return f"{handle.topology_id} is active"


def _deactivate(handle: TopologyHandle, body: Body) -> str:
    handle.deactivate()
    return f"{handle.topology_id} is inactive"


def _rebalance(handle: TopologyHandle, body: Body) -> str:
    steps: list[str] = []
    handle.rebalance(_rebalance_options(body), _number(body, "wait"), steps.append)
    return "; ".join([f"{handle.topology_id} is rebalanced", *steps])


def _restart(handle: TopologyHandle, body: Body) -> str:
    slot = checked(body, "worker", str, "")
    try:
        handle.restart(WorkerSlot.parse(slot) if slot else None)
    except ValueError as error:
        raise InvalidConfigError(f"worker {slot!r:.80}: {error}") from None
    return (
        f"{f'worker {slot}' if slot else 'every worker'} of {handle.topology_id} is being restarted"
    )


def _level(body: Body) -> tuple[str, LogLevel]:
    """Return a logger, "" for the root one, and its level."""
    level = body.get("level")
    if level not in (*LOG_LEVELS, ""):
        raise InvalidConfigError(
            f"level: expected one of {', '.join(LOG_LEVELS)} or nothing, got {level!r:.40}"
        )
    secs = _number(body, "secs") or 0
    return checked(body, "logger", str, ""), LogLevel(str(level), 1_000 * secs)


def _step(body: Body) -> str:
    step = body.get("step")
    if step not in ("continue", "complete", "rollback"):
        raise InvalidConfigError(f"step: expected continue, complete or rollback, got {step!r:.40}")
    return str(step)


def _log_level(handle: TopologyHandle, body: Body) -> str:
    handle.set_log_level(dict([_level(body)]))
    return f"the workers of {handle.topology_id} take the level over"


def _replay(handle: TopologyHandle, body: Body) -> str:
    done = handle.dead_letters.replay(_ids(body))
    missing = f"; {len(done.missing)} were not there any more" if done.missing else ""
    return f"{counted(len(done.done), 'dead letter is', 'dead letters are')} put back{missing}"


def _drop(handle: TopologyHandle, body: Body) -> str:
    count = handle.dead_letters.drop(_ids(body))
    return f"{counted(count, 'dead letter is', 'dead letters are')} deleted"


def _upgrade(handle: TopologyHandle, body: Body) -> str:
    step = _step(body)
    # checked with every step, also where it is not used
    workers = _number(body, "workers", 1) or 1
    if step == "continue":
        handle.upgrade.go_on(worker_num=workers)
    elif step == "complete":
        handle.upgrade.complete()
    else:
        handle.upgrade.roll_back()
    return f"upgrade of {handle.topology_id}: {step} is accepted"


def _rebalance_words(body: Body) -> list[str]:
    options = _rebalance_options(body)
    words = ["rebalance", _text(body, "topology")]
    words += ["--workers", str(options.num_workers)] if options.num_workers else []
    words += (
        ["--executors", *(f"{name}={n}" for name, n in options.executors_by_component.items())]
        if options.executors_by_component
        else []
    )
    words += ["--reassign"] if options.reassign else []
    wait = _number(body, "wait")
    return [*words, *(["--wait", str(wait)] if wait is not None else []), "--yes"]


def _kill_words(body: Body) -> list[str]:
    wait = _number(body, "wait")
    checked(body, "typed", str, "")
    return ["kill", _text(body, "topology"), *(["--wait", str(wait)] if wait is not None else [])]


def _level_words(body: Body) -> list[str]:
    logger, wanted = _level(body)
    secs = wanted.timeout_ms // 1_000
    level = f"{wanted.level or 'RESET'}{f':{secs}' if secs and wanted.level else ''}"
    return ["log-level", _text(body, "topology"), f"{logger or 'root'}={level}"]


def _upgrade_words(body: Body) -> list[str]:
    step = _step(body)
    workers = _number(body, "workers", 1) or 1
    number = ["--num", str(workers)] if step == "continue" else []
    return ["upgrade", step, _text(body, "topology"), *number]


_COMMANDS: Mapping[str, Callable[[Body], list[str]]] = {
    "activate": lambda body: ["activate", _text(body, "topology")],
    "deactivate": lambda body: ["deactivate", _text(body, "topology")],
    "kill": _kill_words,
    "rebalance": _rebalance_words,
    "restart": lambda body: [
        "restart",
        _text(body, "topology"),
        *(["--worker", worker] if (worker := checked(body, "worker", str, "")) else []),
    ],
    "log-level": _level_words,
    "upgrade": _upgrade_words,
    "replay": lambda body: ["dead-letters", "replay", _text(body, "topology"), *_ids(body)],
    "drop": lambda body: ["dead-letters", "drop", _text(body, "topology"), *_ids(body)],
}
_DEEDS: Mapping[str, Callable[[TopologyHandle, Body], str]] = {
    "activate": _activate,
    "deactivate": _deactivate,
    "kill": _kill,
    "rebalance": _rebalance,
    "restart": _restart,
    "log-level": _log_level,
    "upgrade": _upgrade,
    "replay": _replay,
    "drop": _drop,
}
