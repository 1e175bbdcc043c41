"""A Redis primary, its replica and three Sentinels, all real, whose primary can be killed, frozen
or cut from its replica.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from sparkstorm.embedded.certificates import Certificates
from sparkstorm.embedded.process import free_ports
from sparkstorm.embedded.redis import find_redis_binary
from sparkstorm.model.worker_spec import RedisAddress
from sparkstorm.tls import NO_FILES
from tests.tls_servers import files_of

MASTER = "trial"
DOWN_AFTER_MS = 500
"""Silence after which a Sentinel takes the primary for dead; in production several seconds."""
_LIMIT_S = 300.0


def until(condition: Callable[[], bool], words: str, limit_s: float = _LIMIT_S) -> None:
    """Wait until something holds; AssertionError with these words otherwise."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, words
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Guard:
    """Settings of servers and Sentinels: their binary, the Sentinels' password (empty: none), and
    certificates, with which all of them speak TLS alone and want a certificate of every client.
    """

    binary: str = ""
    sentinel_password: str = ""
    certificates: Certificates | None = None

    def lines(self, port: int) -> list[str]:
        """Return the settings of a server's or Sentinel's port."""
        made = self.certificates
        if made is None:
            return [f"port {port}", "bind 127.0.0.1"]
        return [
            "port 0", f"tls-port {port}", "bind 127.0.0.1", "tls-replication yes", "tls-auth-clients yes",
            f"tls-ca-cert-file {made.ca}", f"tls-cert-file {made.server}", f"tls-key-file {made.server_key}",
            f"tls-client-cert-file {made.client}", f"tls-client-key-file {made.client_key}",
        ]  # fmt: skip

    def client(self, port: int, password: str) -> redis.Redis:
        """A client of that port, with short time limits."""
        made = self.certificates
        options: dict[str, Any] = (
            {} if made is None else {"ssl": True, **files_of(made).for_redis()}
        )
        return redis.Redis(
            port=port,
            host="127.0.0.1",
            password=password or None,
            socket_timeout=2,
            socket_connect_timeout=2,
            **options,
        )


PLAIN = Guard()


