"""Initial journals of a new topology's tasks, made from a checkpoint.

Every task of a spout or bolt gets one, even an empty one: a task of such a topology that finds none
takes that for a loss of the store, and refuses to count from zero. Task ids differ between two runs
(ackers come first), so all references to tasks are translated to the new run. State can be dealt to
another number of tasks where its keys are those of the grouping (`state_keyed_by_grouping`),
positions where the spout has a way (`take_over`); windows and everything else need as many tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkstorm.api.components import ReplayableSpout, Stateful
from sparkstorm.api.windows import TimedBolt, WindowedBolt
from sparkstorm.common.errors import CheckpointError
from sparkstorm.common.grouping.hashing import stable_hash
from sparkstorm.common.model.tasks import tasks_by_component
from sparkstorm.common.model.topology import ACKER, MASTER, Component, Topology
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.checkpoint.files import (
    STATE,
    Checkpoint,
    CheckpointContent,
    read_checkpoint,
)

FROM_CHECKPOINT = "topology.from.checkpoint"
_KEYS_PER_ENTRY = 256
# places of the time store (windowing/contents.py, reorder.py, data_plane/executor/event_time.py)
_COLLECTED = "t"
_QUEUED = "q"
_CLOCK = "h"

WriteBases = Callable[[Iterator[tuple[int, Any, Any]]], Mapping[int, int]]
"""Writes (task, key, value) into bases of lazy states; returns the number of keys of each task."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """A checkpoint fitted to a topology: `topology` is to be submitted in place of the one
    given.
    """

    checkpoint: Checkpoint
    topology: Topology
    # spouts whose instance has what was read: their tasks need no position
    positioned: frozenset[str]

    @classmethod
    def of(cls, checkpoint: Checkpoint, topology: Topology) -> Seeds:
        """Let spouts take over what was handed; CheckpointError when a component is missing on
        either side.
        """
        _check_components(topology, checkpoint)
        taken = {
            c.id: made for c in topology.spouts if (made := _taken_over(c, checkpoint)) is not None
        }
        restored = Topology(
            {c.id: replace(c, instance=taken.get(c.id, c.instance)) for c in topology}
        )
        return cls(checkpoint, restored, frozenset(taken))

    @classmethod
    def read(cls, folder: str | Path, topology: Topology) -> Seeds:
        """Return those of the checkpoint in a folder."""
        return cls.of(read_checkpoint(Path(folder)), topology)

    def journals(
        self,
        component_by_task: Mapping[int, str],
        write_bases: Mapping[str, WriteBases] | None = None,
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield each task's first entries, one component in memory at a time; CheckpointError when
        tasks are too many or too few.

        The states of components in `write_bases` are in no entry and not in memory: their functions
        write them (lazy states).
        """
        write_bases = write_bases or {}
        codec = Codec(is_lenient=True)
        former = self.checkpoint.component_by_task
        for component, tasks in tasks_by_component(component_by_task).items():
            if component in (ACKER, MASTER):
                continue
            part = self.checkpoint.parts.get(component)
            version = 1 if part is None else part.state_version
            is_lazy = component in write_bases
            contents = self.checkpoint.content(component, not is_lazy) if part is not None else {}
            dealt = self._dealt(
                component, [contents[task] for task in sorted(contents)], len(tasks)
            )
            sizes = write_bases[component](self.state(component, tasks)) if is_lazy else {}
            for task, content in zip(tasks, dealt, strict=True):
                head = (
                    {"o": content.position}
                    if content.is_positioned and component not in self.positioned
                    else {}
                )
                head |= {} if version == 1 else {"v": version}
                head |= {"n": [sizes.get(task, 0), 0]} if is_lazy else {}
                pairs = {"s": content.state, "w": _renamed(content.time, former, component_by_task)}
                yield task, map(codec.pack, [head, *_parts(pairs)])

    def state(self, component: str, tasks: Sequence[int]) -> Iterator[tuple[int, Any, Any]]:
        """Yield each key and value of a component's state after the new task that gets it, some in
        memory at a time.
        """
        former = self.checkpoint.parts[component].tasks
        index_by_task = {task: index for index, task in enumerate(former)}
        for task, name, key, value in self.checkpoint.rows(component):
            if name == STATE:
                index = index_by_task[task]
                yield (
                    tasks[
                        index
                        if len(former) == len(tasks)
                        else _home(component, key, index, len(former), len(tasks))
                    ],
                    key,
                    value,
                )

    def _dealt(
        self, id: str, contents: Sequence[CheckpointContent], tasks: int
    ) -> Sequence[CheckpointContent]:
        """Deal the content of a component to its tasks."""
        component = self.topology.components.get(id)
        instance = component.instance if component is not None else None
        if not contents:
            return [CheckpointContent() for _ in range(tasks)]
        if id in self.positioned or not isinstance(instance, Stateful | ReplayableSpout):
            return [CheckpointContent(time=_slowest(contents)) for _ in range(tasks)]
        if len(contents) == tasks:
            return contents
        if isinstance(instance, ReplayableSpout):
            raise CheckpointError(
                f"{self.checkpoint.folder}: spout '{id}' had {len(contents)} tasks and has {tasks} now: each goes on where one has "
                f"ended. Give it {len(contents)} (num_tasks), or a take_over that says how others go on"
            )
        if isinstance(instance, WindowedBolt | TimedBolt) or not getattr(
            instance, "state_keyed_by_grouping", False
        ):
            raise CheckpointError(
                f"{self.checkpoint.folder}: '{id}' had {len(contents)} tasks and has {tasks} now. What it kept can only be dealt "
                "out anew if its class says state_keyed_by_grouping and has no windows: "
                f"give it {len(contents)} tasks (num_tasks), with as many executors as you like"
            )
        return _by_key(id, contents, tasks)


