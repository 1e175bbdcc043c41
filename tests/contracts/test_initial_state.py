"""The laws of sowing, on the local store and a real Redis: wholly or not at all, any number of
times, never over what has run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from sparkstorm.common.errors import FencedError, StoreUnavailableError
from sparkstorm.data_plane.transport.initial_state import RedisSeeding
from sparkstorm.data_plane.transport.local_reader import LocalSeeding
from sparkstorm.extensions.embedded import RedisServer
from tests.contracts.benches import Bench, LocalBench, RedisBench

Seeding = LocalSeeding | RedisSeeding


@pytest.fixture
def seeding(bench: Bench) -> Iterator[Seeding]:
    if isinstance(bench, LocalBench):
        yield LocalSeeding(bench.store)
        return
    made = RedisSeeding(bench.address, bench.topology)
    yield made
    made.close()


def journal(bench: Bench, task: int) -> list[bytes]:
    return list(bench.reader().record(task).journal)


def test_a_task_gets_its_journal_whole_and_the_same_again_changes_nothing(
    bench: Bench, seeding: Seeding
) -> None:
    # more than goes to Redis at once
    large = [b"head", *(bytes([n]) * (1 << 20) for n in range(9))]
    for _ in range(2):
        seeding.sow(3, iter(large))
        seeding.sow(4, [b"nothing in it"])
        assert journal(bench, 3) == large
        assert journal(bench, 4) == [b"nothing in it"]
        assert journal(bench, 5) == []


def test_one_that_breaks_off_is_not_there_and_leaves_nothing_to_the_next(
    bench: Bench, seeding: Seeding
) -> None:
    def breaks_off() -> Iterator[bytes]:
        yield from (b"x" * (1 << 20) for _ in range(6))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        seeding.sow(3, breaks_off())
    assert journal(bench, 3) == []
    seeding.sow(3, [b"whole"])
    assert journal(bench, 3) == [b"whole"]


def test_a_base_is_written_before_its_journal_and_not_changed_after_it(
    bench: Bench, seeding: Seeding
) -> None:
    def base() -> dict[bytes, bytes]:
        return dict(pair for part in bench.reader().scan_state(3) for pair in part)

    for last in (b"old", b"k7"):  # the first breaks off
        seeding.clear_base(3)
        seeding.add_base(3, [(b"k%d" % n, b"v%d" % n) for n in range(7)])
        seeding.add_base(3, [(last, b"last"), (b"k0", b"v0")])
    whole = {b"k%d" % n: b"v%d" % n for n in range(7)} | {b"k7": b"last"}
    assert base() == whole and seeding.base_size(3) == 8
    seeding.sow(3, [b"journal"])
    seeding.clear_base(3)
    seeding.add_base(3, [(b"k0", b"other")])
    assert base() == whole and seeding.base_size(3) == 8, "the same again changes nothing"
    bench.open().claim("worker", {4: 1})
    with pytest.raises(FencedError, match="newer than any checkpoint"):
        seeding.clear_base(3)
    with pytest.raises(FencedError, match="newer than any checkpoint"):
        seeding.add_base(3, [(b"k0", b"")])
    assert base() == whole
    bench.reader().delete()
    assert base() == {}


def test_nothing_is_sown_once_any_task_was_claimed(bench: Bench, seeding: Seeding) -> None:
    seeding.sow(3, [b"before"])
    claim = bench.open().claim("worker", {4: 1})
    assert claim.record_by_task[4].journal == []
    for task in (3, 4, 5):
        with pytest.raises(FencedError, match="newer than any checkpoint"):
            seeding.sow(task, [b"after"])
    assert journal(bench, 3) == [b"before"] and journal(bench, 4) == []
    bench.reader().delete()
    assert journal(bench, 3) == []


@pytest.mark.system
def test_a_journal_is_not_sown_over_a_lost_connection_behind_which_a_part_may_be_gone(
    redis_server: RedisServer,
) -> None:
    """As of a primary that is lost meanwhile: its replica may lack the last entries."""
    bench = RedisBench(redis_server)
    seeding = RedisSeeding(bench.address, bench.topology)

    def loses() -> Iterator[bytes]:
        yield from (b"x" * (1 << 20) for _ in range(6))
        client = redis_server.client()
        client.delete(bench.key("seed", 3))
        client.client_kill_filter(_type="normal", skipme=True)
        yield b"last"

    with contextlib.closing(bench), contextlib.closing(seeding):
        with pytest.raises(StoreUnavailableError, match=r"may be gone: submit it again"):
            seeding.sow(3, loses())
        assert journal(bench, 3) == []
