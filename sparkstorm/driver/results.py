"""Results of a run as the job file names them: states of components at the end, and streams, each
as files or a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sparkstorm.api.columns import arrow_type
from sparkstorm.api.components import Stateful
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError
from sparkstorm.common.model.names import counted, file_name
from sparkstorm.common.model.strict import named_errors, one_of, read_as, whole
from sparkstorm.common.model.topology import (
    DEFAULT_STREAM,
    Component,
    Grouping,
    Subscription,
    Topology,
)
from sparkstorm.common.model.values.column_types import parse_type
from sparkstorm.common.model.values.tagged import to_json
from sparkstorm.connectors.file_sinks import FileSink, cell, csv_lines, read_arrow_schema
from sparkstorm.connectors.sql_sink import SqlSink

if TYPE_CHECKING:
    from sparkstorm.client.handle import TopologyHandle

DEAD_LETTERS = "dead-letters.jsonl"
RESULT_FORMATS = ("jsonl", "csv", "parquet", "table")
_FILE_SINK_FORMATS = {"jsonl": "json", "csv": "csv", "parquet": "parquet"}
_FLUSH_SECS = 2.0


@dataclass(frozen=True, slots=True)
class Result:
    """One entry of `results:`. Without a stream it is the component's state at the end of the run;
    `top` of it is shown.

    `format: table` inserts into `table` of the database at `url`; other formats write below
    `directory`.
    """

    component: str = ""  # empty: the entry only names the directory
    stream: str = ""
    format: Annotated[str, one_of(RESULT_FORMATS)] = "jsonl"
    top: Annotated[int, whole()] = 10
    directory: str = "results"
    schema: str = ""  # columns of a Parquet file, where the stream does not declare their types
    url: str = ""
    table: str = ""
    password_file: str | None = None
    password_env: str | None = None

    @property
    def name(self) -> str:
        """Name of its file or folder: the component, with its stream unless that is the default
        one.
        """
        return (
            self.component
            if self.stream in ("", DEFAULT_STREAM)
            else f"{self.component}.{self.stream}"
        )

    @property
    def sink_id(self) -> str:
        """Id of the sink that a live run adds to the topology for a stream."""
        stream = "" if self.stream == DEFAULT_STREAM else f"-{self.stream}"
        return f"results-{self.component}{stream}-{self.format}"

    def sql_sink(self) -> SqlSink:
        """Return the sink of `format: table`."""
        return SqlSink(
            self.url, self.table, password_file=self.password_file, password_env=self.password_env
        )


def read_results(where: str, content: object) -> tuple[Result, ...]:
    """Read the `results` of a job file, an entry or a list of them; InvalidConfigError names file,
    entry and field.
    """
    entries = content if isinstance(content, list) else [content]
    results: list[Result] = []
    for number, entry in enumerate(entries):
        root = "results" if not isinstance(content, list) else f"results[{number}]"
        with named_errors(InvalidConfigError, prefix=f"{where}: {root}: "):
            result = read_as(Result, entry)
        if result.format == "table" and not (result.url and result.table):
            raise InvalidConfigError(
                f"{where}: {root}: format: table needs the url of a database and the name of a table"
            )
        if any(_target(earlier) == _target(result) for earlier in results):
            raise InvalidConfigError(
                f"{where}: {root}: '{result.name}' is written as {result.format} twice; drop one"
            )
        results.append(result)
    return tuple(results)


def _target(result: Result) -> tuple[str, str, bool]:
    """Return what no two results may share. A state is a file, a stream a folder."""
    return result.name, result.format, bool(result.stream)


def check_results(where: str, results: Sequence[Result], topology: Topology) -> None:
    """Raise InvalidTopologyError for a result of a component, state or stream that the topology has
    not.
    """
    for result in results:
        if not result.component:
            continue
        if result.component not in topology.components:
            names = ", ".join(sorted(topology.components))
            raise InvalidTopologyError(
                f"{where}: results names unknown component '{result.component}'; there are {names}"
            )
        component = topology.components[result.component]
        if not result.stream and not isinstance(component.instance, Stateful):
            streams = ", ".join(component.streams) or "none"
            raise InvalidTopologyError(
                f"{where}: results: component '{component.id}' keeps no state; name a stream of it (stream: ...; it has {streams})"
            )
        if result.stream and result.stream not in component.streams:
            names = ", ".join(sorted(component.streams)) or "none"
            raise InvalidTopologyError(
                f"{where}: results: component '{component.id}' has no stream '{result.stream}'; it has {names}"
            )
        if result.stream and component.streams[result.stream].direct:
            raise InvalidTopologyError(
                f"{where}: results: stream '{result.stream}' of '{component.id}' is direct: each tuple names its receiver, so "
                "no result gets it; emit to another stream as well"
            )


def with_sinks(where: str, results: Sequence[Result], topology: Topology) -> Topology:
    """Return the topology with a transactional sink for every result that is a stream; each tuple
    is written exactly once.
    """
    components = dict(topology.components)
    for result in results:
        if not result.stream:
            continue
        if result.sink_id in components:
            raise InvalidTopologyError(
                f"{where}: results: '{result.sink_id}' is already a component; rename it"
            )
        inputs = (Subscription(result.component, result.stream, Grouping("local_or_shuffle")),)
        components[result.sink_id] = Component(
            result.sink_id, "bolt", stream_sink(where, result, topology), inputs=inputs
        )
    return Topology(components)


def stream_sink(where: str, result: Result, topology: Topology) -> SqlSink | ResultFiles:
    """Return the sink of a result that is a stream."""
    if result.format == "table":
        return result.sql_sink()
    stream = topology.components[result.component].streams[result.stream]
    schema = None
    if result.schema:
        schema = read_arrow_schema(result.schema)
    elif result.format == "parquet":
        untyped = [name for name in stream.fields if stream.types.get(name, "any") == "any"]
        if untyped:
            raise InvalidTopologyError(
                f"{where}: results: parquet needs the type of field '{untyped[0]}' of '{result.component}': declare it on the "
                f'stream, or add schema: "{", ".join(f"{name} string" for name in stream.fields)}" with its types'
            )
        import pyarrow as pa

        schema = pa.schema(
            [(name, arrow_type(parse_type(stream.types[name]))) for name in stream.fields]
        )
    return ResultFiles(result.directory, _FILE_SINK_FORMATS[result.format], schema, result.name)


class ResultFiles(FileSink):
    """FileSink of a result: its folder is `<directory>/<topology id>/<name>`."""

    def __init__(self, directory: str, format: str, schema: Any, name: str) -> None:
        super().__init__(directory, format, schema, flush_secs=_FLUSH_SECS)
        self._name = name

    def open(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Choose the folder of this run."""
        self._path = "/".join([self._path, file_name(context.topology_id), file_name(self._name)])
        super().open(conf, context)

    def open_in(self, folder: str, topology_id: str, component: str, task_index: int) -> None:
        """Write into this very folder, outside of a live run: as that task would."""
        self._path = folder
        tasks = dict.fromkeys(range(task_index + 1), component)
        super().open(
            {}, TopologyContext(topology_id, task_index, component, tasks, (), {}, lambda: 0)
        )


