"""Input of a replay that the topology's own `Files` spout reads live: read by Spark, each record
parsed as the spout does.

Left out: Spark's own reader of JSON and CSV with the declared types. It makes text of a number and
null of what it cannot read, where the spout sends the record to its stream `bad`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeGuard

import pyarrow as pa
from pyspark import AccumulatorParam, TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from sparkstorm.connectors.file_records import DECLARED, cell_parser, json_parser
from sparkstorm.connectors.file_source import Files
from sparkstorm.errors import ReplayFailedError
from sparkstorm.hosting.spark_versions import spark_schema
from sparkstorm.replay.arrow_map import map_in_arrow
from sparkstorm.replay.history_order import in_file_order

_DAMAGED = "sparkstorm: damaged"
_ARROW = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
Parse = Callable[[Any], tuple[Any, ...]]
Found = dict[tuple[int, int], tuple[int, str]]
"""Number of records left out, and one problem, by stage and partition: a task that runs again
replaces its record.
"""


class _FoundParam(AccumulatorParam[Found]):
    def zero(self, value: Found) -> Found:
        return {}

    def addInPlace(self, value1: Found, value2: Found) -> Found:
        return value1 | value2


class FilesInput:
    """Frame of the records that a `Files` spout would emit, and the number of those that it would
    send to its stream `bad`.
    """

    def __init__(
        self, spark: SparkSession, spout: Files, name: str, path: str, *, in_order: bool
    ) -> None:
        """`name` is the input's, for notes; `in_order`: by the files' paths. AnalysisException or
        ValueError for files that cannot be read.
        """
        self._name = name
        self._found: Accumulator[Found] = spark.sparkContext.accumulator({}, _FoundParam())
        types = {field: DECLARED[kind] for field, kind in spout.fields.items()}
        self._schema = pa.schema([(field, _ARROW[kind]) for field, kind in types.items()])
        if spout.format == "json":
            # as bytes: text would have U+FFFD for what is no UTF-8
            lines = read_lines(spark, path).selectExpr("CAST(value AS BINARY) AS value")
            # before they are parsed: behind it Spark knows no files
            lines = in_file_order(lines, 0) if in_order else lines
            self.frame = self._parsed(lines, partial(_line_parser, spout.fields, spout.most_bytes))
            return
        reader = spark.read.format("csv").options(
            recursiveFileLookup="true",
            header="true",
            sep=spout.delimiter,
            escape='"',
            enforceSchema="false",
        )
        # An empty cell of a text is empty live, not null.
        reader = reader.options(nullValue="\0", emptyValue="", columnNameOfCorruptRecord=_DAMAGED)
        columns = reader.load(path).columns
        schema = StructType([StructField(column, StringType()) for column in (*columns, _DAMAGED)])
        missing = [field for field in types if field not in columns]
        if missing:
            raise ValueError(f"there is no column '{missing[0]}'; it has {', '.join(columns)}")
        # All columns: where some are pruned, Spark does not look at the number of cells.
        cells = reader.schema(schema).load(path)
        cells = in_file_order(cells, 0) if in_order else cells
        self.frame = self._parsed(cells, partial(_cells_parser, spout.fields, columns))

    def note(self) -> str:
        """Return how many records were left out, after the frame was read; empty for none."""
        # Each result reads the input in a stage of its own, some of them only the first rows.
        by_stage: Counter[int] = Counter()
        for (stage, _), (number, _) in self._found.value.items():
            by_stage[stage] += number
        if not by_stage:
            return ""
        count = max(by_stage.values())
        problem = next(problem for _, problem in self._found.value.values())
        return (
            f"input '{self._name}': {count:,} of its records were left out, which the spout sends to its stream 'bad' live: "
            f"{problem}"
        )

    def _parsed(self, frame: DataFrame, parser: Callable[[], Parse]) -> DataFrame:
        found = self._found
        schema = self._schema
        name = self._name

        def parsed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            parse = parser()  # here: it cannot be pickled
            count = 0
            problem = ""
            for batch in batches:
                rows = []
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    try:
                        rows.append(parse(row))
                    except (ValueError, RecursionError) as error:
                        count += 1
                        problem = problem or f"{error}, in {_shown(row)}"
                made, problems = _batch(name, rows, schema)
                count += len(problems)
                problem = problem or next(iter(problems), "")
                yield made
            context = TaskContext.get()
            if count and context is not None:
                found.add({(context.stageId(), context.partitionId()): (count, problem)})

        return map_in_arrow(frame, parsed, spark_schema(schema))


def read_lines(spark: SparkSession, path: str) -> DataFrame:
    """Return a frame of the lines of files as the spouts cut them: at newlines alone, where Spark
    also cuts at carriage returns, and without those before a newline.
    """
    reader = spark.read.format("text").options(recursiveFileLookup="true", lineSep="\n")
    return reader.load(path).selectExpr("TRIM(TRAILING CHAR(13) FROM value) AS value")


def reads_as_live(spout: object, kind: str) -> TypeGuard[Files]:
    """Return whether an input of a format is read as a spout reads it: JSON or CSV of a `Files` of
    the same format, each of whose fields has a declared type of a scalar.
    """
    return (
        isinstance(spout, Files)
        and spout.format == kind
        and kind in ("json", "csv")
        and all(declared in DECLARED for declared in spout.fields.values())
    )


def _line_parser(fields: Mapping[str, str], most_bytes: int) -> Parse:
    parse = json_parser(fields)

    def parsed(row: tuple[bytes]) -> tuple[Any, ...]:
        if len(row[0]) > most_bytes:
            raise ValueError(f"the record has more than {most_bytes} bytes")
        return parse(row[0])

    return parsed


def _cells_parser(fields: Mapping[str, str], columns: list[str]) -> Parse:
    parse = cell_parser(fields)
    places = [columns.index(field) for field in fields]

    def parsed(row: tuple[str | None, ...]) -> tuple[Any, ...]:
        if row[-1] is not None:
            raise ValueError(f"it does not have {len(columns)} columns")
        return parse([row[place] or "" for place in places])

    return parsed


def _shown(row: tuple[Any, ...]) -> str:
    first = row[0] if len(row) == 1 else row[-1] or ",".join(str(cell) for cell in row[:-1])
    return (first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first))[:200]


def _batch(
    name: str, rows: Sequence[tuple[Any, ...]], schema: pa.Schema
) -> tuple[pa.RecordBatch, list[str]]:
    """Return rows as columns, and the problems of those whose text no tuple carries."""
    try:
        return _columns(rows, schema), []
    except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
        problems = []
        fit = []
        for row in rows:
            try:
                _columns([row], schema)
                fit.append(row)
            except UnicodeEncodeError as error:
                problems.append(f"{error}, in {row!r:.200}")
            except (pa.ArrowInvalid, OverflowError) as error:
                raise ReplayFailedError(
                    f"input '{name}': a number of {row!r:.200} is beyond those of its column ({error}); "
                    "give the replay a frame with a wider type"
                ) from error
        return _columns(fit, schema), problems


def _columns(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
