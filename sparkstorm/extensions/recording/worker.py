"""Recordings, capsules and live shadows in a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkstorm.common.errors import RecordingError, WorkerFailedError
from sparkstorm.common.model.failure import Cause, Failure
from sparkstorm.common.model.names import file_name
from sparkstorm.common.model.tasks import tasks_by_component
from sparkstorm.common.model.tuples import Tuple
from sparkstorm.common.model.worker_messages import SetShadow, WorkerCommand
from sparkstorm.data_plane.executor.task_observer import TaskObserver
from sparkstorm.data_plane.worker.extension import ExtensionHost, WorkerExtension
from sparkstorm.data_plane.worker.parts import WorkerParts
from sparkstorm.data_plane.worker.tasks.bolt_task import BoltTask
from sparkstorm.extensions.recording.capsule_files import ENDING, write_capsule
from sparkstorm.extensions.recording.live_shadows import LiveShadows
from sparkstorm.extensions.recording.recorder import COMPONENTS, Recording

FOLDER = "capsules"
# An error text with a number in it is a new cause each time: causes are bounded too.
_MOST_CAUSES = 100


class RecordingExtension(WorkerExtension):
    """Recordings of the bolts that `topology.record.components` names."""

    _recording: Recording | None = None

    def attach(self, parts: WorkerParts) -> None:
        plan = parts.plan
        wanted = plan.settings.recorded_components
        bolts = [bolt for bolt in parts.task_set.bolts.values() if bolt.component in wanted]
        directory = plan.settings.record_directory or plan.log_dir
        if bolts and not directory:
            raise WorkerFailedError(
                f"{COMPONENTS} is set, but topology.record.directory is not: nobody here has a folder for logs"
            )
        if not bolts:
            return
        self._recording = Recording(
            str(directory), plan.topology_id, self.host.now_ms, is_threaded=bool(plan.log_dir)
        )
        tasks = tasks_by_component(plan.component_by_task)
        for bolt in bolts:
            recorder = self._recording.recorder(
                bolt.component,
                bolt.task,
                sorted(tasks[bolt.component]).index(bolt.task),
                plan.token_by_task[bolt.task],
                plan.component_settings(bolt.component),
                bolt.state,
            )
            bolt.observers.append(recorder)

    def close(self) -> None:
        if self._recording is not None:
            self._recording.close()

    def abandon(self) -> None:
        if self._recording is not None:
            self._recording.abandon()


class CapsuleExtension(WorkerExtension):
    """Capsules of failures whose inputs are not parked (`topology.failure.capsules`)."""

    def attach(self, parts: WorkerParts) -> None:
        folder = parts.plan.settings.record_directory or parts.plan.log_dir
        if folder and parts.plan.settings.failure_capsules:
            written: dict[Cause, int] = {}
            for bolt in parts.task_set.bolts.values():
                bolt.observers.append(_CapsuleWriter(parts, bolt, Path(folder, FOLDER), written))


class _CapsuleWriter(TaskObserver):
    """Writer of capsules of one bolt's failures, the first so many of each cause in its worker."""

    def __init__(
        self, parts: WorkerParts, bolt: BoltTask, folder: Path, written: dict[Cause, int]
    ) -> None:
        self._letters = parts.letters
        self._most = parts.plan.settings.failure_capsules
        self._folder = folder / file_name(parts.plan.topology_id)
        self._written = written
        self._bolt = bolt

    def failed(self, tup: Tuple, failure: Failure) -> None:
        number = self._written.get(failure.cause, 0)
        if number >= self._most or len(self._written) > _MOST_CAUSES:
            return
        self._written[failure.cause] = number + 1
        bolt = self._bolt
        name = f"{bolt.component}-{bolt.task}-{failure.time_ms}-{number}"
        with contextlib.suppress(RecordingError, OSError):  # a full disk fails no tuple
            letter = self._letters.letter(bolt, tup, 1, failure)
            write_capsule(self._folder / (file_name(name) + ENDING), letter)


class ShadowExtension(WorkerExtension):
    """The live shadow of one worker, begun and ended by its slot's orders."""

    def __init__(self, host: ExtensionHost) -> None:
        super().__init__(host)
        self._shadows = LiveShadows(host.spec, host.now_ms, host.read_code, host.is_threaded)

    def follow(self, command: WorkerCommand, parts: WorkerParts) -> None:
        if isinstance(command, SetShadow):
            self._shadows.follow(command, parts.task_set)

    def figures(self) -> Mapping[str, Any]:
        return self._shadows.figures()

    def end(self) -> None:
        self._shadows.end()
