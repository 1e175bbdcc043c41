"""RedisSource and RedisSink on a real Redis: entries once over restarts and deaths, trimmed
streams, mistakes.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks.embedded_stores import version_of
from sparkstorm.api import TopologyBuilder, TransactionalSink
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.connectors import RedisSink, RedisSource, SparkFrame
from sparkstorm.connectors.patience import Secret
from sparkstorm.connectors.spark_frame import _Target
from sparkstorm.extensions.embedded import RedisServer, start_redis
from sparkstorm.extensions.embedded.redis import CHOSEN_SERVER, find_redis_binary
from sparkstorm.testing import CaptureBolt, LocalCluster
from tests.connectors.crashing_sink import die_everywhere, feed
from tests.connectors.test_refused_rows import parked
from tests.connectors.test_sql import Bench as SqlBench
from tests.transport.bare_redis import debian_redis
from tests.waiting import wait_until

names = (f"links-{number}" for number in itertools.count())


class Bench(SqlBench):
    """One task of a RedisSource."""


@pytest.fixture
def url(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TEST_REDIS_PASSWORD", redis_server.password)
    return url_of(redis_server)


def url_of(server: RedisServer) -> str:
    return f"redis://{server.host}:{server.port}"


def test_entries_come_once_with_id_and_time_over_restarts(
    url: str, redis_server: RedisServer
) -> None:
    one, two = next(names), next(names)
    source = RedisSource(
        url, [one, two], ["page", "user"], follow=False, password_env="TEST_REDIS_PASSWORD"
    )
    with redis_server.client() as client:
        client.xadd(one, {"page": "a", "user": b"\xff"}, "5-1")
        client.xadd(two, {"page": "b"}, "6-0")
        bench: Any = Bench(source)
        assert sorted(bench.step(), key=str) == [("a", "\ufffd", "5-1", 5), ("b", None, "6-0", 6)]
        assert source.is_exhausted()
        position = source.snapshot()
        source.close()
        client.xadd(one, {"page": "c"}, "7-0")
        bench = Bench(source, position)
        assert bench.step() == [("c", None, "7-0", 7)]
        source.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_entries_are_read_in_both_forms_of_answers_with_fields_in_any_order(
    url: str, redis_server: RedisServer, protocol: int
) -> None:
    name = next(names)
    source = RedisSource(
        f"{url}?protocol={protocol}",
        name,
        ["page", "user"],
        follow=False,
        password_env="TEST_REDIS_PASSWORD",
    )
    with redis_server.client() as client:
        client.xadd(name, {"page": "a", "user": "u"}, "5-1")
        client.xadd(name, {"user": "v", "more": "x", "page": "b"}, "5-2")
    bench: Any = Bench(source)
    assert bench.step() == [("a", "u", "5-1", 5), ("b", "v", "5-2", 5)]
    source.close()


def test_the_end_where_a_source_began_outlasts_a_restart_before_its_first_entry(
    url: str, redis_server: RedisServer
) -> None:
    there, later = next(names), next(names)
    source = RedisSource(url, [there, later], ["n"], first="$", password_env="TEST_REDIS_PASSWORD")
    with redis_server.client() as client:
        client.xadd(there, {"n": "0"}, "5-1")
        bench: Any = Bench(source)
        bench.source.next_tuple()
        result = [{name: id for name, (id, _) in kept.items()} for kept in bench.kept]
        assert result == [{there: "5-1", later: "0-0"}]
        source.close()
        client.xadd(there, {"n": "1"}, "6-0")
        client.xadd(later, {"n": "2"}, "7-0")
        bench = Bench(source, bench.kept[0])
        bench.source.next_tuple()
        assert sorted(bench.rows) == [("1", "6-0", 6), ("2", "7-0", 7)] and not bench.kept
        source.close()


def test_a_server_that_runs_a_long_script_is_waited_for(
    url: str, redis_server: RedisServer
) -> None:
    name = next(names)
    source = RedisSource(url, name, ["n"], follow=False, password_env="TEST_REDIS_PASSWORD")
    bench: Any = Bench(source)
    with (
        redis_server.client() as client,
        redis_server.client() as other,
        ThreadPoolExecutor(1) as threads,
    ):
        client.xadd(name, {"n": "1"}, "5-0")
        client.config_set("lua-time-limit", 1)
        try:
            threads.submit(other.eval, "while true do end", 0)
            wait_until(lambda: is_busy(client), "the script runs")
            bench.source.next_tuple()
            assert bench.rows == [] and "cannot be reached: BUSY" in bench.errors[0]
            client.script_kill()
            wait_until(lambda: not is_busy(client), "the script has ended")
        finally:
            client.config_set("lua-time-limit", 5000)
        bench.at_ms += 1000
        assert bench.step() == [("1", "5-0", 5)]
    source.close()


def is_busy(client: Any) -> bool:
    try:
        return not client.ping()
    except redis.ResponseError:
        return True


def test_batches_of_a_checkpoint_that_was_given_up_fence_none_of_the_next_one(
    url: str, redis_server: RedisServer
) -> None:
    from pyspark.sql import Row
    from pyspark.sql.types import LongType, StructType

    name = next(names)
    target = _Target(
        url,
        Secret("test", None, "TEST_REDIS_PASSWORD"),
        name,
        "query",
        1000,
        StructType().add("n", LongType()),
    )
    sent = [(batch, n) for n, batch in enumerate((3, 4, 5, 5, 0, 1, 2, 3, 4, 5))]  # one is repeated
    for batch, n in sent:
        target.forget(batch)
        target.write(batch, 0, [Row(n=n)])
    with redis_server.client() as client:
        result = [entry[b"row"] for _, entry in client.xrange(name)]
        assert result == [b'{"n":%d}' % n for n in range(10) if n != 3]


@pytest.fixture
def redis_7(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A Redis that counts the entries of a stream: the embedded one, else Debian's."""
    if not re.search("v=([7-9]|[1-9][0-9])", version_of(find_redis_binary())):
        if shutil.which("apt-get") is None:
            pytest.skip(
                "Redis before 7 does not count what was removed, and there is no apt-get to fetch a newer one with"
            )
        monkeypatch.setenv(CHOSEN_SERVER, debian_redis())
    server = start_redis(tmp_path, password="of-this-test")
    monkeypatch.setenv("TEST_REDIS_PASSWORD", server.password)
    yield server
    server.stop()


