"""Schedulers by name: the built-in ones, and user classes that `storm.scheduler.allowed` lists
(S4.5).
"""

from collections.abc import Callable
from importlib import import_module

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.strict import near_name
from sparkstorm.control_plane.scheduling.blacklist import BlacklistScheduler
from sparkstorm.control_plane.scheduling.default import DefaultScheduler
from sparkstorm.control_plane.scheduling.even import EvenScheduler
from sparkstorm.control_plane.scheduling.isolation import IsolationScheduler
from sparkstorm.control_plane.scheduling.jstorm.adapter import JStormScheduler
from sparkstorm.control_plane.scheduling.multitenant.scheduler import MultitenantScheduler
from sparkstorm.control_plane.scheduling.records import Conf
from sparkstorm.control_plane.scheduling.resource.scheduler import ResourceAwareScheduler
from sparkstorm.control_plane.scheduling.settings import ChoiceSettings
from sparkstorm.control_plane.scheduling.traffic.scheduler import TrafficScheduler
from sparkstorm.control_plane.scheduling.view import Scheduler

BLACKLIST = "blacklist"
JSTORM = "jstorm"
ALLOWED_KEY = "storm.scheduler.allowed"

BUILT_IN: dict[str, Callable[[], Scheduler]] = {
    "even": EvenScheduler,
    "default": DefaultScheduler,
    "isolation": IsolationScheduler,
    "multitenant": MultitenantScheduler,
    "resource-aware": ResourceAwareScheduler,
    "traffic": TrafficScheduler,
}


def scheduler_by_name(name: str, conf: Conf, inner: str = "default") -> Scheduler:
    """Return a prepared scheduler: a built-in name, or the dotted path of a class that
    `storm.scheduler.allowed` lists.

    "blacklist" is wrapped around `inner`. InvalidConfigError when a name is unknown or its class
    cannot be made.
    """
    scheduler = BlacklistScheduler(_made(inner, conf)) if name == BLACKLIST else _made(name, conf)
    scheduler.prepare(conf)
    return scheduler


def _made(name: str, conf: Conf) -> Scheduler:
    factory = JStormScheduler if name == JSTORM else BUILT_IN.get(name) or _plugged_in(name, conf)
    return factory()


def _plugged_in(path: str, conf: Conf) -> Callable[[], Scheduler]:
    if path not in ChoiceSettings.of_partial(conf).allowed:
        names = ", ".join(sorted([*BUILT_IN, BLACKLIST, JSTORM]))
        raise InvalidConfigError(
            f"storm.scheduler: {path!r} is neither one of {names} nor listed in {ALLOWED_KEY}"
            f"{near_name(path, [*BUILT_IN, BLACKLIST, JSTORM])}"
        )
    module_name, _, class_name = path.rpartition(".")
    where = f"storm.scheduler: cannot import {path!r}"
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise InvalidConfigError(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:  # user code
        raise InvalidConfigError(f"{where}: {type(error).__name__}: {error}") from error
    made: Callable[[], Scheduler] | None = getattr(module, class_name, None)
    if made is None:
        defined = [name for name in vars(module) if not name.startswith("_")]
        raise InvalidConfigError(
            f"{where}: {module_name} has no {class_name!r}{near_name(class_name, defined)}"
        )
    if not all(callable(getattr(made, verb, None)) for verb in ("prepare", "schedule")):
        raise InvalidConfigError(
            f"storm.scheduler: {path!r} lacks prepare(conf) or schedule(topologies, cluster)"
        )
    return made
