"""Spark driver for tests: starts slots of the spec that it reads, prints "up", and stops them on
request.

Run as `python -m tests.system.slot_driver MASTER COUNT SPEC_FILE [WAIT_MS]`: a line on its standard
input, or an interrupt, asks for a gentle stop. (spark-submit hands no standard input on.)
"""

import signal
import sys
from dataclasses import replace
from pathlib import Path

from pyspark import SparkConf, SparkContext

from sparkstorm.common.errors import SlotsUnavailableError
from sparkstorm.common.slot_spec import SlotSpec
from sparkstorm.control_plane.cluster.tickets import TicketOffice
from sparkstorm.control_plane.cluster.zookeeper import ZooKeeperAddress, ZooKeeperStateStore
from sparkstorm.control_plane.supervisor.slot_main import main_by_ticket
from sparkstorm.driver.hosting.spark import EXECUTOR_WAIT_MS, SparkSlots, make_context, slot_conf
from sparkstorm.driver.hosting.spark_security import secured


def run(master: str, count: int, spec_file: Path, wait_ms: int = EXECUTOR_WAIT_MS) -> int:
    # a job in the background inherits that it is ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    spec = SlotSpec.from_json(spec_file.read_bytes())
    SparkContext._ensure_initialized()  # reads spark-defaults.conf
    conf = SparkConf().setMaster(master).setAppName("slots").set("spark.ui.enabled", "false")
    conf.set("spark.executor.memory", "512m").set("spark.driver.host", "127.0.0.1")
    sc = make_context(secured(slot_conf(conf), wants_authentication=True))
    at = spec.zookeeper
    address = ZooKeeperAddress(at.hosts, at.root, at.user, at.password, at.session_timeout_ms)
    store = ZooKeeperStateStore(address)
    tickets = TicketOffice(store, address)
    slots = SparkSlots(
        sc,
        count,
        main_by_ticket,
        lambda number: tickets.ticket(replace(spec, number=number).to_json()),
        lambda: store.put(spec.stop_path, b""),
        lambda number: (
            store.delete(spec.stop_path)
            if number is None
            else store.put(spec.stop_path, str(number).encode())
        ),
    )
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
    store.close()
    print(f"stopped {slots.running()}", flush=True)
    sc.stop()
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:])))