def read_to_six(source: RedisSource, client: Any, name: str) -> Any:
    """Position behind the entries 5-0 and 6-0 of a stream of which the first one, 4-0, was trimmed
    before.
    """
    for number in (4, 5, 6):
        client.xadd(name, {"page": "x"}, f"{number}-0")
    client.xtrim(name, maxlen=2, approximate=False)
    bench: Any = Bench(source)
    assert len(bench.step()) == 2
    position = source.snapshot()
    source.close()
    assert position == {name: ["6-0", 3]}
    return position


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (
            [("XADD", "7-0"), ("XADD", "8-0"), ("XTRIM", 1)],
            r"1 entry was trimmed and never read of stream links-\d+ behind 6-0",
        ),
        ([("XADD", "7-0"), ("XTRIM", 0)], "1 entry was trimmed and never read"),
        ([("XADD", "7-0"), ("XDEL", "7-0")], "entries up to 7-0 were deleted and never read"),
        (
            [("DEL",), ("XADD", "7-0")],
            "an unknown number of entries was deleted with the stream: 3 had been read, 2 were added since",
        ),
    ],
)
def test_entries_that_were_removed_before_they_were_read_are_named(
    redis_7: RedisServer, harm: list[Any], sentence: str
) -> None:
    name = next(names)
    source = RedisSource(
        url_of(redis_7), name, ["page"], follow=False, password_env="TEST_REDIS_PASSWORD"
    )
    with redis_7.client() as client:
        position = read_to_six(source, client, name)
        for step in harm:
            do(client, name, *step)
        do(client, name, "XADD", "9-0")
    with pytest.raises(InvalidConfigError, match=rf'{sentence}.* set lost="skip"'):
        Bench(source, position).step()
    source.close()
    skipping = RedisSource(
        url_of(redis_7),
        name,
        ["page"],
        lost="skip",
        follow=False,
        password_env="TEST_REDIS_PASSWORD",
    )
    assert Bench(skipping, position).step()[-1] == ("x", "9-0", 9)
    skipping.close()


def test_entries_that_were_removed_after_they_were_read_are_no_loss(redis_7: RedisServer) -> None:
    name = next(names)
    source = RedisSource(
        url_of(redis_7), name, ["page"], follow=False, password_env="TEST_REDIS_PASSWORD"
    )
    with redis_7.client() as client:
        position = read_to_six(source, client, name)
        do(client, name, "XTRIM", 0)
        do(client, name, "XADD", "9-0")
    assert Bench(source, position).step() == [("x", "9-0", 9)]
    source.close()


def do(client: Any, name: str, command: str, *arguments: Any) -> None:
    """Carry out one command on a stream; XADD takes the id, XTRIM the length that is left."""
    if command == "XADD":
        client.xadd(name, {"page": "x"}, *arguments)
    elif command == "XTRIM":
        client.xtrim(name, *arguments, approximate=False)
    else:
        client.execute_command(command, name, *arguments)


