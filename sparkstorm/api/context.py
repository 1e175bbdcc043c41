"""TopologyContext: what a task can read about its topology, its component and its worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkstorm.api.metrics import Counter, Gauge, Histogram, Meter, TaskMetrics
from sparkstorm.common.model.tasks import tasks_by_component
from sparkstorm.common.settings import FileSettings

BLOBS_FOLDER = "__blobs_folder"
"""Name among a worker's resources of the folder that holds its blobs."""
_files_folder: list[Path] = []  # of this process, once files have travelled to it


def set_files_folder(folder: Path) -> None:
    """Note where the files of the topology are that this process runs."""
    _files_folder[:] = [folder]


@dataclass(frozen=True)
class TopologyContext:
    """One task's view of its topology (Storm's TopologyContext).

    `resources` are shared by all tasks of the worker. `column_streams` are the component's streams
    that a ColumnBolt reads: emit Arrow batches there as they are. `incarnation` is the random id of
    the topology's store since it last lost data: it makes the name of an epoch unique.
    """

    topology_id: str
    task_id: int
    component_id: str
    component_by_task: Mapping[int, str]
    worker_tasks: tuple[int, ...]
    conf: Mapping[str, Any]
    now_ms: Callable[[], int]
    resources: dict[str, Any] = field(default_factory=dict, compare=False)
    column_streams: frozenset[str] = frozenset()
    incarnation: str = ""
    name_effect: Callable[[], str] | None = field(default=None, repr=False, compare=False)
    metrics: TaskMetrics = field(default_factory=TaskMetrics, repr=False, compare=False)

    def component_tasks(self, component: str) -> list[int]:
        """Return a component's task ids, sorted."""
        return tasks_by_component(self.component_by_task).get(component, [])

    @property
    def task_index(self) -> int:
        """Index of this task among its component's tasks, from 0."""
        return self.component_tasks(self.component_id).index(self.task_id)

    @property
    def peers(self) -> list[int]:
        """Tasks of this task's component, itself included."""
        return self.component_tasks(self.component_id)

    def file(self, name: str) -> str:
        """Return the path of a file of `topology.files` on this host.

        FileNotFoundError when none of that name was sent along.
        """
        entries = FileSettings.of(self.conf).files
        given = [
            Path(entry).parent / name
            for entry in entries
            if Path(entry).name == Path(name).parts[0]
        ]
        for path in (*([_files_folder[0] / name] if _files_folder else []), *given):
            if path.is_file():
                return str(path.resolve())
        raise FileNotFoundError(
            f"topology.files has no {name!r}; it names {', '.join(entries) or 'nothing'}"
        )

    def path(self, name: str) -> str:
        """Return a path below `topology.folder`, the folder in which the topology was submitted.

        A worker's working folder is the one in which the cluster was started. On other hosts the
        folder has to be there too, as a shared one.
        """
        return str(Path(FileSettings.of(self.conf).folder or "", name).absolute())

    def blob(self, name: str) -> str:
        """Return the path of a blob's newest version, by its localname in `topology.blobstore.map`.

        Ask again for a newer version; a path stays valid until its blob has changed twice. Without
        a cluster (replay, tests) it is the file of that name in `topology.files`. FileNotFoundError
        when there is neither.
        """
        folder = self.resources.get(BLOBS_FOLDER)
        path = Path(folder, name) if folder else None
        if path is not None and path.is_symlink():
            return str(path.resolve())
        try:
            return self.file(name)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"topology.blobstore.map has no blob with the localname {name!r} here, and topology.files no file of that name"
            ) from None

    def effect_key(self) -> str | None:
        """Return a name of the input in a replay of an idempotent bolt, equal in every run and
        retry; live, None.

        Use it for writes that must not be repeated: `key = context.effect_key() or uuid4().hex`.
        """
        return None if self.name_effect is None else self.name_effect()

    def counter(self, name: str) -> Counter:
        """Return a counter that is part of the commit: exact after crashes, undone with a failed
        call.
        """
        return self.metrics.counter(name)

    def gauge(self, name: str) -> Gauge:
        """Return a gauge: the value that was set last, as of the last commit."""
        return self.metrics.gauge(name)

    def histogram(self, name: str) -> Histogram:
        """Return a histogram of values that is part of the commit."""
        return self.metrics.histogram(name)

    def register_counter(self, name: str) -> Counter:
        """Return a `counter`; Storm's name."""
        return self.metrics.counter(name)

    def register_meter(self, name: str) -> Meter:
        """Return a meter (`mark`), whose readers take its rate; Storm's name."""
        return self.metrics.meter(name)

    def register_histogram(self, name: str) -> Histogram:
        """Return a `histogram`; Storm's name."""
        return self.metrics.histogram(name)

    def register_timer(self, name: str) -> Histogram:
        """Return a histogram of seconds; Storm's name."""
        return self.metrics.histogram(name)

    def register_gauge(self, name: str, function: Callable[[], Any]) -> Callable[[], Any]:
        """Ask a function once a second for a value, or values by name, and return it; Storm's name."""
        self.metrics.sample_by(name, function)
        return function

    def register_metric(self, name: str, metric: Any, time_bucket_secs: float) -> Any:
        """Ask a metric of Storm's first kind (`get_value_and_reset`) once in a period and return
        it.

        Its answer, a number or numbers by name, is shown as gauges.
        """
        self.metrics.sample_by(name, metric.get_value_and_reset, round(1000 * time_bucket_secs))
        return metric

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a resource (a client, a model) that is made once per worker and shared by its
        tasks.
        """
        if name not in self.resources:
            self.resources[name] = make()
        return self.resources[name]
