"""Checkpoints: state, windows and positions of a topology's tasks in files, from which another run
starts.

A folder: `manifest.json` lists the tasks of each component, and a Parquet file per component holds
their rows (task, part, key, value), key and value packed as in the store. Parts: "state", "time"
(windows, timers, clocks) and, of spouts, "position". Laws: a folder under its name is whole (it is
written next to it and renamed); nothing in it is trusted before its checksum, and no row before its
form was checked; what is wrong is named by file and field.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from sparkstorm.common.errors import CheckpointError, MalformedFrameError, reason_of
from sparkstorm.common.model.strict import expected, named_errors, one_of, read_as
from sparkstorm.common.model.topology import validate_name
from sparkstorm.common.model.values.codec import KEYS, Codec

FORMAT = 4  # 1: all session windows of a key in one entry, 2: states without a version, 3: another hash of keys
KIND = "sparkstorm checkpoint"
STATE = "state"
TIME = "time"
POSITION = "position"
_PARTS = {"bolt": (STATE, TIME), "spout": (POSITION, TIME)}
_MANIFEST = "manifest.json"
_MOST_MANIFEST_BYTES = 64 << 20
_ROWS_PER_GROUP = 8192
Row = tuple[int, str, Any, Any]
"""Task, part, key and value."""


def _file_name(value: object) -> str:
    if (
        not isinstance(value, str)
        or not value.isprintable()
        or Path(value).name != value
        or value in ("", ".", "..")
    ):
        raise expected("the name of a file in this folder", value)
    return value


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a checkpoint for one component; task ids are those of the run that made it, in their
    order.
    """

    kind: Annotated[str, one_of(_PARTS)]
    tasks: tuple[int, ...]
    file: Annotated[str, _file_name]
    sha256: str
    rows: int
    state_version: int = 1  # of the form of its state (Stateful.state_version)


@dataclass(frozen=True, slots=True)
class _Manifest:
    kind: Annotated[str, one_of((KIND,))]
    format: int
    name: str
    components: Mapping[str, Part]
    component_by_task: Mapping[int, str]


