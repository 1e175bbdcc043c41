"""Services of a worker for its tasks: clock, store, ids, error reports, wake-ups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkstorm.common.model.values.metric_values import MetricValue
from sparkstorm.data_plane.executor.runner import ReportError
from sparkstorm.data_plane.transport.base import Transport
from sparkstorm.data_plane.worker.epoch import IdSource
from sparkstorm.data_plane.worker.tasks.blocking_spout import MakeThread, SourceThread


@dataclass(frozen=True, slots=True)
class WorkerServices:
    """Functions of the worker that its tasks may call."""

    now_ms: Callable[[], int]
    ids: IdSource
    report_error: ReportError
    wake: Callable[[], None]
    new_key: Callable[[], str]
    store: Transport
    metric_values: Callable[[int], dict[str, MetricValue]]  # of a task, as last committed
    make_thread: MakeThread = SourceThread
