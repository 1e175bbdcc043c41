"""Owns the YAML of a job: which topology, under which name, with which configuration; read, checked, made."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from sparkstorm.config import Conf, check, keys, merge
from sparkstorm.errors import InvalidConfigError, InvalidTopologyError, SparkStormError
from sparkstorm.model.topology import Topology, validate, validate_name
from sparkstorm.runtime.code import modules_by_value

_WORDS: Mapping[str, type] = {"name": str, "topology": str, "arguments": dict, "parallelism": dict, "results": dict}
_RESULT_WORDS = {"component", "top", "directory"}


@dataclass(frozen=True, slots=True)
class JobFile:
    """One checked job: factory "module:function", its arguments, executors by component, results, configuration."""

    path: str
    name: str
    topology: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    parallelism: Mapping[str, int] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    own_conf: Mapping[str, Any] = field(default_factory=dict)

    @property
    def conf(self) -> Conf:
        """The defaults under this job's keys."""
        return merge(self.own_conf)


def read_job_file(path: str, overrides: Mapping[str, Any], name: str | None, inputs: Sequence[str]) -> JobFile:
    """Read a job file; InvalidConfigError names the file, the line where there is one, and the nearest known key."""
    content = _load(path)
    own = {str(key): value for key, value in content.items() if key in _WORDS}
    for key, value in own.items():
        if not isinstance(value, _WORDS[key]):
            raise InvalidConfigError(f"{path}: '{key}' must be a {_WORDS[key].__name__}, not {value!r:.60}")
    conf = check_keys({k: v for k, v in content.items() if k not in _WORDS}, path)
    if "topology" not in own:
        raise InvalidConfigError(f"{path}: 'topology' is missing; name a factory as module:function")
    _check_results(path, own.get("results", {}))
    arguments = dict(own.get("arguments", {}))
    if inputs:
        arguments["input"] = list(inputs)
    job = JobFile(path, name or own.get("name") or Path(path).stem, own["topology"], arguments,
                  own.get("parallelism", {}), own.get("results", {}), {**conf, **overrides})
    validate_name(job.name)
    return job


def check_keys(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Configuration keys of a job; a near miss of one of the job's own words is named as well."""
    for key in values:
        if key not in keys():
            near = get_close_matches(str(key), [*_WORDS, *keys()], n=1)
            raise InvalidConfigError(f"{source}: unknown key '{key}'" + (f"; did you mean '{near[0]}'?" if near else ""))
    return check(values, source)


def make_topology(job: JobFile) -> tuple[Topology, list[str]]:
    """The topology of the job's factory, and the modules that must travel with it."""
    module_name, colon, function_name = job.topology.partition(":")
    if not colon or not module_name or not function_name:
        raise InvalidConfigError(f"{job.path}: topology '{job.topology}' is not of the form module:function")
    module = _import(job, module_name)
    factory = getattr(module, function_name, None)
    if not callable(factory):
        raise InvalidConfigError(f"{job.path}: module '{module_name}' has no function '{function_name}'")
    topology = _call(job, factory)
    return _with_parallelism(job, topology), modules_by_value(module)


def _load(path: str) -> dict[Any, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidConfigError(f"{path}: there is no such job file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{path} cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InvalidConfigError(f"{path}{line} is not YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(content, dict):
        raise InvalidConfigError(f"{path}: a job file is a mapping of keys, not {type(content).__name__}")
    return content


def _check_results(path: str, results: Mapping[str, Any]) -> None:
    unknown = set(results) - _RESULT_WORDS
    if unknown:
        raise InvalidConfigError(f"{path}: results has no key '{min(map(str, unknown))}'; it has {', '.join(sorted(_RESULT_WORDS))}")


def _import(job: JobFile, module_name: str) -> Any:
    folder = str(Path(job.path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise InvalidConfigError(
                f"{job.path}: topology module '{module_name}' was not found beside the job script, beside the job file, "
                "or among the installed packages") from None
        raise InvalidConfigError(f"{job.path}: importing '{module_name}' failed: {error}") from error
    except Exception as error:  # a user's module may raise anything on import
        raise InvalidConfigError(
            f"{job.path}: importing '{module_name}' failed: {type(error).__name__}: {error}{_place(error)}") from error


def _call(job: JobFile, factory: Any) -> Topology:
    try:
        topology = factory(**job.arguments)
    except SparkStormError:
        raise
    except Exception as error:  # a user's factory may raise anything
        raise InvalidTopologyError(
            f"{job.path}: {job.topology} raised {type(error).__name__}: {error}{_place(error)}") from error
    if not isinstance(topology, Topology):
        raise InvalidTopologyError(f"{job.path}: {job.topology} returned a {type(topology).__name__}; return builder.build()")
    return topology


def _with_parallelism(job: JobFile, topology: Topology) -> Topology:
    unknown = [c for c in job.parallelism if c not in topology.components]
    if unknown:
        raise InvalidTopologyError(f"{job.path}: parallelism names unknown component '{unknown[0]}'; "
                                   f"there are {', '.join(sorted(topology.components))}")
    changed = Topology({c.id: replace(c, parallelism=job.parallelism.get(c.id, c.parallelism)) for c in topology})
    validate(changed)
    return changed


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})" if trace else ""
