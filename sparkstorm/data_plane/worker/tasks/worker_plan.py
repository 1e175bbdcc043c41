"""WorkerPlan: the topology, tasks, fences, configuration and code of one worker, with its typed
settings.

Law: nothing here changes while the worker lives: another placement, configuration or code is
another worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sparkstorm.common.model.assignment import ExecutorId
from sparkstorm.common.model.failure import Failure
from sparkstorm.common.model.tasks import tasks_by_component
from sparkstorm.common.model.topology import ACKER, Topology
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.worker_spec import StoreMark, Suspect
from sparkstorm.common.settings import ComponentSettings, DeliverySettings, WorkerSettings
from sparkstorm.data_plane.executor.runner import RetryPolicy


@dataclass(frozen=True)
class WorkerPlan:
    """Plan of a worker: `make_instance` returns a fresh copy of a component's instance for one
    task.
    """

    topology_id: str
    topology: Topology
    component_by_task: Mapping[int, str]
    tasks: tuple[int, ...]
    owner: str
    token_by_task: Mapping[int, int]
    conf: Mapping[str, Any]
    make_instance: Callable[[str], Any]
    codec: Codec = field(default_factory=Codec)
    is_strict: bool = False
    careful: int = 0  # inputs of each bolt that run one by one
    suspect_by_row: Mapping[tuple[int, str, int], Suspect] = field(default_factory=dict)
    log_dir: str = ""  # of a worker process; a simulated one has none
    executors: tuple[ExecutorId, ...] = ()
    host: str = ""
    code_key: str = ""
    store_mark: StoreMark | None = None  # what is known of the store
    blobs_folder: str = ""
    # of a simulation: every state that can be lazy is, with so many keys in memory
    lazy_keys: int = 0

    def placed(self, failure: Failure) -> Failure:
        """Return a failure with the host, the worker and the version of the code."""
        return replace(failure, host=self.host, worker=self.owner, code_version=self.code_key)

    @property
    def ackers(self) -> tuple[int, ...]:
        """Task ids of the topology's ackers; empty when nothing is tracked."""
        return tuple(tasks_by_component(self.component_by_task).get(ACKER, ()))

    @cached_property
    def settings(self) -> WorkerSettings:
        """Settings of the topology for its workers."""
        return WorkerSettings.of(self.conf)

    @cached_property
    def delivery(self) -> DeliverySettings:
        """The delivery guarantee and its retries."""
        return DeliverySettings.of(self.conf)

    @property
    def retry_policy(self) -> RetryPolicy:
        """Return what becomes of failed inputs under exactly-once, and of failed windows and
        timers.
        """
        return RetryPolicy(self.delivery.retries, self.delivery.back_off_ms)

    def component_settings(self, component: str) -> ComponentSettings:
        """Settings of one component, over those of the topology."""
        return ComponentSettings.of(self.conf, self.topology.components[component].conf)

    def run_tasks(self) -> frozenset[int]:
        """Return this worker's tasks that get the rows of a local shuffle in runs: the loop
        executes them, and which of them has a row does not change when it runs.
        """
        behind = {
            subscriber
            for component in self.topology.components.values()
            for stream in component.streams
            for subscriber, grouping in self.topology.subscribers(component.id, stream)
            if grouping.kind == "local_or_shuffle"
        }
        without = {component for component in behind if not self._has_thread(component)}
        return frozenset(task for task in self.tasks if self.component_by_task[task] in without)

    def _has_thread(self, component: str) -> bool:
        # Rows for such a task wait for its thread, while the threads of the others may rest.
        return self.component_settings(component).executor_threads or bool(
            getattr(self.make_instance(component), "blocking", False)
        )
