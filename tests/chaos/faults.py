"""Faults of a chaos run in real processes: kills, pauses, cuts and full stores, each a function of
the cluster and the dice.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from sparkstorm.common.errors import EmbeddedServerError
from sparkstorm.extensions.embedded.redis import find_redis_binary
from sparkstorm.testing.servers.processes import descendants, is_gone, parent_of, slot_of
from tests.chaos.cluster import ChaosCluster
from tests.chaos.report import DRIVER_DEATH
from tests.system.proxy import Cut, TcpProxy

_PAUSE_S = 3.0
_SLOW_S = 0.05  # of each chunk, either way
_REQUESTS = 200  # within so many a cut strikes
_GARBAGE_BYTES = 4096
_JUMP_S = 86_400.0
# Spark's driver gives all executors up when its time of day jumps over spark.network.timeout (120
# s)
_JUMP_WITH_EXECUTORS_S = 50.0

Strike = Callable[[ChaosCluster, random.Random], None]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _kill_with_all_below(cluster: ChaosCluster, pid: int) -> None:
    """Kill a process, and wait for the end of all that end with it, some a moment later."""
    below = descendants(pid)
    _kill(pid)
    cluster.wait(lambda: all(map(is_gone, below)), "the end of what a killed process had started")


def _pause(pid: int) -> None:
    """Stop a process for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(_PAUSE_S)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _worker(cluster: ChaosCluster, dice: random.Random) -> int:
    found: list[int] = []

    def look() -> bool:
        found[:] = cluster.workers()
        return bool(found)

    cluster.wait(look, "a running worker")
    return dice.choice(found)


