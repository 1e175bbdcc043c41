"""Spark driver for tests: starts slots of the spec that it reads, prints "up", and stops them on request.

Run as `python -m tests.system.slot_driver MASTER COUNT SPEC_FILE [WAIT_MS]`: a line on its standard input, or an interrupt, asks
for a gentle stop. (spark-submit hands no standard input on.)
"""

import signal
import sys
from pathlib import Path

from pyspark import SparkConf

from sparkstorm.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.daemons.slot_main import main as slot_main
from sparkstorm.errors import SlotsUnavailableError
from sparkstorm.hosting.base import SlotSpec
from sparkstorm.hosting.spark import EXECUTOR_WAIT_MS, SparkSlots, make_context, slot_conf


def run(master: str, count: int, spec_file: Path, wait_ms: int = EXECUTOR_WAIT_MS) -> int:
    spec = SlotSpec.from_json(spec_file.read_bytes())
    conf = SparkConf().setMaster(master).setAppName("slots").set("spark.ui.enabled", "false")
    conf.set("spark.executor.memory", "512m").set("spark.driver.host", "127.0.0.1")
    sc = make_context(slot_conf(conf))
    slots = SparkSlots(sc, count, slot_main, spec, lambda: _ask_to_stop(spec))
    try:
        slots.start(wait_ms)
    except SlotsUnavailableError as refused:
        print(f"refused: {refused}", flush=True)
        sc.stop()
        return 3
    print("up", flush=True)
    try:
        if not sys.stdin.buffer.readline():
            signal.pause()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    slots.stop()
    print(f"stopped {slots.running()}", flush=True)
    sc.stop()
    return 0


def _ask_to_stop(spec: SlotSpec) -> None:
    at = spec.zookeeper
    store = ZooKeeperStateStore(ZooKeeperAddress(at.hosts, at.root, at.user, at.password, at.session_timeout_ms))
    store.put(spec.stop_path, b"")
    store.close()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:])))
