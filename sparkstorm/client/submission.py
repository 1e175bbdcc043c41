"""Submission at its client: its options, its checks before anything is stored (S0.34-S0.39), and
what its tasks begin with.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from sparkstorm.api.components import Stateful
from sparkstorm.api.windows import check_times
from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError, SparkStormError
from sparkstorm.common.model.normalise import (
    check_own_conf,
    conf_bytes,
    normalise_conf,
    normalise_topology,
    validate_sizes,
)
from sparkstorm.common.model.outline import TopologyOutline, outline_of
from sparkstorm.common.model.tasks import cell_by_task
from sparkstorm.common.model.topology import Topology, validate, validate_name
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.value_types import check_serializers, register, top_module
from sparkstorm.common.settings import (
    AutoscaleSettings,
    FileSettings,
    NimbusSettings,
    RequestSettings,
    StateSettings,
    SubmissionSettings,
    WorkerSettings,
)
from sparkstorm.control_plane.cluster.request_checks import (
    check_choice,
    check_components,
    check_master,
    check_resources,
)
from sparkstorm.data_plane.checkpoint.restore import Seeds
from sparkstorm.data_plane.executor.lazy_state import LazyState
from sparkstorm.data_plane.user_code.attachments import read_attachments
from sparkstorm.data_plane.user_code.local_modules import named_in, pack_sources
from sparkstorm.data_plane.user_code.topology_code import classes_in, modules_of, pack_topology

_LOG = logging.getLogger(__name__)
_NO_BASE: Any = None
_SOWN_AT_ONCE = 4096  # keys of a task


def prepare(
    topology_id: str,
    name: str,
    topology: Topology,
    own_conf: Mapping[str, Any],
    cluster_conf: Mapping[str, Any],
) -> tuple[dict[str, Any], TopologyOutline]:
    """Validate and normalise (S0.3, S0.34-S0.39); the topology's own conf and its outline."""
    validate_name(name)
    checked = check_own_conf(own_conf, cluster_conf, name)
    conf = normalise_conf(cluster_conf, checked)
    conf.update({"topology.id": topology_id, "storm.id": topology_id, "topology.name": name})
    total = {**cluster_conf, **conf}
    validate(topology)
    check_components(topology, cluster_conf, name)
    check_resources(f"configuration of {name}", RequestSettings.of_partial(conf).others or {})
    _check_recorded(topology, total)
    validate_sizes(total, topology_id)
    register(SubmissionSettings.of(total).serializers)
    AutoscaleSettings.of(total)
    check_choice(total)
    check_master(total)
    ask_validator(total, name, topology)
    conf_bytes(conf)
    normalised = normalise_topology(topology, total)
    check_times(normalised)  # settings may have changed the number of tasks
    return conf, outline_of(normalised, total)


def ask_validator(conf: Mapping[str, Any], name: str, topology: Topology) -> None:
    """Call the cluster's own validator, module:function of nimbus.topology.validator; it raises to
    refuse.
    """
    path = NimbusSettings.of(conf).validator
    if not path:
        return
    module, _, function = str(path).partition(":")
    try:
        validator = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfigError(
            f"nimbus.topology.validator: cannot import {path!r}: {error}"
        ) from error
    try:
        validator(name, dict(conf), topology)
    except SparkStormError:
        raise
    except Exception as error:  # user code
        raise InvalidTopologyError(f"topology {name} was refused by {path}: {error}") from error


def packed(topology: Topology, by_value: Sequence[str] | None, conf: Mapping[str, Any]) -> bytes:
    """Return the bytes of a topology with the modules that workers do not have, its files and its
    archives.
    """
    modules = modules_of(topology) if by_value is None else by_value
    check_serializers(SubmissionSettings.of(conf).serializers, modules)
    named = named_in(pack_topology(topology, modules)) if by_value is None else ()
    classes = classes_in(topology, conf)
    sources = pack_sources([*modules, *named, *map(top_module, classes)])
    sent = FileSettings.of(conf)
    return pack_topology(
        topology, modules, sources, read_attachments(sent.files, sent.archives), classes
    )


class Seeding(Protocol):
    """Writer of initial state (data_plane/transport/initial_state.py)."""

    def sow(self, task: int, entries: Iterable[bytes]) -> None:
        """Give a task its journal."""

    def clear_base(self, task: int) -> None:
        """Empty the base of a task that has no journal yet."""

    def add_base(self, task: int, pairs: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write packed keys and values of a task that has no journal yet."""

    def base_size(self, task: int) -> int:
        """Return the number of keys of a task's base."""


class CellsSeeding:
    """Writer of initial state into the store of each task's cell."""

    def __init__(self, seedings: Sequence[Seeding], component_by_task: Mapping[int, str]) -> None:
        self._seedings = seedings
        self._cells = cell_by_task(component_by_task, len(seedings))

    def sow(self, task: int, entries: Iterable[bytes]) -> None:
        """Give a task its journal."""
        self._of(task).sow(task, entries)

    def clear_base(self, task: int) -> None:
        """Empty the base of a task that has no journal yet."""
        self._of(task).clear_base(task)

    def add_base(self, task: int, pairs: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write packed keys and values of a task that has no journal yet."""
        self._of(task).add_base(task, pairs)

    def base_size(self, task: int) -> int:
        """Return the number of keys of a task's base."""
        return self._of(task).base_size(task)

    def _of(self, task: int) -> Seeding:
        return self._seedings[self._cells[task]]


def sow(
    seeds: Seeds, seeding: Seeding, conf: Mapping[str, Any], component_by_task: Mapping[int, str]
) -> None:
    """Write the initial journals of all tasks; a lazy state goes into its base, some keys in memory
    at a time.
    """

    def write(pairs: Iterator[tuple[int, Any, Any]]) -> Mapping[int, int]:
        state_by_task: dict[int, LazyState] = {}
        for task, key, value in pairs:
            if task not in state_by_task:
                seeding.clear_base(task)
                state_by_task[task] = LazyState(codec, _NO_BASE, _SOWN_AT_ONCE)
            state_by_task[task].load([(key, value)])
            if state_by_task[task].wants_sweep(0):
                flush(task, state_by_task[task])
        for task, state in state_by_task.items():
            flush(task, state)
        return {task: seeding.base_size(task) for task in state_by_task}

    def flush(task: int, state: LazyState) -> None:
        for part in state.sweep(_SOWN_AT_ONCE):
            seeding.add_base(task, part)

    codec = Codec(is_lenient=True)
    bolts = [c for c in seeds.topology if isinstance(c.instance, Stateful)]
    lazy = {c.id: write for c in bolts if StateSettings.of(conf, c.conf).backend == "lazy"}
    for task, entries in seeds.journals(component_by_task, lazy):
        seeding.sow(task, entries)


def _check_recorded(topology: Topology, conf: Mapping[str, Any]) -> None:
    bolts = sorted(component.id for component in topology.bolts)
    for name in WorkerSettings.of(conf).recorded_components:
        if name not in bolts:
            raise InvalidTopologyError(
                f"topology.record.components names {name!r:.80}, which is no bolt: {', '.join(bolts)} are"
            )
