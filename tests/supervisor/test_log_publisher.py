"""Publication of a worker's log in Redis: whole lines, bounded, exact over rotations, and never in
anybody's way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.worker_spec import RedisAddress, RedisStores
from sparkstorm.control_plane.nimbus.redis_cleanup import RedisRetirement
from sparkstorm.control_plane.supervisor.log_publisher import (
    MAX_BYTES_AT_ONCE,
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    PERIOD_MS,
    RETRY_MS,
    LogPublisher,
)
from sparkstorm.control_plane.supervisor.worker_process import rotate_log
from sparkstorm.data_plane.transport.keys import Keys
from sparkstorm.data_plane.transport.reader import RedisReader
from sparkstorm.extensions.embedded import RedisServer

pytestmark = pytest.mark.system
SLOT = WorkerSlot("node-1", 6700)


def address_of(server: RedisServer) -> RedisAddress:
    return RedisAddress(server.host, server.port, server.password)


class Bench:
    """A log, its publisher and a reader on another connection."""

    def __init__(self, server: RedisServer, folder: Path, topology_id: str) -> None:
        self.server, self.log, self.topology_id = server, folder / "worker.log", topology_id
        address = address_of(server)
        self.publisher = LogPublisher(SLOT, RedisStores(address), lambda _: self.log, 5.0)
        self.address = address
        self.reader = RedisReader(address, topology_id)

    def say(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)

    def publish(self) -> bool:
        return self.publisher.publish(self.topology_id)

    def read(self) -> str:
        return b"".join(part for _, part in self.reader.log(str(SLOT))).decode()


@pytest.fixture
def bench(
    redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Bench]:
    made = Bench(redis_server, tmp_path, f"{request.node.name[:60]}-1-1")
    yield made
    made.reader.delete()
    made.reader.close()
    made.publisher.close()


def test_whole_lines_appear_once_and_in_order(bench: Bench) -> None:
    assert bench.publish() and bench.reader.log_slots() == []  # no log yet
    bench.say("one\ntwo\nhal")
    bench.publish()
    bench.publish()
    assert bench.read() == "one\ntwo\n"
    bench.say("f\n")
    bench.publish()
    assert bench.read() == "one\ntwo\nhalf\n"
    assert bench.reader.log_slots() == ["node-1:6700"]
    (_, _), (last, part) = bench.reader.log("node-1:6700")
    assert part == b"half\n" and bench.reader.log("node-1:6700", last) == []


def test_a_rotated_log_goes_on_from_its_new_beginning(bench: Bench) -> None:
    bench.say("before the rotation\n")
    bench.publish()
    rotate_log(bench.log, 5)
    bench.say("after\n")
    bench.publish()
    assert bench.read() == "before the rotation\nafter\n"


def test_a_worker_that_prints_without_end_fills_no_store(bench: Bench) -> None:
    for n in range(40):
        bench.say(f"{n:06}\n" * 20_000)
        bench.publish()
    parts = bench.reader.log(str(SLOT))
    assert len(parts) == MAX_CHUNKS and max(len(part) for _, part in parts) <= MAX_CHUNK_BYTES
    assert bench.read().endswith("000039\n") and "bytes are in the log file only]\n" in bench.read()
    assert len(bench.read()) <= 40 * (MAX_BYTES_AT_ONCE + 100)


def test_a_long_line_is_cut_into_parts_and_bytes_that_are_no_text_stay_bytes(bench: Bench) -> None:
    with bench.log.open("wb") as file:
        file.write(b"\xff" * (3 * MAX_CHUNK_BYTES))
    bench.publish()
    result = b"".join(part for _, part in bench.reader.log(str(SLOT)))
    assert result == b"\xff" * (3 * MAX_CHUNK_BYTES)


def test_a_redis_that_is_away_pauses_it_and_loses_no_line(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    bench = Bench(own_redis, tmp_path, "away-1-1")
    with contextlib.closing(bench.reader), contextlib.closing(bench.publisher):
        bench.say("one\n")
        own_redis.kill()
        assert not bench.publish()
        bench.publisher.step("away-1-1", 1_000)
        own_redis.restart()
        bench.say("two\n")
        bench.publisher.step("away-1-1", 1_000 + RETRY_MS - 1)
        assert bench.reader.log_slots() == []
        bench.publisher.step("away-1-1", 1_000 + RETRY_MS)
        assert bench.read() == "one\ntwo\n"
        bench.say("three\n")
        bench.publisher.step("away-1-1", 1_000 + RETRY_MS + PERIOD_MS - 1)
        assert bench.read() == "one\ntwo\n"


def test_logs_end_with_their_topology_and_are_not_handed_to_its_successor(bench: Bench) -> None:
    bench.say("one\n")
    bench.publish()
    with bench.server.client() as client:
        assert int(client.ttl(Keys(bench.topology_id).log(SLOT))) > 0
        client.hset(Keys(bench.topology_id)("cursor"), "1", "0-1 0")
    RedisRetirement(bench.address).hand_over(bench.topology_id, "successor-2-2")
    assert bench.reader.log_slots() == []
    with contextlib.closing(RedisReader(bench.address, "successor-2-2")) as successor:
        assert successor.record(1).cursor.entry == "0-1" and successor.log_slots() == []
        successor.delete()
    bench.say("two\n")
    bench.publish()
    bench.reader.delete()
    assert bench.reader.log_slots() == []


def test_a_log_goes_to_the_store_of_its_topology_alone(
    redis_server: RedisServer, own_redis: RedisServer, tmp_path: Path
) -> None:
    log = tmp_path / "worker.log"
    log.write_text("a line\n")
    stores = RedisStores(address_of(redis_server), (replace(address_of(own_redis), name="far"),))
    publisher = LogPublisher(SLOT, stores, lambda _: log, 5.0)
    publisher.step("in-far-1", 0, "far")
    publisher.step("in-home-1", PERIOD_MS, "")
    assert publisher.publish("in-far-1"), (
        "last words of a topology that was left: their store is not known any more"
    )
    for topology_id, here, not_here in (
        ("in-far-1", own_redis, redis_server),
        ("in-home-1", redis_server, own_redis),
    ):
        key = Keys(topology_id).log(SLOT)
        with here.client() as client, not_here.client() as other:
            assert client.xlen(key) == 1 and not other.exists(key)
            client.unlink(key)
    publisher.close()
