"""An S3, an HTTP server and a Spark application as processes of their own, whose data outlive `kill` and `start`."""

from __future__ import annotations

import base64
import io
import itertools
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

from sparkstorm.embedded.process import free_port
from sparkstorm.testing.system.main_job import environment

_ROOT = Path(__file__).parents[2]


class FrameSender:
    """A Spark application that sends the JSON files of a folder to a `SparkFrame`; it goes on behind its checkpoint."""

    def __init__(self, folder: Path, redis: str, secret: str) -> None:
        (folder / "in").mkdir(parents=True)
        self._folder, self._arguments = folder, (str(folder), redis, secret)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait for nothing."""
        command = [sys.executable, "-m", "tests.system.links_servers", "frame", *self._arguments]
        with (self._folder / "log").open("ab") as log:
            io: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            self._process = subprocess.Popen(command, cwd=_ROOT, env=environment(), start_new_session=True, **io)

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

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.readStream.schema("n bigint").json(str(folder / "in"))
    while True:
        query = send_frame(frame, redis, "frame", name="links", checkpoint=str(folder / "checkpoint"), password_env=secret)
        assert query is not None
        try:
            query.awaitTermination()
        except StreamingQueryException:  # Redis was away
            time.sleep(0.2)


class ServerProcess:
    """A server of this module: "s3" or "http"."""

    def __init__(self, kind: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._kind, self.folder, self.port = kind, folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [sys.executable, "-m", "tests.system.links_servers", self._kind, str(self.folder), str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 60
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the {self._kind} server did not start: {(self.folder / 'log').read_text()[-2000:]}")
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
        body, key = json.loads(self.rfile.read(int(self.headers["Content-Length"]))), self.headers["Idempotency-Key"]
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
    server.lock, server.keys = threading.Lock(), {json.loads(line)[0] for line in kept.read_text().splitlines()}
    server.file = os.open(kept, os.O_WRONLY | os.O_APPEND)
    server.serve_forever()


class _Recorded:
    """WSGI application around moto's S3, which keeps all in memory.

    A request that changes something is written down before it is carried out; a start repeats them.
    """

    def __init__(self, app: Any, record: Path) -> None:
        self._app, self._lock = app, threading.Lock()
        whole = record.read_bytes() if record.exists() else b""
        whole = whole[: whole.rfind(b"\n") + 1]  # a kill may have cut the last line, whose request was not carried out
        record.write_bytes(whole)
        for line in whole.splitlines():
            environ, body = json.loads(line)
            list(app({**environ, "wsgi.input": io.BytesIO(base64.b64decode(body)), "wsgi.errors": sys.stderr}, lambda *_: None))
        self._file = os.open(record, os.O_WRONLY | os.O_APPEND)

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        if environ["REQUEST_METHOD"] not in ("PUT", "POST", "DELETE"):
            return self._app(environ, start)
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read() if environ.get("wsgi.input_terminated") else environ["wsgi.input"].read(size)
        environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        plain = {key: value for key, value in environ.items() if isinstance(value, str | bool | int | list)}
        with self._lock:
            os.write(self._file, json.dumps([plain, base64.b64encode(body).decode()]).encode() + b"\n")
            return [b"".join(self._app(environ, start))]


def _serve_s3(folder: Path, port: int) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import FakeMultipart
    from werkzeug.serving import run_simple

    make, numbers = FakeMultipart.__init__, itertools.count()

    def make_numbered(upload: Any, *arguments: Any, **options: Any) -> None:
        make(upload, *arguments, **options)
        upload.id = f"upload-{next(numbers)}"  # the same one when requests are repeated

    FakeMultipart.__init__ = make_numbered  # type: ignore[assignment,method-assign]
    app = _Recorded(DomainDispatcherApplication(create_backend_app), folder / "record")
    run_simple("127.0.0.1", port, app, threaded=True)


if __name__ == "__main__":
    if sys.argv[1] == "frame":
        _send_frame(Path(sys.argv[2]), *sys.argv[3:])
    else:
        {"s3": _serve_s3, "http": _serve_http}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