def kill_worker(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill a worker."""
    _kill(_worker(cluster, dice))


def kill_two_workers(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill two workers at once, if there are two."""
    first = _worker(cluster, dice)
    second = _worker(cluster, dice)
    _kill(first)
    _kill(second)


def pause_worker(cluster: ChaosCluster, dice: random.Random) -> None:
    """Stop a worker for a while."""
    _pause(_worker(cluster, dice))


def kill_slot(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill a slot's Python process."""
    _kill_with_all_below(cluster, slot_of(_worker(cluster, dice)))


def pause_slot(cluster: ChaosCluster, dice: random.Random) -> None:
    """Stop a slot's Python process for a while."""
    _pause(slot_of(_worker(cluster, dice)))


def kill_daemon(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill the Python daemon that Spark forks slots from."""
    _kill_with_all_below(cluster, parent_of(slot_of(_worker(cluster, dice))))


def kill_executor(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill an executor's JVM, above the Python daemon."""
    _kill_with_all_below(cluster, parent_of(parent_of(slot_of(_worker(cluster, dice)))))


def kill_standalone_worker(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill a worker of Spark's standalone mode, with which its executor ends, and start it
    again.
    """
    assert cluster.pair is not None
    cluster.pair.kill_worker(dice.randrange(2))


def jump_clock(cluster: ChaosCluster, dice: random.Random) -> None:
    """Set the time of the driver's machine forward or back, and kill a worker: the next one begins
    with that time.
    """
    most_s = _JUMP_S if cluster.is_local else _JUMP_WITH_EXECUTORS_S
    cluster.clock.set(dice.uniform(-most_s, most_s))
    kill_worker(cluster, dice)


def end_driver(cluster: ChaosCluster) -> None:
    """Kill the driver, and wait for the end of all that it has started."""
    assert cluster.driver is not None
    below = descendants(cluster.driver.pid)
    cluster.driver.kill()
    cluster.driver.wait()
    cluster.wait(lambda: all(map(is_gone, below)), "the end of the driver's processes", 60)


def kill_driver(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill the driver, and start another one."""
    end_driver(cluster)
    cluster.start_driver()


def pause_driver(cluster: ChaosCluster, dice: random.Random) -> None:
    """Stop the driver, and with it Nimbus, for a while."""
    assert cluster.driver is not None
    _pause(cluster.driver.pid)


def kill_redis(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill Redis and start it again."""
    cluster.redis.kill()
    cluster.redis.restart()


def pause_redis(cluster: ChaosCluster, dice: random.Random) -> None:
    """Stop Redis for a while."""
    _pause(cluster.redis.pid)


def kill_zookeeper(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill ZooKeeper and start it again."""
    cluster.zookeeper.kill()
    cluster.zookeeper.restart()


def pause_zookeeper(cluster: ChaosCluster, dice: random.Random) -> None:
    """Stop ZooKeeper for a while."""
    _pause(cluster.zookeeper.pid)


def cut_redis(cluster: ChaosCluster, dice: random.Random) -> None:
    """Break every connection to Redis."""
    cluster.redis_proxy.cut_all()


def cut_zookeeper(cluster: ChaosCluster, dice: random.Random) -> None:
    """Break every connection to ZooKeeper."""
    cluster.zookeeper_proxy.cut_all()


def _cut_request(cut: Cut, cluster: ChaosCluster, dice: random.Random) -> None:
    """Break one connection to Redis at a drawn request; one that was to come late reaches Redis
    afterwards.
    """
    fault = cluster.redis_proxy.add_fault(cut, dice.randint(1, _REQUESTS))
    cluster.wait(lambda: fault.is_done, "a request to cut")
    if cut is Cut.LATE_REQUEST:
        cluster.wait_at_work()
        cluster.redis_proxy.deliver_late()


def _half_open(proxy: TcpProxy) -> None:
    proxy.pause()
    try:
        time.sleep(_PAUSE_S)
    finally:
        proxy.resume()


def half_open_redis(cluster: ChaosCluster, dice: random.Random) -> None:
    """Keep the connections to Redis open, and forward nothing for a while."""
    _half_open(cluster.redis_proxy)


def half_open_zookeeper(cluster: ChaosCluster, dice: random.Random) -> None:
    """Keep the connections to ZooKeeper open, and forward nothing for a while."""
    _half_open(cluster.zookeeper_proxy)


def _slow(proxy: TcpProxy) -> None:
    proxy.delay_s = _SLOW_S
    try:
        time.sleep(_PAUSE_S)
    finally:
        proxy.delay_s = 0.0


def slow_redis(cluster: ChaosCluster, dice: random.Random) -> None:
    """Make every exchange with Redis slow for a while."""
    _slow(cluster.redis_proxy)


def slow_zookeeper(cluster: ChaosCluster, dice: random.Random) -> None:
    """Make every exchange with ZooKeeper slow for a while."""
    _slow(cluster.zookeeper_proxy)


def full_memory(cluster: ChaosCluster, dice: random.Random) -> None:
    """Leave Redis without memory for a while."""
    with cluster.redis.client() as client:
        limit = client.config_get("maxmemory")["maxmemory"]
        client.config_set("maxmemory", "1mb")
        try:
            time.sleep(_PAUSE_S)
        finally:
            client.config_set("maxmemory", limit)


def full_disk(cluster: ChaosCluster, dice: random.Random) -> None:
    """Leave Redis without room on its file system for a while."""
    filler = cluster.redis.data_dir / "filler"
    try:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        until = time.monotonic() + _PAUSE_S
        while time.monotonic() < until:
            # what Redis gives back by a rewrite
            with filler.open("ab", buffering=0) as file, suppress(OSError):
                file.write(bytes(4096))
            time.sleep(0.05)
    finally:
        filler.unlink()


def _append_only_file(cluster: ChaosCluster) -> Path:
    files = [path for path in cluster.redis.data_dir.rglob("*.aof") if path.stat().st_size]
    return max(files, key=lambda path: path.stat().st_mtime_ns)


def torn_log(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill Redis, cut the end off its append-only file in the middle of a command, and start it
    again.
    """
    cluster.redis.kill()
    with _append_only_file(cluster).open("r+b") as file:
        file.truncate(max(0, file.seek(0, os.SEEK_END) - dice.randint(1, 200)))
    cluster.redis.restart()


def corrupt_log(cluster: ChaosCluster, dice: random.Random) -> None:
    """Kill Redis, overwrite the end of its append-only file with garbage, fix it as an operator
    does, and start it again.

    A file system that loses power leaves such an end; Redis refuses it until redis-check-aof has
    cut it off.
    """
    cluster.redis.kill()
    path = _append_only_file(cluster)
    with path.open("r+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - dice.randint(0, 200)))
        file.write(bytes(_GARBAGE_BYTES) if dice.random() < 0.5 else dice.randbytes(_GARBAGE_BYTES))
    try:
        cluster.redis.restart()
    except EmbeddedServerError:
        check = ["redis-check-aof", "--fix", str(path)]
        mended = subprocess.run(
            check, executable=find_redis_binary(), input=b"y\n", capture_output=True, check=False
        )
        assert mended.returncode == 0, mended.stdout[-500:]
        cluster.redis.restart()


def _both(first: Strike, second: Strike, cluster: ChaosCluster, dice: random.Random) -> None:
    first(cluster, dice)
    second(cluster, dice)


LOCAL_FAULTS: Mapping[str, Strike] = {
    "kill worker": kill_worker,
    "kill two workers": kill_two_workers,
    "pause worker": pause_worker,
    "kill slot": kill_slot,
    "pause slot": pause_slot,
    "kill Python daemon": kill_daemon,
    DRIVER_DEATH: kill_driver,
    "pause driver": pause_driver,
    "kill Redis": kill_redis,
    "pause Redis": pause_redis,
    "kill ZooKeeper": kill_zookeeper,
    "pause ZooKeeper": pause_zookeeper,
    "cut Redis": cut_redis,
    "cut ZooKeeper": cut_zookeeper,
    "half a request to Redis": partial(_cut_request, Cut.WITHIN_REQUEST),
    "lost reply of Redis": partial(_cut_request, Cut.BEFORE_REPLY),
    "late request to Redis": partial(_cut_request, Cut.LATE_REQUEST),
    "half-open Redis": half_open_redis,
    "half-open ZooKeeper": half_open_zookeeper,
    "slow Redis": slow_redis,
    "slow ZooKeeper": slow_zookeeper,
    "full memory of Redis": full_memory,
    "torn AOF": torn_log,
    "corrupt AOF": corrupt_log,
    "worker and Redis": partial(_both, kill_worker, kill_redis),
    "slot and ZooKeeper": partial(_both, kill_slot, kill_zookeeper),
}
DISK_FAULTS: Mapping[str, Strike] = {"full disk of Redis": full_disk}
"""Only where Redis could be given its own file system, which takes the right to mount one."""
EXECUTOR_FAULTS: Mapping[str, Strike] = {"kill executor JVM": kill_executor}
"""Only on masters that have executors, such as local-cluster[2,7,1024]."""
STANDALONE_FAULTS: Mapping[str, Strike] = {"kill standalone worker": kill_standalone_worker}
"""Only on a master and workers of Spark's standalone mode."""
CLOCK_FAULTS: Mapping[str, Strike] = {"clock jump and worker": jump_clock}
"""Only where a C compiler makes the library that changes the time of a driver's processes."""
FAULTS: Mapping[str, Strike] = {
    **LOCAL_FAULTS,
    **DISK_FAULTS,
    **EXECUTOR_FAULTS,
    **STANDALONE_FAULTS,
    **CLOCK_FAULTS,
}
ENDURED = frozenset(
    {
        *(f"pause {part}" for part in ("worker", "slot", "driver", "Redis", "ZooKeeper")),
        *(
            f"{state} {server}"
            for state in ("half-open", "slow")
            for server in ("Redis", "ZooKeeper")
        ),
        *("full memory of Redis", "full disk of Redis", "late request to Redis"),
    }
)
"""Faults that last a while; recovery counts from their end."""