def collect(
    results: Sequence[Result], handle: TopologyHandle, say: Callable[[str], None]
) -> Path | None:
    """Write the states among the results, print the `top` keys of each, and where the streams are;
    return the first file.

    InvalidConfigError when a result cannot be written; nothing of the run is lost by it.
    """
    files = []
    for result in results:
        if result.stream:
            say(
                f"stream '{result.stream}' of '{result.component}' is in {_place(result, handle.topology_id)}"
            )
        elif result.component:
            pairs = sorted(handle.key_values(result.component), key=_rank)
            file = result_folder(results, handle.topology_id, result) / state_file(result)
            write_state(result, pairs, file, handle.topology_id)
            files.append(file)
            _say_state(result, pairs, file, say)
    return files[0] if files else None


def write_state(result: Result, pairs: Sequence[tuple[Any, Any]], file: Path, run: str) -> None:
    """Write keys and values, the greatest values first: into the file, or, once for each `run`,
    into the result's table.
    """
    if result.format == "table":
        rows = [(cell(key), cell(value)) for key, value in sorted(pairs, key=_rank)]
        result.sql_sink().insert_once(f"{run}/{result.component}", ("key", "value"), rows)
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, result.format, sorted(pairs, key=_rank))
    except OSError as error:
        raise InvalidConfigError(
            f"results cannot be written to {file}: {error.strerror}; remedy that or name another `results: {{directory: ...}}`, "
            "and give the same command again"
        ) from error