def _parts(pairs: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for name, all_of_them in pairs.items():
        for start in range(0, len(all_of_them), _KEYS_PER_ENTRY):
            yield {name: all_of_them[start : start + _KEYS_PER_ENTRY]}


def _check_components(topology: Topology, checkpoint: Checkpoint) -> None:
    kinds = {c.id: c.kind for c in topology}
    wanted = {c.id for c in topology if c.kind == "spout" or isinstance(c.instance, Stateful)}
    for id in sorted(wanted - checkpoint.parts.keys()):
        raise CheckpointError(
            f"{checkpoint.folder} has nothing of '{id}', only of {', '.join(sorted(checkpoint.parts))}: "
            "it would begin as if there had been no history"
        )
    for id, part in checkpoint.parts.items():
        if part.rows and kinds.get(id) != part.kind:
            raise CheckpointError(
                f"{checkpoint.folder} has what the {part.kind} '{id}' kept, but the topology has no {part.kind} "
                "of that id: it would be lost"
            )
        bolt = topology.components[id].instance if kinds.get(id) == "bolt" else None
        if (
            part.rows
            and isinstance(bolt, Stateful)
            and part.state_version != bolt.state_version
            and not _migrates(bolt)
        ):
            raise CheckpointError(
                f"{checkpoint.folder} has a state of '{id}' of version {part.state_version}, this code reads version "
                f"{bolt.state_version}: override migrate_state(state, version), or begin with the code that wrote it"
            )


def _migrates(bolt: Stateful) -> bool:
    own = bolt.migrate_state  # a method, or the function of a bolt that is one
    return getattr(own, "__func__", own) is not Stateful.migrate_state


def _taken_over(component: Component, checkpoint: Checkpoint) -> ReplayableSpout | None:
    spout = component.instance
    if not isinstance(spout, ReplayableSpout):
        raise CheckpointError(
            f"spout '{component.id}' has no position to go on from: derive it from ReplayableSpout"
        )
    contents = checkpoint.content(component.id)
    return spout.take_over([contents[task].position for task in sorted(contents)])


def _slowest(contents: Sequence[CheckpointContent]) -> list[tuple[Any, Any]]:
    """The clock of the sender that has come least far, for each subscriber: what was on time for
    any is on time for all.
    """
    clocks: dict[Any, int] = {}
    for content in contents:
        for key, newest_ms in content.time:
            if key[0] == _CLOCK:
                clocks[key] = min(newest_ms, clocks.get(key, newest_ms))
    return list(clocks.items())


def _by_key(id: str, contents: Sequence[CheckpointContent], tasks: int) -> list[CheckpointContent]:
    """State by the hash that fields grouping uses; clocks as of the slowest."""
    dealt = [CheckpointContent(time=_slowest(contents)) for _ in range(tasks)]
    for index, content in enumerate(contents):
        for key, value in content.state:
            dealt[_home(id, key, index, len(contents), tasks)].state.append((key, value))
    return dealt


def _home(id: str, key: Any, index: int, former: int, tasks: int) -> int:
    """Return the place of the task that gets a key, which was in task `index` of `former`."""
    home = stable_hash(key)
    if home % former != index:
        raise CheckpointError(
            f"bolt '{id}' says state_keyed_by_grouping, but kept the key {key!r:.80} in task {index + 1} of "
            f"{former}, where fields grouping would not have sent it"
        )
    return home % tasks


def _renamed(
    time: Sequence[tuple[Any, Any]], former: Mapping[int, str], present: Mapping[int, str]
) -> list[tuple[Any, Any]]:
    """Windows and queues name the tasks that sent their tuples: the same component's, by place, in
    the new run.
    """
    of_former = tasks_by_component(former)
    of_present = tasks_by_component(present)

    def new(task: int) -> int:
        tasks = of_present.get(former.get(task, ""), ())
        return tasks[of_former[former[task]].index(task) % len(tasks)] if tasks else task

    renamed: list[tuple[Any, Any]] = []
    for key, value in time:
        if key[0] == _COLLECTED:
            value = [value[0], new(value[1]), *value[2:]]
        elif key[0] == _QUEUED:
            key = (*key[:2], new(key[2]), *key[3:])
        renamed.append((key, value))
    return renamed
