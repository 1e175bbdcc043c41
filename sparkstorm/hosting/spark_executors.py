"""Executors of a SparkContext through py4j: which there are, a task for one of them, and where a
task runs.
"""

import re
from typing import Any, Final

from pyspark import RDD, SparkContext
from pyspark.serializers import NoOpSerializer

from sparkstorm.hosting.spread import Executor

_PORT: Final = re.compile(r":\d+$")


def executors_of(sc: SparkContext) -> list[Executor]:
    """Return the living executors by id, without those that Spark excludes; none on a local
    master.
    """
    per_task = int(sc.getConf().get("spark.task.cpus", "1") or 1)
    java: Any = sc._jsc
    listed = java.sc().statusStore().executorList(True)
    found = []
    for summary in (listed.apply(at) for at in range(listed.size())):
        # the port is there when the executor's block manager has registered
        host = _PORT.sub("", summary.hostPort() or "")
        if host and summary.id() != "driver" and not summary.isExcluded():
            found.append(Executor(summary.id(), host, int(summary.totalCores()) // per_task))
    return sorted(found)


def one_partition(sc: SparkContext, at: Executor | None) -> "RDD[Any]":
    """Return an RDD of one partition that Spark computes on that executor, if a core of it is free
    in time.

    Spark waits `spark.locality.wait` for the core and takes any other then.
    """
    if at is None:
        return sc.parallelize([0], 1)
    jvm: Any = sc._jvm
    java: Any = sc._jsc
    # Spark reads this form of a location as an executor; the name of a host alone would admit its
    # other executors too
    places = jvm.PythonUtils.toSeq([f"executor_{at.host}_{at.id}"])
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
            for task in (tasks.apply(at) for at in range(tasks.size()))
            if task.status() == "RUNNING"
        ]
        if running:
            return str(max(running, key=lambda task: task.taskId()).executorId())
    return None
