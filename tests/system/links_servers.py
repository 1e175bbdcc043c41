"""An HTTP server and a Spark application as their own processes, whose data outlive `kill` and
`start`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sparkstorm.extensions.embedded.process import free_port
from tests.system.main_job import environment
from tests.waiting import LIMIT_S

_ROOT = Path(__file__).parents[2]


class FrameSender:
    """A Spark application that sends the JSON files of a folder to a `SparkFrame`; it goes on
    behind its checkpoint.
    """

    def __init__(self, folder: Path, redis: str, secret: str) -> None:
        (folder / "in").mkdir(parents=True)
        self._folder, self._arguments = folder, (str(folder), redis, secret)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait for nothing."""
        command = [sys.executable, "-m", "tests.system.links_servers", "frame", *self._arguments]
        with (self._folder / "log").open("ab") as log:
            io: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": log,
                "stderr": subprocess.STDOUT,
            }
            self._process = subprocess.Popen(
                command, cwd=_ROOT, env=environment(), start_new_session=True, **io
            )

    def kill(self) -> None:
        """End driver and JVM as kill -9 does."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def _send_frame(folder: Path, redis: str, secret: str) -> None:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession

    from sparkstorm.connectors import send_frame

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        # Spark looks for new files every 10 ms, which keeps a third of a core busy
        .config("spark.sql.streaming.pollingDelay", "200ms")
        .getOrCreate()
    )
    frame = spark.readStream.schema("n bigint").json(str(folder / "in"))
    while True:
        query = send_frame(
            frame,
            redis,
            "frame",
            name="links",
            checkpoint=str(folder / "checkpoint"),
            password_env=secret,
        )
        assert query is not None
        try:
            query.awaitTermination()
        except StreamingQueryException:  # Redis was away
            time.sleep(0.2)


class HttpServer:
    """A server that keeps each body once."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [
            sys.executable,
            "-m",
            "tests.system.links_servers",
            "http",
            str(self.folder),
            str(self.port),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + LIMIT_S
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"the HTTP server did not start: {(self.folder / 'log').read_text()[-2000:]}"
                )
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class _Keeper(BaseHTTPRequestHandler):
    """Writes each body under its idempotency key to a file, once, and answers then."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        with server.lock:
            if key not in server.keys:
                os.write(server.file, json.dumps([key, body]).encode() + b"\n")
                server.keys.add(key)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


def _serve_http(folder: Path, port: int) -> None:
    kept = folder / "bodies.jsonl"
    kept.touch()
    server: Any = ThreadingHTTPServer(("127.0.0.1", port), _Keeper)
    server.lock = threading.Lock()
    server.keys = {json.loads(line)[0] for line in kept.read_text().splitlines()}
    server.file = os.open(kept, os.O_WRONLY | os.O_APPEND)
    server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "frame":
        _send_frame(Path(sys.argv[2]), *sys.argv[3:])
    else:
        _serve_http(Path(sys.argv[2]), int(sys.argv[3]))
