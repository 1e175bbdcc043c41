"""Hadoop's mini YARN in its own process, with its classes on the path of PySpark's JVM.

`python -m tests.yarn.cluster FOLDER` writes FOLDER/yarn-site.xml when its node managers are there,
says "up", and ends with its standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark import SparkContext

NODES = 2
_WAIT_MS = 300_000
_SETTINGS = {
    # Of a small machine: no host is given up for its size
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.resource.memory-mb": "6144",
    "yarn.nodemanager.resource.cpu-vcores": "4",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.0",
    "yarn.scheduler.minimum-allocation-mb": "256",
    # Without these the mini cluster finds no queue, and no room for an application's master
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    "yarn.minicluster.fixed.ports": "false",
    "yarn.minicluster.control-resource-monitoring": "false",
    "yarn.resourcemanager.scheduler.class": (
        "org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler"
    ),
}


def main(folder: Path) -> None:
    """Serve until the standard input ends."""
    context: Any = SparkContext
    context._ensure_initialized()
    java = context._jvm
    conf = java.org.apache.hadoop.yarn.conf.YarnConfiguration()
    for key, value in _SETTINGS.items():
        conf.set(key, value)
    # one folder of data and one of logs for each node manager
    cluster = java.org.apache.hadoop.yarn.server.MiniYARNCluster("sparkstorm", NODES, 1, 1)
    cluster.init(conf)
    cluster.start()
    if not cluster.waitForNodeManagersToConnect(_WAIT_MS):
        sys.exit("the node managers did not come up")
    output = java.java.io.FileOutputStream(str(folder / "yarn-site.xml"))
    cluster.getConfig().writeXml(output)
    output.close()
    print("up", flush=True)
    sys.stdin.read()
    cluster.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