class Server:
    """One Redis server on a port of its own; it comes back with its data, and as another version
    when `binary` was changed meanwhile.
    """

    def __init__(
        self, folder: Path, port: int, password: str, *options: str, guard: Guard = PLAIN
    ) -> None:
        folder.mkdir()
        self.folder, self.password, self._options = folder, password, options
        self._guard = guard
        self.binary = guard.binary or find_redis_binary()
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, primary_port: int | None = None) -> None:
        """Start it, as a replica of the server on that port if one is given."""
        settings = [
            *self._guard.lines(self.port), f"dir {self.folder}", "save \"\"", "appendonly yes", "appendfsync no",
            "maxmemory-policy noeviction", f"requirepass {self.password}", f"masterauth {self.password}", "logfile log",
            "repl-diskless-sync-delay 0", *self._options,
        ]  # fmt: skip
        if primary_port is not None:
            settings.append(f"replicaof 127.0.0.1 {primary_port}")
        file = self.folder / "redis.conf"
        file.write_text("\n".join(settings) + "\n")
        self.process = process = subprocess.Popen([self.binary, str(file)], cwd=self.folder)
        until(
            lambda: self.answers() or process.poll() is not None,
            f"the server on {self.port} does not start",
        )
        assert process.poll() is None, f"the server on {self.port} ended: {self.folder}/log"

    @property
    def address(self) -> RedisAddress:
        """Its own address, whatever the Sentinels say."""
        return RedisAddress("127.0.0.1", self.port, self.password)

    def client(self) -> redis.Redis:
        """A client with short time limits."""
        return self._guard.client(self.port, self.password)

    def answers(self) -> bool:
        """Return whether it answers and has loaded its data."""
        return bool(self._ask(lambda client: client.ping()))

    def role(self) -> str:
        """Return "master" or "slave"; empty while it does not answer."""
        return str(self._ask(lambda client: client.info("replication")["role"]) or "")

    def is_linked(self) -> bool:
        """Return whether it is a replica with a whole copy of its primary."""
        found = self._ask(lambda client: client.info("replication")) or {}
        return found.get("role") == "slave" and found.get("master_link_status") == "up"

    def _ask(self, question: Callable[[redis.Redis], Any]) -> Any:
        with contextlib.suppress(redis.RedisError), self.client() as client:
            return question(client)
        return None

    def kill(self) -> None:
        """End it as `kill -9` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Let it stand still, its connections open."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on where it stood."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)


class WatchedRedis:
    """The primary and the replica by turns, and the Sentinels that promote one when the other is
    away.
    """

    def __init__(
        self, folder: Path, *options: str, sentinels: int = 3, guard: Guard = PLAIN
    ) -> None:
        self.guard = guard
        # asked for at once: two that are asked for in a row can be the same
        ports = free_ports(2 + sentinels)
        self.servers = [
            Server(folder / name, port, "of-the-trial", *options, guard=guard)
            for name, port in zip(("one", "two"), ports, strict=False)
        ]
        self.sentinels = ports[2:]
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        one, two = self.servers
        try:
            one.start()
            two.start(one.port)
            until(two.is_linked, "the replica has no copy")
            for port in self.sentinels:
                self._start_sentinel(port, one.port)
            until(
                lambda: all(self._knows_all(port) for port in self.sentinels),
                "the Sentinels do not find each other",
            )
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> RedisAddress:
        """Address that a worker is given."""
        made = self.guard.certificates
        return RedisAddress(
            "127.0.0.1",
            self.sentinels[0],
            "of-the-trial",
            tls=made is not None,
            tls_files=NO_FILES if made is None else files_of(made),
            master=MASTER,
            sentinels=tuple(f"127.0.0.1:{port}" for port in self.sentinels),
            sentinel_password=self.guard.sentinel_password,
        )

    @property
    def url(self) -> str:
        """The same as a configuration has it, without the passwords."""
        scheme = "redis" if self.guard.certificates is None else "rediss"
        return f"{scheme}+sentinel://{','.join(self.address.sentinels)}/{MASTER}"

    def sentinel(self, port: int) -> redis.Redis:
        """A client of a Sentinel."""
        return self.guard.client(port, self.guard.sentinel_password)

    def _start_sentinel(self, port: int, primary_port: int) -> None:
        folder = self._folder / f"sentinel-{port}"
        folder.mkdir()
        file, quorum = folder / "sentinel.conf", len(self.sentinels) // 2 + 1
        lines = [
            *self.guard.lines(port), f"dir {folder}", "logfile log",
            f"sentinel monitor {MASTER} 127.0.0.1 {primary_port} {quorum}",
            f"sentinel auth-pass {MASTER} of-the-trial", f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {MASTER} 4000", f"sentinel parallel-syncs {MASTER} 1",
        ]  # fmt: skip
        if secret := self.guard.sentinel_password:
            lines += [f"requirepass {secret}", f"sentinel sentinel-pass {secret}"]
        file.write_text("\n".join(lines) + "\n")
        binary = self.guard.binary or find_redis_binary()
        self._processes.append(subprocess.Popen([binary, str(file), "--sentinel"], cwd=folder))

    def _knows_all(self, port: int) -> bool:
        with (
            contextlib.suppress(redis.RedisError),
            self.sentinel(port) as client,
        ):
            found = client.sentinel_master(MASTER)
            return bool(
                found["num-other-sentinels"] == len(self.sentinels) - 1 and found["num-slaves"] == 1
            )
        return False

    def named(self) -> int | None:
        """Return the port of the primary by the first Sentinel that answers."""
        for port in self.sentinels:
            with (
                contextlib.suppress(redis.RedisError),
                self.sentinel(port) as client,
            ):
                found = client.sentinel_get_master_addr_by_name(MASTER)
                return int(found[1]) if found else None
        return None

    def primary(self) -> Server:
        """Return the server that the Sentinels name."""
        found: list[Server] = []

        def is_named() -> bool:
            port = self.named()
            found[:] = [each for each in self.servers if each.port == port]
            return bool(found)

        until(is_named, "the Sentinels name no primary")
        return found[0]

    def other(self, server: Server) -> Server:
        """Return the other server."""
        return next(each for each in self.servers if each is not server)

    def until_promoted(self, server: Server) -> None:
        """Wait until that server is the primary, by itself and by the Sentinels."""
        until(
            lambda: server.role() == "master" and self.named() == server.port,
            f"{server.port} is not promoted",
        )

    def make_whole(self) -> None:
        """Bring the other server back as a replica with a whole copy: the next fail-over needs
        one.
        """
        primary = self.primary()
        self.until_promoted(primary)
        other = self.other(primary)
        if other.process is None:
            other.start(primary.port)
        until(other.is_linked, f"{other.port} gets no copy of {primary.port}")
        until(
            lambda: any(self._is_fit(port) for port in self.sentinels),
            "the Sentinels see no replica to promote",
        )

    def _is_fit(self, port: int) -> bool:
        with (
            contextlib.suppress(redis.RedisError),
            self.sentinel(port) as client,
        ):
            replicas = client.sentinel_slaves(MASTER)
            return len(replicas) == 1 and not (
                replicas[0]["is_sdown"] or replicas[0]["is_disconnected"]
            )
        return False

    def close(self) -> None:
        """End all of them."""
        for process in self._processes:
            process.kill()
            process.wait()
        for server in self.servers:
            server.kill()