def test_rows_are_in_the_stream_once_whatever_dies(url: str, redis_server: RedisServer) -> None:
    def make(number: int) -> tuple[TransactionalSink, Callable[[], None]]:
        name = next(names)

        def check() -> None:
            with redis_server.client() as client:
                found = [entry for _, entry in client.xrange(name)]
            assert found == [
                {b"n": str(n).encode(), b"text": f"text {n}".encode()} for n in range(20)
            ]

        return RedisSink(url, name, password_env="TEST_REDIS_PASSWORD"), check

    assert die_everywhere(make) > 8


def test_mistakes_are_one_sentence(
    url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(names)
    with redis_server.client() as client:
        client.set(name, "no stream")
    sentence = r"'sink' .*: stream links-\d+ of Redis at .*WRONGTYPE"
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(RedisSink(url, name, password_env="TEST_REDIS_PASSWORD"), ["n"], [[1]])
    source = RedisSource(url, name, ["a"], password_env="TEST_REDIS_PASSWORD")
    with pytest.raises(InvalidConfigError, match=r"component 'sql', Redis at redis://.*WRONGTYPE"):
        Bench(source).step()
    source.close()
    monkeypatch.setenv("TEST_REDIS_PASSWORD", "wrong")
    sentence = r"Redis at .*; name the password's place with password_file or password_env"
    with pytest.raises(WorkerFailedError, match=sentence):
        feed(RedisSink(url, name, password_env="TEST_REDIS_PASSWORD"), ["n"], [[1]])
    sentence = "the environment variable NOT_THERE is not set on this host"
    with pytest.raises(InvalidConfigError, match=sentence):
        Bench(RedisSource(url, name, ["a"], password_env="NOT_THERE")).step()


def test_rows_of_a_frame_are_deleted_when_all_before_them_are_done_and_what_is_no_row_is_bad(
    url: str, redis_server: RedisServer
) -> None:
    name, builder = next(names), TopologyBuilder()
    rows, bad = CaptureBolt(), CaptureBolt()
    with redis_server.client() as client:
        for row in (
            '{"n": 1}',
            '{"n": "x"}',
            "[1",
            '{"n": 2}',
            '{"n": ' + "9" * 3000 + "}",
            '{"m": 5}',
            "\x00",
        ):
            client.xadd(name, {"row": row})
        client.xadd(name, {"other": "n"})
        client.xadd(name, {"row": '{"n": 3}'})
        builder.set_spout(
            "frame", SparkFrame(url, name, {"n": "bigint"}, password_env="TEST_REDIS_PASSWORD")
        )
        builder.set_bolt("rows", rows, inputs="frame")
        builder.set_bolt("bad", bad, inputs="frame:bad")
        with LocalCluster() as cluster:
            cluster.submit(builder.build())
            cluster.run_until(lambda: len(rows.values) + len(bad.values) >= 9)
            cluster.run_until(lambda: client.xlen(name) == 0)
    assert [row[0] for row in rows.values if row[0] is not None] == [1, 2, 3]
    signs = (
        "field 'n' is 'x', not a whole number",
        "no JSON",
        "which bigint does not hold",
        "no JSON",
        "no JSON",
    )
    assert all(sign in row[2] for sign, row in zip(signs, bad.values, strict=True))
    source = SparkFrame(url, name, ["n"], password_env="TEST_REDIS_PASSWORD")
    with redis_server.client() as client:
        ids = [client.xadd(name, {"row": f'{{"n": {n}}}'}).decode() for n in range(3)]
        bench: Any = Bench(source)
        assert bench.step() == [(0,), (1,), (2,)]
        source.ack(ids[1])
        source.next_tuple()
        assert client.xlen(name) == 3  # the first one is not done
        source.ack(ids[0])
        source.next_tuple()
        assert [id.decode() for id, _ in client.xrange(name)] == ids[2:]
    source.close()


def test_a_row_of_more_fields_than_a_script_takes_is_parked_and_the_others_are_written_once(
    url: str, redis_server: RedisServer
) -> None:
    name = next(names)
    most = [f"f{n}" for n in range(3_900)]
    sink = RedisSink(url, name, password_env="TEST_REDIS_PASSWORD")
    assert parked(sink, [tuple(most)], most) == []
    with pytest.raises(ValueError, match="a row of 3901 fields that are not null"):
        parked(sink, [(*most, "x")], [*most, "x"])
    with redis_server.client() as client:
        assert client.xlen(name) == 1
