"""Errors of Spark as one sentence: SparkStorm's own errors in a task's stack, unreadable files,
missing modules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame

from sparkstorm.common.errors import InvalidTopologyError, ReplayFailedError, SparkStormError
from sparkstorm.common.spark_versions import CLASSIC_FRAME, java_frame

# Spark hands errors of a task over as the text of their tracebacks: there is no object to look at.
_SENTENCE = re.compile(r"(?:ReplayFailedError|WorkerFailedError|InvalidTopologyError): (.+)")
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
_UNREADABLE = re.compile(r"\[(FAILED_READ_FILE\.\w+)\] .*?reading file ([^\n]+?)\.(?:\s|$)")
# The actions of a DataFrame itself. Those of frames derived from it cannot be reached: Spark
# makes plain frames of them, so a task hides its own stack instead (`one_sentence`).
_ACTIONS = (
    "collect",
    "count",
    "first",
    "head",
    "isEmpty",
    "show",
    "tail",
    "take",
    "toArrow",
    "toPandas",
)
SPARK_ERRORS = PySparkException, Py4JJavaError
Batches = Iterator[pa.RecordBatch]


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise ReplayFailedError with one sentence where an action of Spark in here failed for a known
    reason.
    """
    try:
        yield
    except SPARK_ERRORS as error:
        sentence = _sentence(str(error))
        if sentence is None:
            raise
        # Without its cause: Spark's text has the same
        # sentence again, within a hundred lines of Java.
        raise ReplayFailedError(sentence) from None


def one_sentence(function: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """Return a task's function that hides the stack of SparkStorm's own errors, so that any action
    on a result is readable.

    PySpark reads the variable when it reports an error, and this Python worker ends after that.
    """

    def guarded(batches: Batches) -> Batches:
        try:
            yield from function(batches)
        except SparkStormError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return guarded


class ResultFrame(CLASSIC_FRAME):  # type: ignore[misc]  # which class that is depends on the version
    """A replay's result: a DataFrame whose own actions raise ReplayFailedError with one sentence,
    as `Replay.run` does.

    Frames derived from it, and writers, raise Spark's PythonException, whose second and last line
    is that sentence.
    """


def _translated(name: str) -> Callable[..., Any]:
    action: Callable[..., Any] = getattr(CLASSIC_FRAME, name)

    @wraps(action)
    def translated(self: ResultFrame, *arguments: Any, **named: Any) -> Any:
        with unwrapped():
            return action(self, *arguments, **named)

    return translated


for _name in [name for name in _ACTIONS if hasattr(CLASSIC_FRAME, name)]:
    setattr(ResultFrame, _name, _translated(_name))


def as_result(frame: DataFrame) -> DataFrame:
    """Return a frame as a ResultFrame."""
    return ResultFrame(java_frame(frame), frame.sparkSession)


def check_frame(what: str, frame: Any) -> None:
    """Raise InvalidTopologyError unless this is a DataFrame of a session that replays can run
    in.
    """
    check_session(
        what, getattr(frame, "sparkSession", None) if isinstance(frame, DataFrame) else None
    )
    if not isinstance(frame, CLASSIC_FRAME):
        raise InvalidTopologyError(
            f"{what} is a {type(frame).__name__}, not a DataFrame: make one of it with "
            "spark.createDataFrame(...), or use replay_locally, which takes lists"
        )


def check_session(what: str, session: Any) -> None:
    """Raise InvalidTopologyError for a session of Spark Connect: it runs no operators of ours, and
    has no accumulators.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise InvalidTopologyError(
            f"{what} belongs to a session of Spark Connect, which a replay cannot run in: use a classic one "
            "(spark-submit, or SparkSession.builder.master(...), in the driver's own process)"
        )


def told_shortly(error: Exception) -> ReplayFailedError:
    """Return any failure of Spark as one sentence, for the command line."""
    # Of Python's errors the last line names the cause; of Java's the first one with a cause, since
    # stack frames follow it.
    lines = [line for line in str(error).splitlines() if line.strip()]
    line = (
        lines[-1]
        if isinstance(error, PythonException)
        else next((x for x in lines if x.startswith(": ")), lines[0])
    )
    return ReplayFailedError(
        _sentence(str(error)) or f"Spark failed: {line.removeprefix(': ')[:500]}"
    )


def _sentence(text: str) -> str | None:
    if match := _SENTENCE.search(text):
        return match.group(1)
    if match := _UNREADABLE.search(text):
        return f"Spark cannot read {match.group(2)} ({match.group(1)}): the file is damaged, or of another format"
    if match := _MISSING.search(text):
        return (
            f"executors have no module '{match.group(1)}': install it there, ship it (spark-submit --py-files), or name it in "
            "by_value"
        )
    return None
