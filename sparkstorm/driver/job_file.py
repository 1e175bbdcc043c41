"""Job file (YAML): topology, name and configuration; read and checked."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any

from sparkstorm.api.windows import check_times
from sparkstorm.common.config import (
    Conf,
    check,
    keys,
    merge,
    parse_override,
    read_yaml,
    unsupported_among,
)
from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError, SparkStormError
from sparkstorm.common.model.strict import near_name
from sparkstorm.common.model.topology import Topology, validate, validate_name
from sparkstorm.common.settings import DriverSettings, StoreSettings
from sparkstorm.common.stores.passwords import exposed
from sparkstorm.compat import flux
from sparkstorm.compat.flux import is_flux_document, job_of_flux
from sparkstorm.data_plane.user_code.topology_code import modules_by_value, modules_of
from sparkstorm.driver.results import Result, check_results, read_results, with_sinks
from sparkstorm.extensions.recording.capsule_files import BUILDER, BUILDER_ARGUMENTS

_UNKNOWN_ARGUMENT = re.compile(
    r"(?P<function>[\w.]+)\(\) got an unexpected keyword argument '(?P<argument>\w+)'"
)
_WORDS: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "topology": (str,),
    "arguments": (dict,),
    "parallelism": (dict,),
    "results": (dict, list),
    "replay": (dict,),
}
_KINDS: Mapping[type, str] = {str: "a string", dict: "a map", list: "a list"}


@dataclass(frozen=True, slots=True)
class JobFile:
    """One checked job: factory "module:function", its arguments, executors by component, results,
    configuration.
    """

    path: str
    name: str
    topology: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    parallelism: Mapping[str, int] = field(default_factory=dict)
    results: tuple[Result, ...] = ()
    own_conf: Mapping[str, Any] = field(default_factory=dict)
    # for batch replay alone; driver/replay/job_part.py reads it
    replay: Mapping[str, Any] = field(default_factory=dict)
    # the part of `own_conf` that the command line gave
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def conf(self) -> Conf:
        """The defaults under this job's keys.

        A run with servers of its own has its own folder below the default one: an unfinished
        run of another name would else be found in the stores, and hold the slots.
        """
        conf = merge(self.own_conf)
        is_shared = not StoreSettings.of(conf).embedded()
        if is_shared or "storm.local.dir" in self.own_conf:
            return conf
        return merge(
            conf, {"storm.local.dir": str(Path(DriverSettings.of(conf).local_dir, self.name))}
        )


def read_job_file(
    path: str,
    overrides: Mapping[str, Any] | None = None,
    name: str | None = None,
    inputs: Sequence[str] = (),
    substituted: Mapping[str, Any] | None = None,
) -> JobFile:
    """Read a job file, or a Flux document with what is substituted in it.

    InvalidConfigError names the file, the line where there is one, and the nearest known key.
    """
    is_flux = is_flux_document(path)
    if not is_flux and substituted:
        raise InvalidConfigError(
            f"{path}: --filter and --env-filter are for Flux documents, and this is a job file"
        )
    content, lines = (job_of_flux(path, substituted or {}), {}) if is_flux else read_yaml(path)
    own = {key: value for key, value in content.items() if key in _WORDS}
    for key, value in own.items():
        _check_word(f"{path}, line {lines.get(key, 1)}", key, value)
    rest = {key: value for key, value in content.items() if key not in _WORDS}
    for key in rest:
        _refuse_misspelled_word(f"{path}, line {lines.get(str(key), 1)}", str(key))
    conf = check(rest, path, lines)
    if "topology" not in own:
        raise InvalidConfigError(
            f"{path}: 'topology' is missing; name a factory as module:function"
        )
    results = (
        read_results(f"{path}, line {lines.get('results', 1)}", own["results"])
        if "results" in own
        else ()
    )
    arguments = dict(own.get("arguments") or {})
    if inputs:
        arguments["input"] = list(inputs)
    job = JobFile(
        path,
        name or own.get("name") or Path(path).stem,
        own["topology"],
        arguments,
        own.get("parallelism") or {},
        results,
        {**conf, **(overrides or {})},
        own.get("replay") or {},
        dict(overrides or {}),
    )
    validate_name(job.name)
    return job


def read_job(options: argparse.Namespace) -> JobFile:
    """Read the job file of parsed options; warn of exposed passwords and of keys without effect."""
    overrides = dict(parse_override(argument) for argument in options.c)
    if checkpoint := getattr(options, "from_checkpoint", None):
        overrides["topology.from.checkpoint"] = checkpoint
    for key in ("files", "archives"):
        if given := getattr(options, key, None):
            overrides[f"topology.{key}"] = given
    job = read_job_file(options.conf, overrides, options.name, options.input, _substituted(options))
    say_warnings(overrides, job.own_conf, options.conf)
    return job


def _substituted(options: argparse.Namespace) -> dict[str, Any]:
    """Return the substitutions of the options in a Flux document, as arguments of its factory."""
    substitutions: dict[str, Any] = {}
    if getattr(options, "filter", None):
        substitutions["filter"] = os.path.abspath(options.filter)
    if getattr(options, "env_filter", False):
        substitutions["environment"] = True
    return substitutions


def say_warnings(overrides: Mapping[str, Any], own_conf: Mapping[str, Any], path: str) -> None:
    """Warn of passwords that other users of this machine can read, and of keys without effect."""
    for sentence in (*exposed(overrides, own_conf, path), *unsupported_among(own_conf)):
        print(f"warning: {sentence}", file=sys.stderr, flush=True)


def topology_conf(job: JobFile) -> dict[str, Any]:
    """Return the part of a job's configuration that is its topology's, with the function that
    builds it.
    """
    built_by = {BUILDER: job.topology, BUILDER_ARGUMENTS: dict(job.arguments)}
    return built_by | {
        key: value for key, value in job.own_conf.items() if key.startswith(("topology.", "app."))
    }


def make_topology(job: JobFile, is_live: bool = True) -> tuple[Topology, list[str]]:
    """The topology of the job's factory, and the modules that must travel with it; live with the
    sinks of its results.
    """
    module_name, colon, function_name = job.topology.partition(":")
    if not colon or not module_name or not function_name:
        raise InvalidConfigError(
            f"{job.path}: topology '{job.topology}' is not of the form module:function"
        )
    module = _import(job, module_name)
    factory = getattr(module, function_name, None)
    if not callable(factory):
        raise InvalidConfigError(
            f"{job.path}: module '{module_name}' has no function '{function_name}'"
        )
    topology = _call(job, factory)
    check_results(job.path, job.results, topology)
    live = with_sinks(job.path, job.results, topology)
    travelling = modules_of(topology) if module is flux else modules_by_value(module)
    return _with_parallelism(job, live if is_live else topology, live.components), travelling


def _check_word(where: str, key: str, value: Any) -> None:
    kinds = _WORDS[key]
    if type(value) not in kinds:
        expected = " or ".join(_KINDS[kind] for kind in kinds)
        raise InvalidConfigError(f"{where}: {key}: expected {expected}, got {value!r:.60}")
    if key == "parallelism":
        for component, executors in value.items():
            if isinstance(executors, bool) or not isinstance(executors, int) or executors < 1:
                raise InvalidConfigError(
                    f"{where}: parallelism of '{component}': expected a number of executors, got {executors!r:.60}"
                )


def _refuse_misspelled_word(where: str, key: str) -> None:
    """One of the job's own words, nearly; configuration keys are for `check`."""
    if key in ("conf", "config"):  # Flux and others have their keys below it
        raise InvalidConfigError(
            f"{where}: unknown key {key}: write its keys at the top level, as `topology.workers: 2`"
        )
    near = get_close_matches(key, _WORDS, n=1) if key not in keys() and "." not in key else []
    if near:
        raise InvalidConfigError(f"{where}: unknown key {key}; did you mean {near[0]}?")