@dataclass(slots=True)
class CheckpointContent:
    """State, windows and position of one task."""

    state: list[tuple[Any, Any]] = field(default_factory=list)
    time: list[tuple[Any, Any]] = field(default_factory=list)
    position: Any = None
    is_positioned: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checked manifest."""

    folder: Path
    name: str
    component_by_task: Mapping[int, str]
    parts: Mapping[str, Part]

    def rows(self, component: str) -> Iterator[Row]:
        """Yield the rows of a component, some in memory at a time; CheckpointError names the
        damaged file, row and field.
        """
        part = self.parts[component]
        codec = Codec(is_lenient=True)
        path = self.folder / part.file
        for number, row in enumerate(_rows_of(path)):
            yield _checked_row(codec, f"{path}, row {number}", part, row)

    def content(self, component: str, has_state: bool = True) -> dict[int, CheckpointContent]:
        """Return the content of each task of a component, with or without its state;
        CheckpointError as of `rows`.
        """
        part = self.parts[component]
        content_by_task = {task: CheckpointContent() for task in part.tasks}
        for task, name, key, value in self.rows(component):
            if name == POSITION:
                content_by_task[task].position, content_by_task[task].is_positioned = value, True
            elif name == TIME:
                content_by_task[task].time.append((key, value))
            elif has_state:
                content_by_task[task].state.append((key, value))
        bare = [
            task
            for task, content in content_by_task.items()
            if part.kind == "spout" and not content.is_positioned
        ]
        if bare:
            raise CheckpointError(
                f"{self.folder / part.file}: no position of task {bare[0]} of spout '{component}'"
            )
        return content_by_task


class CheckpointWriter:
    """Writer of a checkpoint next to its folder; `close` gives it its name, leaving without it
    removes what there is.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp(), "one")
    >>> with CheckpointWriter(folder, "words", {1: "count"}) as writer:
    ...     writer.add("count", "bolt", [(1, STATE, "a", 7)])
    ...     writer.close()
    >>> read_checkpoint(folder).content("count")[1].state
    [('a', 7)]
    """

    def __init__(
        self, folder: Path, name: str, component_by_task: Mapping[int, str], overwrite: bool = False
    ) -> None:
        folder = Path(os.path.abspath(folder))
        if folder.exists() and not overwrite:
            raise CheckpointError(f"{folder}: there is something already; name another folder")
        _check_replaceable(folder)
        validate_name(name)
        self._folder = folder
        self._name = name
        self._component_by_task = component_by_task
        self._partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
        self._codec = Codec(is_lenient=True)
        self._parts: dict[str, Part] = {}
        self._writers: dict[str, Any] = {}
        self._open = ExitStack()

    def __enter__(self) -> CheckpointWriter:
        self._partial.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        shutil.rmtree(self._partial, ignore_errors=True)

    def add(self, component: str, kind: str, rows: Iterable[Row], state_version: int = 1) -> None:
        """Append rows of a component; one without any is part of the checkpoint as well.

        CheckpointError when tasks of one component have states of different forms.
        """
        import pyarrow as pa

        if component not in self._parts:
            self._begin(component, kind, state_version)
        written = self._parts[component]
        if (
            max(written.state_version, state_version) > 1
            and written.state_version != state_version
            and written.rows
        ):
            raise CheckpointError(
                f"tasks of '{component}' have states of the versions {written.state_version} and {state_version}"
            )
        self._parts[component] = replace(
            written, state_version=max(written.state_version, state_version)
        )
        waiting: list[tuple[int, str, bytes, bytes]] = []
        for task, part, key, value in rows:
            waiting.append((task, part, self._codec.pack(key), self._codec.pack(value)))
            if len(waiting) >= _ROWS_PER_GROUP:
                self._write(component, pa, waiting)
        self._write(component, pa, waiting)

    def _begin(self, component: str, kind: str, state_version: int) -> None:
        from pyarrow import parquet

        file = f"part-{len(self._parts)}.parquet"
        tasks = tuple(sorted(t for t, c in self._component_by_task.items() if c == component))
        self._parts[component] = Part(kind, tasks, file, "", 0, state_version)
        self._writers[component] = self._open.enter_context(
            parquet.ParquetWriter(self._partial / file, _schema())
        )

    def _write(self, component: str, pa: Any, waiting: list[tuple[int, str, bytes, bytes]]) -> None:
        if not waiting:
            return
        columns = [
            pa.array(column, column_field.type)
            for column, column_field in zip(zip(*waiting, strict=True), _schema(), strict=True)
        ]
        self._writers[component].write_batch(pa.RecordBatch.from_arrays(columns, schema=_schema()))
        part = self._parts[component]
        self._parts[component] = replace(part, rows=part.rows + len(waiting))
        waiting.clear()

    def close(self) -> None:
        """Write the manifest and take the name, in place of what had it."""
        self._open.close()
        parts = {
            id: {**asdict(p), "sha256": _sha256(self._partial / p.file)}
            for id, p in self._parts.items()
        }
        manifest = {
            "kind": KIND,
            "format": FORMAT,
            "name": self._name,
            "components": parts,
            "component_by_task": {
                str(task): id for task, id in sorted(self._component_by_task.items())
            },
        }
        (self._partial / _MANIFEST).write_text(
            json.dumps(manifest, indent=1) + "\n", encoding="utf-8"
        )
        if self._folder.exists():
            _check_replaceable(self._folder)  # the history was read meanwhile
            shutil.rmtree(self._folder)
        os.replace(self._partial, self._folder)


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in a folder, its files' checksums compared; CheckpointError names the file and
    the field.
    """
    path = folder / _MANIFEST
    fields = _manifest(path)
    if fields.get("kind") == KIND and fields.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format is {fields.get('format')!r:.40}; this version reads format {FORMAT}: make the checkpoint again"
        )
    with named_errors(CheckpointError, prefix=f"{path}: "):
        manifest = read_as(_Manifest, fields)
    for id, part in manifest.components.items():
        _check_tasks(path, id, part, manifest.component_by_task)
        if _sha256(folder / part.file) != part.sha256:
            raise CheckpointError(
                f"{folder / part.file} holds other bytes than {_MANIFEST} says (sha256)"
            )
    return Checkpoint(folder, manifest.name, manifest.component_by_task, manifest.components)


