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

from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.tls import NO_FILES
from sparkstorm.extensions.embedded.certificates import Certificates
from sparkstorm.extensions.embedded.process import free_ports
from sparkstorm.extensions.embedded.redis import find_redis_binary
from tests.tls_servers import files_of

MASTER = "trial"
DOWN_AFTER_MS = 500
"""Silence after which a Sentinel takes the primary for dead; in production several seconds."""
TILT_MS = 1000
"""Time for which a Sentinel that stood still promotes nothing; 30 s unless set, and it begins anew
with each halt of two seconds. Half would be one round of pings, after which a living primary may
still be taken for dead.
"""
_LIMIT_S = 300.0
# of one look at a condition: no answer takes longer
_LONGEST_LOOK_S = 10.0


def until(
    condition: Callable[[], bool],
    words: str | Callable[[], str],
    limit_s: float = _LIMIT_S,
    every_s: float = 0.02,
) -> None:
    """Wait until something holds; AssertionError with these words otherwise.

    A machine that stands still for minutes takes no more of the time than one long look.
    """
    waited_s, last = 0.0, time.monotonic()
    while not condition():
        now = time.monotonic()
        waited_s += min(now - last, _LONGEST_LOOK_S)
        last = now
        assert waited_s < limit_s, words if isinstance(words, str) else words()
        time.sleep(every_s)


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
    """One Redis server on its own port; it comes back with its data, and as another version
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
        info = self._ask(lambda client: client.info("replication")) or {}
        return info.get("role") == "slave" and info.get("master_link_status") == "up"

    def link_down_s(self) -> int:
        """Return the seconds since a replica lost its primary; 0 or less for any other, and for one
        that has lost none since its start.
        """
        info = self._ask(lambda client: client.info("replication")) or {}
        return int(info.get("master_link_down_since_seconds", 0))

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
        self.watchers: list[subprocess.Popen[bytes]] = []
        self.restarts = 0
        one, two = self.servers
        try:
            one.start()
            two.start(one.port)
            until(two.is_linked, "the replica has no copy")
            for port in self.sentinels:
                self._start_sentinel(port, one.port)
            until(
                lambda: all(self._has_short_halts(port) for port in self.sentinels),
                "the Sentinels do not start",
            )
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
        self.watchers.append(subprocess.Popen([binary, str(file), "--sentinel"], cwd=folder))

    def _has_short_halts(self, port: int) -> bool:
        """Shorten the halts of a Sentinel, where its version can; return whether it answers."""
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            with (
                # Redis 6.2 has no such command
                contextlib.suppress(redis.ResponseError),
                self.sentinel(port) as client,
            ):
                client.execute_command("SENTINEL", "DEBUG", "tilt-period", TILT_MS)
            return True
        return False

    def _knows_all(self, port: int) -> bool:
        with (
            contextlib.suppress(redis.RedisError),
            self.sentinel(port) as client,
        ):
            state = client.sentinel_master(MASTER)
            return bool(
                state["num-other-sentinels"] == len(self.sentinels) - 1 and state["num-slaves"] == 1
            )
        return False

    def named(self) -> int | None:
        """Return the port of the primary by the first Sentinel that answers."""
        for port in self.sentinels:
            with (
                contextlib.suppress(redis.RedisError),
                self.sentinel(port) as client,
            ):
                address = client.sentinel_get_master_addr_by_name(MASTER)
                return int(address[1]) if address else None
        return None

    def primary(self) -> Server:
        """Return the server that the Sentinels name."""
        primaries: list[Server] = []

        def is_named() -> bool:
            port = self.named()
            primaries[:] = [server for server in self.servers if server.port == port]
            return bool(primaries)

        until(is_named, "the Sentinels name no primary")
        return primaries[0]

    def other(self, server: Server) -> Server:
        """Return the other server."""
        return next(other for other in self.servers if other is not server)

    def until_promoted(self, server: Server | None = None, limit_s: float = _LIMIT_S) -> None:
        """Wait until a server, that one if given, is the primary, by itself and by the Sentinels.

        A replica that they refuse is started again.
        """

        def is_promoted() -> bool:
            port = self.named()
            for candidate in self.servers if server is None else [server]:
                if candidate.port == port and candidate.role() == "master":
                    return True
            self._mend_refused()
            return False

        words = "no server is promoted" if server is None else f"{server.port} is not promoted"
        until(is_promoted, words, limit_s)

    def _mend_refused(self) -> None:
        """Start a replica again that no Sentinel will ever promote: its link was down for too long
        when they took the primary for dead, as on a machine that stood still in between.

        A server that has just started says of no link how long it is down.
        """
        for replica in self.servers:
            down_s = replica.link_down_s()
            if any(self._refuses(port, down_s) for port in self.sentinels):
                print(
                    f"the Sentinels refuse {replica.port}, whose link is down for {down_s} s: "
                    "it is started again",
                    flush=True,
                )
                self.restarts += 1
                replica.kill()
                replica.start(self.other(replica).port)

    def _refuses(self, port: int, link_down_s: int) -> bool:
        """Return whether a Sentinel takes the primary for dead and refuses such a replica."""
        if link_down_s <= 0:
            return False
        with contextlib.suppress(redis.RedisError), self.sentinel(port) as client:
            primary = client.sentinel_master(MASTER)
            # the rule of Sentinels, sentinelSelectSlave() in their source
            most_ms = int(primary.get("s-down-time", 0)) + 10 * primary["down-after-milliseconds"]
            return bool(primary["is_sdown"]) and 1000 * link_down_s > most_ms
        return False

    def make_whole(self) -> None:
        """Bring the other server back as a replica with a whole copy: the next fail-over needs
        one.
        """
        until(self._is_whole, "the primary has no replica that could be promoted")

    def _is_whole(self) -> bool:
        # asked anew at every look: the Sentinels may change their mind in between
        primary = self.primary()
        if primary.role() != "master":
            return False
        other = self.other(primary)
        if other.process is None:
            other.start(primary.port)
        return other.is_linked() and any(self._is_fit(port) for port in self.sentinels)

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
        for process in self.watchers:
            process.kill()
            process.wait()
        for server in self.servers:
            server.kill()