def _import(job: JobFile, module_name: str) -> Any:
    folder = str(Path(job.path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise InvalidConfigError(
                f"{job.path}: topology module '{module_name}' was not found next to the job script or the job file, "
                "nor among the installed packages; for a project with src/ set PYTHONPATH=src"
            ) from None
        raise InvalidConfigError(
            f"{job.path}: importing '{module_name}' failed: {error}"
        ) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything on import
        raise InvalidConfigError(
            f"{job.path}: importing '{module_name}' failed: {type(error).__name__}: {error}{_place(error)}{_near_argument(error)}"
        ) from error


def _call(job: JobFile, factory: Any) -> Topology:
    _check_arguments(job, factory)
    try:
        topology = factory(**job.arguments)
    except SparkStormError:
        raise
    except (Exception, SystemExit) as error:  # a user's factory may raise anything
        raise InvalidTopologyError(
            f"{job.path}: {job.topology} raised {type(error).__name__}: {error}{_place(error)}{_near_argument(error)}"
        ) from error
    if not isinstance(topology, Topology):
        raise InvalidTopologyError(
            f"{job.path}: {job.topology} returned a {type(topology).__name__}; return builder.build()"
        )
    return topology


def _check_arguments(job: JobFile, factory: Any) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some callables of C have none: the call itself will show it
        return
    try:
        signature.bind(**job.arguments)
    except TypeError as error:
        given = ", ".join(sorted(map(str, job.arguments))) or "none"
        raise InvalidTopologyError(
            f"{job.path}: {job.topology}{signature} does not take the arguments given ({given}): {error}"
        ) from None


def _with_parallelism(job: JobFile, topology: Topology, known_names: Collection[str]) -> Topology:
    unknown = [c for c in job.parallelism if c not in known_names]
    if unknown:
        raise InvalidTopologyError(
            f"{job.path}: parallelism names unknown component '{unknown[0]}'; there are {', '.join(sorted(known_names))}"
        )
    changed = Topology(
        {c.id: replace(c, parallelism=job.parallelism.get(c.id, c.parallelism)) for c in topology}
    )
    validate(changed)
    check_times(changed)
    return changed


def _near_argument(error: BaseException) -> str:
    """Return what an unknown argument of a call may have meant; Python itself does so from 3.13 on."""
    match = _UNKNOWN_ARGUMENT.fullmatch(str(error)) if isinstance(error, TypeError) else None
    if match is None:
        return ""
    names = match["function"].split(".")
    # The traceback ends at the call: the function's frame was never made.
    users = _last(error.__traceback__).tb_frame.f_globals if error.__traceback__ else {}
    ours = (
        vars(module) for name, module in [*sys.modules.items()] if name.startswith("sparkstorm.")
    )
    for namespace in (users, *ours):
        if names[0] in namespace:
            called = namespace[names[0]]
            for name in names[1:]:
                called = getattr(called, name, None)
            return near_name(match["argument"], _parameters(called))
    return ""


def _parameters(called: object) -> Collection[str]:
    try:
        return inspect.signature(called).parameters if callable(called) else ()
    except (TypeError, ValueError):  # some callables of C have none
        return ()


def _last(trace: TracebackType) -> TracebackType:
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return ""  # its text has the place; the traceback ends in the importer
    if error.__traceback__ is None:
        return ""
    trace = _last(error.__traceback__)
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"
