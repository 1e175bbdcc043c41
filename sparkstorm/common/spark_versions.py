"""Private and moved parts of PySpark that SparkStorm calls, by version, 3.5 to 4.3.

Nothing else in the package asks for a version of PySpark or touches its JVM (tests/test_layers.py).
Two modules stand in the place of PySpark's own: `connectors/spark.py` of what calls a data source,
`driver/spark_daemon.py` of its daemon.
"""

import functools
import importlib
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark import RDD, SparkContext, accumulators
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

from sparkstorm.common.grouping.hashing import stable_hash

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, order=True)
class Executor:
    """A Spark executor: its id, its host under Spark's name, and how many tasks it runs at once."""

    id: str
    host: str
    room: int


def version_of(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: of "4.0.5.dev1" 4, 0 and 5."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


VERSION: Final = version_of(pyspark.__version__)
# the converters to Arrow; older ones take UTC for times with a zone
_NAMES_TIMEZONE: Final = VERSION >= (4, 2)
_PORT: Final = re.compile(r":\d+$")
# RDDs in one union: a task's closure names each of them. 8 would need half as many levels more.
_MOST_JOINED: Final = 16
_ERRORS_A_SECOND: Final = 0.005  # as in driver/spark_conf/log4j2.properties
_DEALS_BY_ID: Final = VERSION >= (4, 1)  # has DataFrame.repartitionById
HAS_UNION_BY_PLACE: Final = VERSION >= (4, 1)
"""Whether Spark has `SQLPartitioningAwareUnionRDD`, which joins the n-th partitions of several RDDs
without a shuffle.
"""
# DataFrame is the class of classic frames, not a parent of it and of Spark Connect's
_IS_ONE_CLASS: Final = VERSION < (4, 0)


class _NoType(DataType):
    """The type of a value that this Spark does not have."""


def _found(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


CLASSIC_FRAME: Final[Any] = (
    DataFrame if _IS_ONE_CLASS else _found("pyspark.sql.classic.dataframe", "DataFrame")
)
"""Class of the DataFrames of a session in this process."""
VARIANT: Final[Any] = _NoType if _IS_ONE_CLASS else _found("pyspark.sql.types", "VariantType")
"""Class of the type VARIANT; one that no column has where Spark does not know it."""
MAP_IN_ARROW: Final[int] = _found(
    "pyspark.rdd" if _IS_ONE_CLASS else "pyspark.util", "PythonEvalType"
).SQL_MAP_ARROW_ITER_UDF
"""Kind of a function from batches of Arrow to batches of Arrow."""


def unfit(version: str, python: tuple[int, int], has_distutils: bool) -> str:
    """Return what keeps a PySpark from working here, a sentence; "" for nothing."""
    numbers = version_of(version)
    if numbers < (3, 5):
        return f"PySpark {version} is too old: install 3.5 or newer (pip install 'pyspark>=3.5,<5')"
    if numbers < (4, 0) and python >= (3, 12) and not has_distutils:
        named = ".".join(map(str, python))
        return (
            f"PySpark {version} imports distutils, which Python {named} lacks: use Python 3.11, "
            "PySpark 4.0 or newer, or pip install setuptools on every host"
        )
    return ""


def unfit_here() -> str:
    """Return what keeps the installed PySpark from working with this Python; "" for nothing."""
    has_distutils = find_spec("distutils") is not None
    return unfit(pyspark.__version__, sys.version_info[:2], has_distutils)


# -- the JVM and the context -----------------------------------------------------------------------


def start_java() -> None:
    """Start the JVM, or join spark-submit's: a SparkConf made before knows nothing of its options."""
    context: Any = SparkContext
    context._ensure_initialized()


def has_context() -> bool:
    """Return whether this process has a SparkContext."""
    context: Any = SparkContext
    return context._active_spark_context is not None


def is_stopped(sc: SparkContext) -> bool:
    """Return whether the context was stopped; raises what py4j raises when its JVM is gone."""
    java: Any = sc._jsc
    return java is None or bool(java.sc().isStopped())


def is_java_ending() -> bool:
    """Return whether the JVM shuts down; raises what py4j raises when it is gone."""
    java: Any = SparkContext._jvm
    return java is not None and bool(java.org.apache.spark.util.ShutdownHookManager.inShutdown())


def let_java_ignore_interrupts(sc: SparkContext) -> None:
    """Have the JVM ignore SIGINT, which a terminal sends to it as well."""
    java: Any = sc._jvm
    misc = java.sun.misc
    misc.Signal.handle(misc.Signal("INT"), misc.SignalHandler.SIG_IGN)


def quiet_java(silenced: Sequence[str], limited: str) -> None:
    """Have the JVM log errors only, of the classes in `silenced` nothing and of `limited` three in
    ten minutes (all below org.apache.spark); raises what py4j raises.
    """
    java: Any = SparkContext._jvm
    # Spark reads its own settings at its first line, and would undo ours: let it read them now, in
    # silence.
    utils = getattr(getattr(java.org.apache.spark.util, "Utils$"), "MODULE$")
    utils.initializeLogIfNecessary(False, True)
    log4j = java.org.apache.logging.log4j
    log4j.core.config.Configurator.setRootLevel(log4j.Level.ERROR)
    for name in silenced:
        log4j.core.config.Configurator.setLevel(f"org.apache.spark.{name}", log4j.Level.OFF)
    limited = f"org.apache.spark.{limited}"
    log4j.core.config.Configurator.setLevel(limited, log4j.Level.ERROR)  # makes its configuration
    burst = log4j.core.filter.BurstFilter.newBuilder()
    burst.setLevel(log4j.Level.ERROR).setRate(_ERRORS_A_SECOND).setMaxBurst(3)
    log4j.LogManager.getContext(False).getConfiguration().getLoggerConfig(limited).addFilter(
        burst.build()
    )


def delete_at_exit(sc: SparkContext, folder: str) -> None:
    """Have the JVM delete a folder when it ends."""
    java: Any = sc._jvm
    java.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(
        java.java.io.File(folder)
    )


def processors_of(sc: SparkContext) -> int:
    """Return the number of processors that the JVM sees."""
    java: Any = sc._jvm
    return int(java.java.lang.Runtime.getRuntime().availableProcessors())


def accumulator_server() -> Any:
    """Return the class of the server that takes the updates of accumulators over TCP."""
    module: Any = accumulators
    return getattr(module, "AccumulatorTCPServer", None) or module.AccumulatorServer


def arrow_type(kind: DataType) -> "pa.DataType":
    """Return Arrow's type of a Spark type, times in UTC; PySparkTypeError when there is none."""
    convert: Any = to_arrow_type
    made: pa.DataType = convert(kind, timezone="UTC") if _NAMES_TIMEZONE else convert(kind)
    return made


def arrow_schema(schema: StructType) -> "pa.Schema":
    """Return Arrow's schema of a Spark schema, times in UTC."""
    convert: Any = to_arrow_schema
    made: pa.Schema = convert(schema, timezone="UTC") if _NAMES_TIMEZONE else convert(schema)
    return made


def spark_schema(schema: "pa.Schema") -> StructType:
    """Return Spark's schema of an Arrow schema; PySparkTypeError for a type that it does not have.

    A time without a zone becomes TIMESTAMP_NTZ, which is the default since 4.2 only.
    """
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


# -- frames ----------------------------------------------------------------------------------------


def java_frame(frame: DataFrame) -> Any:
    """Return the Java object of a classic frame."""
    return frame._jdf


def java_map_in_arrow(frame: DataFrame, column: Column) -> Any:
    """Return the Java frame of a frame and the call of a function of kind MAP_IN_ARROW."""
    java: Any = frame._jdf
    made: Any = column
    return (
        java.pythonMapInArrow(made._jc.expr(), False)
        if _IS_ONE_CLASS
        else java.mapInArrow(made._jc, False, None)
    )


def optimized_plan(frame: DataFrame) -> Any:
    """Return the Java object of the plan that Spark's optimizer makes of a frame."""
    return java_frame(frame).queryExecution().optimizedPlan()


def executed_plan(frame: DataFrame) -> str:
    """Return the physical plan of a frame as text."""
    return str(java_frame(frame).queryExecution().executedPlan().toString())


def fixed_rows(frame: DataFrame) -> Any:
    """Return the Java RDD of a frame's rows in Spark's own form: its plan's partitions are fixed
    now.
    """
    return java_frame(frame).queryExecution().toRdd()


def frame_of(rows: Any, like: DataFrame) -> DataFrame:
    """Return an RDD of `fixed_rows` as a frame of the columns of another one."""
    session: Any = like.sparkSession
    made = session._jsparkSession.internalCreateDataFrame(rows, java_frame(like).schema(), False)
    return DataFrame(made, session)


def splits_of(rows: Any) -> list[list[tuple[str, int]]] | None:
    """Return the files of each partition of an RDD that reads files and nothing else, as URL and
    first byte; None for any other RDD.
    """
    splits = []
    for partition in rows.partitions():
        if partition.getClass().getSimpleName() != "FilePartition":
            return None
        splits.append([(file.filePath().urlEncoded(), file.start()) for file in partition.files()])
    return splits


# A second thread would take the settings of the first for the session's own, and put those back.
_PLANNING = threading.Lock()


@contextmanager
def one_split_a_partition(frame: DataFrame) -> Iterator[int]:
    """Let Spark plan the read of a frame's files with one file, or split of one, in each partition;
    yield about how many partitions it makes otherwise.

    Settings of the whole session, for the time of the call: a read that another thread plans in it
    is packed in that way too, which changes its partitions and none of its rows.
    """
    session = java_frame(frame).sparkSession()
    conf = session.sessionState().conf()
    most = conf.filesMaxPartitionBytes()
    opening = conf.filesOpenCostInBytes()
    # Of FilePartition.maxSplitBytes. What a file is opened for counts as so many bytes.
    size = sum(
        int(str(leaf.computeStats().sizeInBytes()))
        for leaf in _as_list(optimized_plan(frame).collectLeaves())
    )
    total = size + len(frame.inputFiles()) * opening
    tasks = session.sparkContext().defaultParallelism()
    split = max(1, min(most, max(opening, total // tasks)))
    wanted = {
        "spark.sql.files.maxPartitionBytes": str(split),
        # A partition is full with its first split, since opening a file counts more than it holds.
        "spark.sql.files.openCostInBytes": str(split + 1),
    }
    settings = frame.sparkSession.conf
    with _PLANNING:
        former = {key: settings.get(key, None) for key in wanted}
        try:
            for key, value in wanted.items():
                settings.set(key, value)
            yield -(-total // split)
        finally:
            for key, before in former.items():
                if before is None:
                    settings.unset(key)
                else:
                    settings.set(key, before)


def _as_list(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def reordered(frame: DataFrame, rows: Any, order: Sequence[int]) -> Any:
    """Return an RDD with the partitions of another one in this order, without a shuffle."""
    context: Any = frame.sparkSession.sparkContext
    pruned = context._jvm.org.apache.spark.rdd.PartitionPruningRDD
    as_seq = context._jvm.PythonUtils.toSeq
    parts = [pruned.create(rows, as_seq([number]).toSet()) for number in order]
    return context._jsc.sc().union(as_seq(parts), rows.elementClassTag())


def joined_by_place(frame: DataFrame, parts: Sequence[Any], count: int) -> Any:
    """Return the RDD whose n-th of `count` partitions has the rows of the n-th of each of `parts`,
    in their order; only where HAS_UNION_BY_PLACE.
    """
    context: Any = frame.sparkSession.sparkContext
    union = context._jvm.org.apache.spark.rdd.SQLPartitioningAwareUnionRDD
    together = context._jvm.PythonUtils.toSeq(list(parts))
    return union(context._jsc.sc(), together, count, parts[0].elementClassTag())


def neighbours_joined(frame: DataFrame, rows: Any, width: int) -> Any:
    """Return an RDD of at most `width` partitions: contiguous groups of another's, without a
    shuffle; only where HAS_UNION_BY_PLACE.

    Each level joins up to 16 neighbours.
    """
    while (count := rows.getNumPartitions()) > width:
        # Of each group. A multiple of `width` at every level keeps the groups equal at the last one.
        parts_left = -(-count // (width * _MOST_JOINED))
        rows = _joined_once(frame, rows, count, width * parts_left)
    return rows


def _joined_once(frame: DataFrame, rows: Any, count: int, groups: int) -> Any:
    """Return an RDD whose partitions are contiguous groups of another's, whose sizes differ by one
    at most.

    The n-th RDD of the union has the n-th partition of every group. Larger groups come first: the
    last RDD lacks partitions at its end, where empty ones are added, since a union of this kind
    needs as many in each.
    """
    context: Any = frame.sparkSession.sparkContext
    scala_context = context._jsc.sc()
    pruned = context._jvm.org.apache.spark.rdd.PartitionPruningRDD
    as_seq = context._jvm.PythonUtils.toSeq
    kind = rows.elementClassTag()
    # Sizes differ by one at most: a group of twice the size would be the last task of the stage.
    starts = [group * (count // groups) + min(group, count % groups) for group in range(groups + 1)]
    layers = []
    for offset in range(-(-count // groups)):
        numbers = [start + offset for start, end in pairwise(starts) if start + offset < end]
        layer = pruned.create(rows, as_seq(numbers).toSet())
        lacking = groups - len(numbers)
        layers.append(
            layer.union(scala_context.parallelize(as_seq([]), lacking, kind)) if lacking else layer
        )
    return joined_by_place(frame, layers, groups)


def dealt_by_id(frame: DataFrame, width: int, place: Column) -> DataFrame:
    """Return the rows in `width` partitions, each row in the one that an INT expression gives, 0 to
    `width` - 1.
    """
    if _DEALS_BY_ID:
        given: Any = frame
        dealt: DataFrame = given.repartitionById(width, place)
        return dealt
    # Without that operator a number is given whose hash, by which Spark deals rows, is that place
    key = sf.element_at(
        sf.array(*(sf.lit(number).cast("bigint") for number in numbers_by_partition(width))),
        place + sf.lit(1),
    )
    return frame.repartition(width, key)


@functools.cache
def numbers_by_partition(width: int) -> tuple[int, ...]:
    """Return the least whole number that Spark's hash partitioning brings to each of `width`
    partitions, as BIGINT.
    """
    number_by_partition: dict[int, int] = {}
    number = 0
    while len(number_by_partition) < width:
        number_by_partition.setdefault(stable_hash(number) % width, number)
        number += 1
    return tuple(number_by_partition[partition] for partition in range(width))


# -- executors -------------------------------------------------------------------------------------


def executors_of(sc: SparkContext) -> list[Executor]:
    """Return the living executors by id, without those that Spark excludes; none on a local
    master.
    """
    per_task = cores_per_task(sc)
    executors = []
    for summary in _summaries(sc):
        # the port is there when the executor's block manager has registered
        host = _PORT.sub("", summary.hostPort() or "")
        if host and summary.id() != "driver" and not summary.isExcluded():
            executors.append(Executor(summary.id(), host, int(summary.totalCores()) // per_task))
    return sorted(executors)


def task_slots(sc: SparkContext) -> int:
    """Return how many tasks the cores of all known executors can run at once."""
    per_task = cores_per_task(sc)
    return sum(int(summary.totalCores()) // per_task for summary in _summaries(sc))


def cores_per_task(sc: SparkContext) -> int:
    """Return the cores that a task takes."""
    return int(sc.getConf().get("spark.task.cpus", "1") or 1)


def _summaries(sc: SparkContext) -> list[Any]:
    java: Any = sc._jsc
    listed = java.sc().statusStore().executorList(True)
    return [listed.apply(index) for index in range(listed.size())]


def one_partition(sc: SparkContext, executor: Executor | None) -> "RDD[Any]":
    """Return an RDD of one partition that Spark computes on that executor, if a core of it is free
    in time.

    Spark waits `spark.locality.wait` for the core and takes any other then.
    """
    if executor is None:
        return sc.parallelize([0], 1)
    jvm: Any = sc._jvm
    java: Any = sc._jsc
    # Spark reads this form of a location as an executor; the name of a host alone would admit its
    # other executors too
    places = jvm.PythonUtils.toSeq([f"executor_{executor.host}_{executor.id}"])
    rows = jvm.PythonUtils.toSeq([jvm.scala.Tuple2(b"", places)])
    rdd = java.sc().makeRDD(rows, jvm.scala.reflect.ClassTag.Any())
    return RDD(rdd.toJavaRDD(), sc, NoOpSerializer())


def executor_of_group(sc: SparkContext, group: str) -> str | None:
    """Return the id of the executor that runs the newest task of a job group; None while there is
    none.
    """
    java: Any = sc._jsc
    tracker = java.sc().statusTracker()
    store = java.sc().statusStore()
    jobs = list(tracker.getJobIdsForGroup(group))
    job = tracker.getJobInfo(max(jobs)) if jobs else None
    if job is None or job.isEmpty():
        return None
    for stage in job.get().stageIds():
        tasks = store.taskList(stage, 0, 100)
        running = [
            task
            for task in (tasks.apply(index) for index in range(tasks.size()))
            if task.status() == "RUNNING"
        ]
        if running:
            return str(max(running, key=lambda task: task.taskId()).executorId())
    return None
