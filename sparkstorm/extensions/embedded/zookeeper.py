"""Embedded ZooKeeper: the server class in PySpark's own jars, its configuration, its start and
stop.

Left out: a download of ZooKeeper, since PySpark brings the server along, and a tree store of our
own for single machines: a run on one host and a cluster would then be two systems (LocalCluster,
for tests, has such a twin).
"""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import ACL, make_digest_acl

from sparkstorm.common.errors import EmbeddedServerError
from sparkstorm.extensions.embedded.java import find_java
from sparkstorm.extensions.embedded.process import (
    EmbeddedServer,
    TetheredProcess,
    refuse_busy,
    require_free,
    start_on_free_port,
    start_tethered,
)
from sparkstorm.extensions.embedded.zookeeper_seed import OWN_PATHS, first_snapshot

_LOOPBACK = "127.0.0.1"
_START_LIMIT_S = 60.0
_SERVER_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
_JARS = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "slf4j-api-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
)
# one JVM that serves a handful of clients: little memory, and a fast start rather than a fast peak
# (without memory it ends, so that the guard starts it again, in place of living on with threads
# missing)
_JVM = (
    "-Xmx256m",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.net.preferIPv4Stack=true",
)
_DATA = "zookeeper-data"
_SETTINGS = Path(__file__).with_name("zookeeper.conf")
_LOGGING = Path(__file__).with_name("zookeeper-log.properties")
# ZooKeeper allows 20 ticks by itself, which at 500 ms would be 10 s: shorter than the session
# time-out that configurations ask for.
_MAX_SESSION_MS = 120_000


class ZooKeeperServer(EmbeddedServer):
    """An embedded ZooKeeper."""

    def __init__(
        self, data_dir: Path, port: int, auth: tuple[str, str], process: TetheredProcess
    ) -> None:
        super().__init__(data_dir, port, process)
        self.auth = auth

    def _start_again(self) -> TetheredProcess:
        return _start_server(self.data_dir, self.port)

    @property
    def hosts(self) -> str:
        """The address in the form that kazoo takes."""
        return f"{self.host}:{self.port}"

    @property
    def identity(self) -> tuple[str, str]:
        """User and password of `auth`."""
        user, _, password = self.auth[1].partition(":")
        return user, password

    def answers(self, limit_s: float) -> bool:
        """Return whether the server answers a request within `limit_s` seconds."""
        return bool(_ask_settings(self.port, limit_s))


def start_zookeeper(
    data_dir: Path,
    *,
    password: str,
    user: str = "sparkstorm",
    port: int | None = None,
    tick_ms: int = 500,
) -> ZooKeeperServer:
    """Start a ZooKeeper that keeps its data in `data_dir`, on loopback; returns when it serves.

    ZooKeeper keeps no user list: `user` and `password` become `auth`, the digest identity that our
    clients present. It alone may read, create and delete in `/`, from the first moment on: the ACL
    is in the snapshot that a new server loads. `tick_ms` bounds session timeouts from below (two
    ticks). Raises EmbeddedServerError when there is no Java or PySpark, the port or folder is
    taken, or it does not come up.
    """
    data_dir = Path(data_dir)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_busy(data_dir, "zookeeper")
    # as the server itself names it, which distinguishes it from another on the same port
    data_dir = data_dir.resolve()
    if port is not None:
        require_free(port, "ZooKeeper", "sparkstorm.embedded.zookeeper.port")
    owner = make_digest_acl(user, password, all=True)
    # Before the server: it must never serve a root that is open, not even for a moment. One that
    # was filled by others with 124 MB of nodes lived on and did not answer any more.
    is_new = _seed(data_dir / _DATA / "version-2", owner)

    def start(chosen: int) -> ZooKeeperServer:
        _write_settings(data_dir, chosen, tick_ms)
        server = ZooKeeperServer(
            data_dir, chosen, ("digest", f"{user}:{password}"), _start_server(data_dir, chosen)
        )
        if not is_new:
            _close_root(server, owner)
        return server

    return start_on_free_port(port, start)


def _seed(folder: Path, owner: ACL) -> bool:
    """Write the snapshot that a server without data begins with; False when there is something
    already.
    """
    if folder.exists():
        return False
    folder.mkdir(mode=0o700, parents=True)
    # Bytes of our own and no request to a server that runs: between its start and the request any
    # process on the host could have written.
    (folder / "snapshot.0").write_bytes(first_snapshot(owner.perms, owner.id.scheme, owner.id.id))
    return True


def _close_root(server: ZooKeeperServer, owner: ACL) -> None:
    """Give `/` of data that an earlier version left its ACL; another identity's is left to that
    identity.
    """
    client = KazooClient(server.hosts, auth_data=[server.auth])
    try:
        client.start(_START_LIMIT_S)
        for path in OWN_PATHS:
            # Only an open root is closed. One with another identity belongs to a user with other
            # passwords.
            if any(acl.id.scheme == "world" for acl in client.get_acls(path)[0]):
                client.set_acls(path, [owner])
    except KazooTimeoutError as error:
        server.kill()
        raise EmbeddedServerError(f"embedded zookeeper takes no session: {error}") from error
    except KazooException:
        return  # the first request of the run shows the owner of the tree
    finally:
        client.stop()
        client.close()


def class_path() -> str:
    """The server's jars inside the installed PySpark, found without importing it; raises
    EmbeddedServerError.
    """
    spec = importlib.util.find_spec("pyspark")
    folders = (
        [Path(folder, "jars") for folder in (spec.submodule_search_locations or [])]
        if spec is not None
        else []
    )
    # under spark-submit the package found is a zip; its jars lie in Spark's home
    if "SPARK_HOME" in os.environ:
        folders = [Path(os.environ["SPARK_HOME"], "jars"), *folders]
    if not folders:
        raise EmbeddedServerError(
            "the embedded ZooKeeper lives in PySpark's jars, and pyspark is not installed: pip install pyspark"
        )
    newest_jars = []
    for pattern in _JARS:
        jars = sorted(jar for folder in folders for jar in folder.glob(pattern))
        if not jars:
            raise EmbeddedServerError(
                f"{folders[0]} has no {pattern}: install pyspark from PyPI, or set storm.zookeeper.servers"
            )
        # The newest by name, where a Spark has two of a kind.
        newest_jars.append(str(jars[-1]))
    return ":".join(newest_jars)


def _write_settings(data_dir: Path, port: int, tick_ms: int) -> None:
    settings = _SETTINGS.read_text(encoding="ascii").format(
        port=port,
        tick_ms=tick_ms,
        min_session_ms=2 * tick_ms,
        max_session_ms=max(_MAX_SESSION_MS, 20 * tick_ms),
    )
    (data_dir / "zookeeper.conf").write_text(settings, encoding="ascii")


def _start_server(data_dir: Path, port: int) -> TetheredProcess:
    logging = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    command = [find_java(), *_JVM, logging, "-cp", class_path(), _SERVER_CLASS, "zookeeper.conf"]
    process = start_tethered("zookeeper", command, data_dir)
    ours = f"dataDir={data_dir / _DATA}/".encode()
    # Its own settings and not an open port: another server may have taken the port a moment ago.
    # not another server that took the port
    process.wait_ready(lambda: ours in _ask_settings(port), _START_LIMIT_S)
    return process


def _ask_settings(port: int, limit_s: float = 2.0) -> bytes:
    """Settings of the server on `port`, as it reports them; empty when no answer comes for
    `limit_s` seconds.
    """
    answer = b""
    try:
        with socket.create_connection((_LOOPBACK, port), timeout=limit_s) as connection:
            connection.sendall(b"conf")
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return b""
    return answer
