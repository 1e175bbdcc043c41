"""Bytes of a topology: the user's instances pickled by the submitter, opened by workers.

They may be opened only after address and signature were checked: unpickling runs code. The
topology's own module travels inside by value, with what its factory has changed in it; the local
modules that it imports travel as sources.
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from sparkstorm.common.errors import InvalidTopologyError, TamperedBlobError, WorkerFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.data_plane.user_code.attachments import use
from sparkstorm.data_plane.user_code.local_modules import add_sources, missing_module

_CLASS_KEYS = ("topology.serializers", "topology.auto.task.hooks", "topology.worker.hooks")
# cloudpickle's list of modules belongs to the process, not to a thread
_PACKING = threading.RLock()


def pack_topology(
    topology: Topology,
    by_value: Iterable[str] = (),
    sources: bytes = b"",
    attachments: Mapping[str, bytes] | None = None,
    classes: Mapping[str, str] | None = None,
) -> bytes:
    """Bytes of a topology; modules named in `by_value` are shipped whole. InvalidTopologyError
    names the component.

    `sources`: archive of further modules, from `local_modules.pack_sources`; `attachments`: of
    `attachments.read_attachments`; `classes`: of `classes_in`.
    """
    modules = [sys.modules[name] for name in by_value if name in sys.modules]
    with _PACKING:
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            instances = {c.id: _pickled(c.id, c.instance) for c in topology}
            bare = Topology({c.id: replace(c, instance=None) for c in topology})
            code = bytes(cloudpickle.dumps((bare, instances)))
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)
    return pickle.dumps((sources, code, dict(attachments or {}), dict(classes or {})))


def open_topology(
    data: bytes, key: str, modules_file: Path | None = None
) -> tuple[Topology, Callable[[str], Any]]:
    """The topology (without instances) and a maker of fresh instances; TamperedBlobError unless
    `key` is its address.

    `modules_file` is where the modules that travelled along are written, files and archives next to
    it; without it they are left out.
    """
    if hashlib.sha256(data).hexdigest() != key:
        raise TamperedBlobError(
            f"code blob {key} holds other bytes than its address says; it was not opened"
        )
    try:
        sources, code, attachments, *_ = pickle.loads(data)
        if modules_file is not None:
            add_sources(sources, modules_file)
            use(attachments, modules_file.with_name(f"attached-{key[:32]}"))
        topology, instances = pickle.loads(code)
    except WorkerFailedError:
        raise
    except ModuleNotFoundError as error:
        raise missing_module(error) from error
    except Exception as error:  # unpickling imports user modules: their errors are the user's
        raise WorkerFailedError(
            f"the topology's code cannot be loaded here: {type(error).__name__}: {error}"
        ) from error
    return topology, lambda component: _unpickled(component, instances[component])


def classes_in(topology: Topology, conf: Mapping[str, Any]) -> dict[str, str]:
    """Return the classes that settings of a topology and its components name as "module:Class",
    each with its setting.
    """
    confs = [conf, *(component.conf for component in topology)]
    lists = [(key, conf.get(key)) for key in _CLASS_KEYS for conf in confs]
    return {
        name: key
        for key, names in lists
        if isinstance(names, list)
        for name in names
        if isinstance(name, str)
    }


def check_classes(data: bytes) -> None:
    """Import the classes that opened code names; WorkerFailedError names the setting, the class and
    what it lacks here.
    """
    for name, key in pickle.loads(data)[3].items():
        module, _, path = name.partition(":")
        try:
            reduce(getattr, path.split("."), importlib.import_module(module))
        except ModuleNotFoundError as error:
            raise WorkerFailedError(f"{key}: '{name}': {missing_module(error)}") from error
        except Exception as error:  # user code
            raise WorkerFailedError(
                f"{key}: '{name}' cannot be imported: {type(error).__name__}: {error}"
            ) from error


def modules_by_value(module: ModuleType) -> list[str]:
    """The module and its package, unless it is installed (then workers have it too)."""
    file = getattr(module, "__file__", None)
    if file is None or {"site-packages", "dist-packages"} & set(Path(file).parts):
        return []
    top = module.__name__.partition(".")[0]
    return [] if top == "sparkstorm" else [top]


def modules_of(topology: Topology) -> list[str]:
    """The modules that define a topology's components and must travel by value: local ones, but not
    the script itself.
    """
    names = dict.fromkeys(
        type(component.instance).__module__
        for component in topology
        if component.instance is not None
    )
    modules = [sys.modules[name] for name in names if name != "__main__" and name in sys.modules]
    return list(dict.fromkeys(top for module in modules for top in modules_by_value(module)))


def _pickled(component: str, instance: Any) -> bytes:
    try:
        return bytes(cloudpickle.dumps(instance))
    except Exception as error:  # pickling calls user code
        raise InvalidTopologyError(
            f"component '{component}' cannot be serialised: {type(error).__name__}: {error}; "
            "open files, sockets, locks and clients in open()/prepare(), not in __init__"
        ) from error


def _unpickled(component: str, data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except ModuleNotFoundError as error:
        raise missing_module(error) from error
    except Exception as error:  # as above
        raise WorkerFailedError(
            f"component '{component}' cannot be loaded here: {type(error).__name__}: {error}"
        ) from error
