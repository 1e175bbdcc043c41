"""Redis and ZooKeeper behind TLS that wants a certificate of the client too.

The packaged Redis is built without TLS, so an `asyncio` server ends it before a plain one;
ZooKeeper does it itself, by the netty in PySpark's jars.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
import ssl
import subprocess
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from sparkstorm.common.tls import TlsFiles
from sparkstorm.extensions.embedded.certificates import Certificates
from sparkstorm.extensions.embedded.java import find_java
from sparkstorm.extensions.embedded.process import free_ports
from tests.waiting import wait_until

ResultT = TypeVar("ResultT")
_CHUNK = 1 << 16
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_ZOOKEEPER = """\
dataDir={folder}/data
clientPort={plain}
clientPortAddress=127.0.0.1
secureClientPort={port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={server}
ssl.keyStore.type=PEM
ssl.trustStore.location={ca}
ssl.trustStore.type=PEM
ssl.clientAuth=need
admin.enableServer=false
tickTime=500
maxSessionTimeout=120000
4lw.commands.whitelist=ruok
"""


def files_of(made: Certificates) -> TlsFiles:
    """Return what a client needs."""
    return TlsFiles(str(made.ca), str(made.client), str(made.client_key))


def settings_of(made: Certificates) -> dict[str, str]:
    """Return the configuration that names them."""
    names = {"ca": made.ca, "certificate": made.client, "key": made.client_key}
    return {f"sparkstorm.tls.{name}.file": str(path) for name, path in names.items()}


class TlsProxy:
    """A server on loopback that ends TLS and passes bytes on to a plain one."""

    def __init__(self, made: Certificates, port: int) -> None:
        self._target, self._context = port, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(made.server)
        self._context.load_verify_locations(made.ca)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._do(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        )
        self.port = int(self._server.sockets[0].getsockname()[1])

    def _do(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back: asyncio.StreamWriter | None = None
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            ways = [
                asyncio.ensure_future(_pass_on(reader, back)),
                asyncio.ensure_future(_pass_on(there, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # of `close`
        finally:
            for end in filter(None, (back, writer)):
                end.transport.abort()  # a client that has gone answers no farewell

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close their sockets in the next round

    def close(self) -> None:
        """Cut everybody off."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def tls_zookeeper(made: Certificates, folder: Path) -> Iterator[int]:
    """A ZooKeeper that speaks TLS on the port that is given."""
    folder.mkdir()
    plain, port = free_ports(2)
    text = _ZOOKEEPER.format(folder=folder, plain=plain, port=port, server=made.server, ca=made.ca)
    (folder / "zoo.cfg").write_text(text)
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None
    java = [
        find_java(),
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Djava.io.tmpdir={folder}",
    ]
    main = [
        "-cp",
        f"{Path(spec.origin).parent}/jars/*",
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(folder / "zoo.cfg"),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*java, *main], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: process.poll() is not None or _is_well(plain), "ZooKeeper with TLS", 120)
        assert process.poll() is None, (folder / "log").read_text()
        yield port
    finally:
        process.kill()
        process.wait()


def _is_well(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(b"ruok")
            return connection.recv(4) == b"imok"
    except OSError:
        return False
