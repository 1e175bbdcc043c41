"""Slots that end before they are up: the run says why, in Python's own words, without waiting a
minute.
"""

from __future__ import annotations

import pytest

from sparkstorm.driver.hosting.spark import _cause_of

JAVA = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "slot_main.py", line 20, in <module>
    import redis
ModuleNotFoundError: No module named 'redis'
 SQLSTATE: 38000
	at org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1097)
"""


KILLED = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 1.0 (TID 1) (localhost executor driver): org.apache.spark.SparkException: Python worker exited \
unexpectedly (crashed): Fatal Python error: Segmentation fault
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handleException(PythonRunner.scala:700)
"""


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (JAVA, "ModuleNotFoundError: No module named 'redis'"),
        (
            JAVA.partition("org.apache.spark.api.python.PythonException")[0],
            "Job aborted due to stage failure",
        ),
        (KILLED, "Python worker exited unexpectedly (crashed)"),
        ("", "RuntimeError: "),
    ],
)
def test_a_slot_jobs_end_is_one_line_with_the_cause_that_helps_most(said: str, cause: str) -> None:
    told = _cause_of(RuntimeError(said))
    assert cause in told and "\n" not in told