def _check_replaceable(folder: Path) -> None:
    """CheckpointError unless the folder is absent, empty, or a checkpoint and nothing else:
    replacing it deletes it.
    """
    if not folder.is_symlink() and (
        not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    ):
        return
    try:
        fields = {} if folder.is_symlink() else _manifest(folder / _MANIFEST)
    except CheckpointError:
        fields = {}
    parts = fields.get("components")
    if fields.get("kind") != KIND or not isinstance(parts, dict):
        raise CheckpointError(
            f"{folder} is no checkpoint; name another folder, or remove what is there"
        )
    own = {_MANIFEST, *(part.get("file") for part in parts.values() if isinstance(part, dict))}
    if others := sorted(
        path.name for path in folder.iterdir() if path.name not in own or not path.is_file()
    ):
        raise CheckpointError(
            f"{folder} holds {others[0]}, which is no part of the checkpoint; name another folder"
        )


def _manifest(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_MANIFEST_BYTES:
            raise CheckpointError(
                f"{path} is larger than {_MOST_MANIFEST_BYTES >> 20} MiB, which no manifest is"
            )
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path} is no JSON object")
    return fields


def _check_tasks(path: Path, id: str, part: Part, component_by_task: Mapping[int, str]) -> None:
    tasks = sorted(task for task, component in component_by_task.items() if component == id)
    if not tasks or list(part.tasks) != tasks:
        raise CheckpointError(
            f"{path}: components.{id}: tasks are {part.tasks!r:.80}, but component_by_task says {tasks!r:.80}"
        )


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [("task", pa.int32()), ("part", pa.string()), ("key", pa.binary()), ("value", pa.binary())]
    )


def _rows_of(path: Path) -> Iterable[tuple[Any, ...]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            if file.schema_arrow != _schema():
                raise CheckpointError(
                    f"{path}: its columns are {', '.join(file.schema_arrow.names)[:200]}; expected task int32, "
                    "part string, key and value binary"
                )
            # pyarrow 18 fails on a file without row groups
            for batch in file.iter_batches(_ROWS_PER_GROUP) if file.num_row_groups else ():
                yield from zip(*[column.to_pylist() for column in batch.columns], strict=True)
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(
            f"{path} cannot be read as Parquet: {reason_of(error)[:200]}"
        ) from error


def _checked_row(codec: Codec, where: str, part: Part, row: tuple[Any, ...]) -> Row:
    task, name, key, value = row
    if task not in part.tasks:
        raise CheckpointError(
            f"{where}: task {task} is none of {part.tasks[0]} to {part.tasks[-1]}"
        )
    if name not in _PARTS[part.kind]:
        raise CheckpointError(
            f"{where}: part is {name!r:.40}; of a {part.kind} it is one of {', '.join(_PARTS[part.kind])}"
        )
    try:
        key = codec.unpack(key or b"")
        value = codec.unpack(value or b"")
    except MalformedFrameError as error:
        raise CheckpointError(f"{where}: key or value is {error}") from error
    parts = key if isinstance(key, list) else [key]
    if any(type(part) not in KEYS for part in parts) or (
        name == TIME and not (isinstance(key, list) and key)
    ):
        raise CheckpointError(f"{where}: key {key!r:.80} is no key of a {name}")
    return task, name, tuple(key) if isinstance(key, list) else key, value


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error
    return digest.hexdigest()
