"""Checks what an owner makes of replies that a healthy Redis 6 never gives: newer ones, failing
ones, silence.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import hiredis
import pytest
import redis
from redis.connection import Connection

from sparkstorm.common.errors import (
    InvalidConfigError,
    SparkStormError,
    StoreFullError,
    StoreInconsistentError,
    StoreUnavailableError,
)
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.base import START
from sparkstorm.data_plane.transport.connection import pack, pack_words, receive, send
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.data_plane.transport.servers.opening import open_connection
from sparkstorm.extensions.embedded import RedisServer
from tests.contracts.benches import RedisBench, read
from tests.system.proxy import redis_request


class ScriptedRedis:
    """A server that answers each EVALSHA with the next of the given lines, and everything else
    agreeably.

    `always` is for requests with a word: the first that fits is the answer ("" fits every request).
    """

    def __init__(self, *answers: bytes, always: Mapping[bytes, bytes] | None = None) -> None:
        self._answers, self._always = list(answers), always or {}
        self.evaluations = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = RedisAddress("127.0.0.1", self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                self._converse(client)

    def _converse(self, client: socket.socket) -> None:
        buffer = b""
        while chunk := client.recv(65536):
            buffer += chunk
            while length := redis_request(buffer):
                client.sendall(self._answer(buffer[:length]) + b"\r\n")
                buffer = buffer[length:]

    def _answer(self, request: bytes) -> bytes:
        for word, answer in self._always.items():
            if word in request:
                return answer
        if b"EVALSHA" in request:
            self.evaluations += 1
            return self._answers.pop(0) if self._answers else CLAIMED
        for word, answer in (
            (b"SCRIPT", b"$3\r\nsha"),
            (b"LRANGE", b"*0"),
            (b"HGETALL", b"*0"),
            (b"XREVRANGE", b"*0"),
            (b"GET", b"$-1"),
        ):
            if word in request:
                return answer
        return b"+OK"


CLAIMED = b"*7\r\n$2\r\nOK\r\n$2\r\nid\r\n$1\r\nt\r\n:1\r\n$0\r\n\r\n$1\r\n0\r\n$1\r\n0"


@pytest.fixture
def servers() -> Iterator[list[ScriptedRedis]]:
    made: list[ScriptedRedis] = []
    yield made
    for server in made:
        server.close()


PASSING = [
    b"-LOADING Redis is loading the dataset in memory",
    b"-READONLY You can't write against a read only replica.",
    b"-ERR Error running script: @user_script:9: -READONLY You can't write against a read only replica.",
    b"-BUSY Redis is busy running a script.",
    b"-CLUSTERDOWN The cluster is down",
    b"-TRYAGAIN Multiple keys request",
    b"-NOREPLICAS Not enough good replicas to write.",
    b"-MASTERDOWN Link with MASTER is down",
    b"-NOSCRIPT No matching script. Please use EVAL.",
    b"-ERR max number of clients reached",
    b"?what",
]


@pytest.mark.parametrize("answer", PASSING, ids=lambda answer: answer.decode()[1:18])
def test_a_passing_refusal_is_waited_out(servers: list[ScriptedRedis], answer: bytes) -> None:
    servers.append(ScriptedRedis(answer, answer))
    transport = RedisTransport(servers[0].address, "t", patience_s=10)
    assert transport.claim("o", {1: 1}).record_by_task[1].cursor == START
    assert servers[0].evaluations == 3
    transport.close()


@pytest.mark.parametrize("answer", PASSING[:3], ids=lambda answer: answer.decode()[1:18])
def test_one_that_does_not_pass_is_told_when_patience_is_over(
    servers: list[ScriptedRedis], answer: bytes
) -> None:
    servers.append(ScriptedRedis(*[answer] * 100))
    transport = RedisTransport(servers[0].address, "t", patience_s=0.1)
    sentence = r"did not come back in 0\.1 s: .*(read only|loading)"
    with pytest.raises(StoreUnavailableError, match=sentence):
        transport.claim("o", {1: 1})
    transport.close()


@pytest.mark.parametrize(
    ("answer", "error", "complaint"),
    [
        (
            b"-OOM command not allowed when used memory > 'maxmemory'. script: 1, on @user_script:1.",
            StoreFullError,
            "maxm",
        ),
        (
            b"-ERR Error running script: @user_script: 1: -OOM command not allowed when used",
            StoreFullError,
            r"^Redis refuses writes: OOM command not allowed when used \(raise its maxmemory",
        ),
        (
            b"-MISCONF Redis is configured to save RDB snapshots, but it's unable to",
            StoreFullError,
            r"MISCONF.* \(make room on its disk\)",
        ),
        (
            b"-WRONGTYPE Operation against a key holding the wrong kind of value",
            StoreInconsistentError,
            "WRONGTYPE",
        ),
        (
            b"-NOPERM this user has no permissions to run the 'evalsha' command",
            StoreInconsistentError,
            "no permissions",
        ),
        (b"-MOVED 1234 10.0.0.1:6379", InvalidConfigError, r"10.0.0.1.*redis\+cluster://"),
        (b"-ASK 1234 10.0.0.1:6379", InvalidConfigError, r"10.0.0.1.*redis\+cluster://"),
        (b"-NOAUTH Authentication required.", StoreUnavailableError, "wants a password"),
    ],
    ids=lambda value: value.decode()[1:12] if isinstance(value, bytes) else "",
)
def test_a_lasting_refusal_is_told_at_once(
    servers: list[ScriptedRedis], answer: bytes, error: type[SparkStormError], complaint: str
) -> None:
    servers.append(ScriptedRedis(answer))
    transport = RedisTransport(servers[0].address, "t", patience_s=600)
    with pytest.raises(error, match=complaint):
        transport.claim("o", {1: 1})
    assert servers[0].evaluations == 1
    transport.close()


WRONG = b"-WRONGPASS invalid username-password pair or user is disabled."
MISSING = b"-NOAUTH Authentication required."
UNKNOWN = b"-ERR unknown subcommand 'SETINFO'. Try CLIENT HELP."


@pytest.mark.parametrize(
    ("password", "always", "fault"),
    [
        (
            "wrong",
            {b"AUTH": WRONG, b"": MISSING},
            "refuses our password: invalid username-password pair",
        ),
        (
            "wrong",
            {b"AUTH": b"-ERR invalid password", b"": MISSING},
            "refuses our password: invalid password",
        ),
        ("", {b"": MISSING}, "wants a password and none is set .*: Authentication required"),
        (
            "",
            {b"SETINFO": UNKNOWN, b"": MISSING},
            "wants a password and none is set .*: Authentication required",
        ),
    ],
    ids=["Redis 6.2 to 7.x, Valkey", "Redis 5", "none: Redis 6.2, 7.2, Valkey", "none: Redis 7.0"],
)
def test_a_refused_password_is_named_alike_for_every_version(
    servers: list[ScriptedRedis], password: str, always: dict[bytes, bytes], fault: str
) -> None:
    servers.append(ScriptedRedis(always=always))
    address = replace(servers[0].address, password=password)
    transport = RedisTransport(address, "t", patience_s=600)
    with pytest.raises(StoreUnavailableError, match=f"^Redis at 127.0.0.1:{address.port} {fault}"):
        transport.claim("o", {1: 1})
    transport.close()


@pytest.mark.system
def test_a_peer_that_falls_silent_is_given_up_and_asked_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkstorm.data_plane.transport.reading._BLOCK_MS", 50)
    monkeypatch.setattr("sparkstorm.data_plane.transport.reading._READ_TIMEOUT_S", 0.1)
    bench = RedisBench(redis_server)
    owner = bench.open()
    owner.claim("o", {1: 1})
    assert owner.poll({1: START.entry}, 1) == []
    bench.proxy.pause()  # the question went out, its answer never comes
    deadline = time.monotonic() + 60
    while owner._reading._connection is not None:
        assert owner.poll({1: START.entry}, 1) == []
        assert time.monotonic() < deadline
        owner.wait(10)
    bench.proxy.resume()
    bench.client.xadd(bench.key("task", 1), {"f": b"a"})
    assert [e.data for e in read(owner, {1: START.entry}, 1)] == [b"a"]
    bench.close()


def test_large_words_are_sent_as_they_are() -> None:
    words = (
        "EVALSHA",
        b"x",
        1,
        "t\u00e9xt",
        2.5,
        b"l" * (1 << 16),
        "",
        "s" * (1 << 16),
        b"e" * (1 << 15),
    )
    parts = pack(*words)
    assert b"".join(parts) == b"".join(Connection().pack_command(*words))  # type: ignore[no-untyped-call]
    assert any(part is words[5] for part in parts)


@pytest.mark.system
def test_a_server_that_neither_answers_nor_reads_is_given_up_in_time(
    redis_server: RedisServer,
) -> None:
    bench = RedisBench(redis_server)
    one, other = (open_connection(bench.address, 0.2) for _ in range(2))
    bench.proxy.pause()
    send(one, pack("PING"))
    began = time.monotonic()
    with pytest.raises(redis.TimeoutError, match="does not answer"):
        receive(one)
    with pytest.raises(redis.TimeoutError, match="takes in nothing more"):
        send(other, [b"x" * (64 << 20)])
    assert 0.2 < time.monotonic() - began < 20
    other.disconnect()  # type: ignore[no-untyped-call]
    bench.proxy.resume()
    bench.close()


@pytest.mark.parametrize("size", [0, 3, 16 * 1024 - 1, 16 * 1024, 40_000])
def test_a_request_has_each_command_behind_its_length(size: int) -> None:
    head = ["EVALSHA", b"sha", 1, -1, 2**63, "\u00e4\0\u20ac"]
    commands = [("RPUSH", "key", b"x" * size), ("HSET", "key", 7, "y" * size)]
    words = (*head, 3, *commands[0], 4, *commands[1])
    assert b"".join(pack_words(head, commands)) == hiredis.pack_command((*words,))  # type: ignore[arg-type]  # its stub takes one type for all words