def result_folder(
    results: Sequence[Result], topology_id: str, result: Result | None = None
) -> Path:
    """Return the folder of one run's results, or of one of them."""
    first = result or next(iter(results), Result())
    return Path(first.directory, file_name(topology_id)).resolve()


def state_file(result: Result) -> str:
    """Return the name of a state's file."""
    name = f"{file_name(result.component)}.{result.format}"
    # no quoted id begins like this: that file is the run's own
    return name if name != DEAD_LETTERS else f"%{name}"


def _say_state(
    result: Result, pairs: Sequence[tuple[Any, Any]], file: Path, say: Callable[[str], None]
) -> None:
    for key, value in pairs[: result.top]:
        say(f"{value:>12,}  {key}" if isinstance(value, int) else f"  {key}: {value}")
    where = f"table {result.table}" if result.format == "table" else file
    say(
        f"{counted(len(pairs), 'key')}{sum_text([value for _, value in pairs])}; results are in {where}"
    )


def _place(result: Result, topology_id: str) -> str:
    if result.format == "table":
        return f"table {result.table}"
    folder = (
        result.directory if "://" in result.directory else str(Path(result.directory).resolve())
    )
    return "/".join([folder, file_name(topology_id), file_name(result.name)])


def _write(file: Path, kind: str, pairs: Sequence[tuple[Any, Any]]) -> None:
    if kind == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(_table(pairs), file)
        return
    with file.open("w", encoding="utf-8", errors="backslashreplace", newline="") as out:
        if kind == "csv":
            cells = [(cell(key), cell(value)) for key, value in pairs]
            out.write(csv_lines([("key", "value"), *cells]))
        else:
            out.writelines(f"{_line(key, value)}\n" for key, value in pairs)


def sum_text(values: Sequence[Any]) -> str:
    """The sum of values that are all whole numbers, named as one; nothing for any others, whose sum
    would be of a part.
    """
    are_numbers = bool(values) and all(type(value) is int for value in values)
    return f", the sum of their values is {sum(values):,}" if are_numbers else ""


def _rank(pair: tuple[Any, Any]) -> tuple[float, str]:
    key, value = pair
    return (-value if isinstance(value, int | float) else 0, str(key))


def _line(key: Any, value: Any) -> str:
    """Return one line of JSON that reads back exactly (`sparkstorm.replay.read_json`); other values
    are tagged objects.
    """
    return to_json([key, value])


def _table(pairs: Iterable[tuple[Any, Any]]) -> Any:
    """Return the keys and values of a state as a table; keys that are tuples of one length are
    STRUCT (_1, _2, ...).

    A column whose values have no type in common holds their JSON (`sparkstorm.replay.read_json`
    reads it back).
    """
    import pyarrow as pa

    items = list(pairs)
    return pa.table(
        {
            "key": _array([_plain(key) for key, _ in items]),
            "value": _array([value for _, value in items]),
        }
    )


def _plain(key: Any) -> Any:
    return {f"_{n}": part for n, part in enumerate(key, 1)} if type(key) is tuple else key


def _array(values: Sequence[Any]) -> Any:
    import pyarrow as pa

    kinds = set(map(type, values)) - {type(None)}
    is_record = (
        kinds == {dict} and len({tuple(value) for value in values if value is not None}) == 1
    )
    if (len(kinds) <= 1 and (is_record or kinds.isdisjoint({dict, list}))) or kinds == {list}:
        try:
            return pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            pass
    return pa.array([None if value is None else to_json(value) for value in values], pa.string())
