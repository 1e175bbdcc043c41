"""ObjectStore: a server with S3's interface on loopback, from the package moto."""

from __future__ import annotations

import base64
import importlib.util
import io
import itertools
import json
import os
import socket
import sys
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkstorm.common.errors import EmbeddedServerError
from sparkstorm.extensions.embedded.process import free_port
from sparkstorm.testing.servers.server import OwnServer

_PACKAGES = Path(__file__).parents[3]
_TIMEOUT_S = 60.0


class ObjectStore(OwnServer):
    """One server that takes any credentials; its buckets outlive `kill` and `start`."""

    name = "object-store"

    def __init__(self, folder: Path | str | None = None) -> None:
        if importlib.util.find_spec("moto") is None:
            raise EmbeddedServerError(
                "the object store needs the package moto: pip install 'sparkstorm[servers]'"
            )
        super().__init__(folder)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        # the server's folder is its working one: this package may be found from ours only
        path = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {"PYTHONPATH": os.pathsep.join(path)}

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for `s3://` paths of pyarrow, delta-rs and boto3."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def create_bucket(self, name: str) -> None:
        """Make a bucket unless it is there."""
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            pass

    def answers(self) -> bool:
        """Return whether its port is open."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _command(self) -> list[str]:
        return [
            sys.executable,
            "-c",
            f"import {__name__} as this; this.serve()",
            str(self.folder),
            str(self.port),
        ]


class _Recorded:
    """WSGI application around moto's S3, which keeps all in memory.

    A request that changes something is written down before it is carried out; a start repeats them.
    """

    def __init__(self, app: Any, record: Path) -> None:
        self._app = app
        self._lock = threading.Lock()
        data = record.read_bytes() if record.exists() else b""
        # a kill may have cut the last line, whose request was not carried out
        data = data[: data.rfind(b"\n") + 1]
        record.write_bytes(data)
        for line in data.splitlines():
            environ, body = json.loads(line)
            list(
                app(
                    {
                        **environ,
                        "wsgi.input": io.BytesIO(base64.b64decode(body)),
                        "wsgi.errors": sys.stderr,
                    },
                    lambda *_: None,
                )
            )
        self._file = os.open(record, os.O_WRONLY | os.O_APPEND)

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        if environ["REQUEST_METHOD"] not in ("PUT", "POST", "DELETE"):
            return self._app(environ, start)
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = (
            environ["wsgi.input"].read()
            if environ.get("wsgi.input_terminated")
            else environ["wsgi.input"].read(size)
        )
        environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        plain = {
            key: value
            for key, value in environ.items()
            if isinstance(value, str | bool | int | list)
        }
        with self._lock:
            os.write(
                self._file, json.dumps([plain, base64.b64encode(body).decode()]).encode() + b"\n"
            )
            return [b"".join(self._app(environ, start))]


def serve() -> None:
    """Serve until killed; the process's arguments are folder and port."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import FakeMultipart
    from werkzeug.serving import run_simple

    make = FakeMultipart.__init__
    numbers = itertools.count()

    def make_numbered(upload: Any, *arguments: Any, **options: Any) -> None:
        make(upload, *arguments, **options)
        upload.id = f"upload-{next(numbers)}"  # the same one when requests are repeated

    FakeMultipart.__init__ = make_numbered  # type: ignore[assignment,method-assign]
    app = _Recorded(DomainDispatcherApplication(create_backend_app), Path(sys.argv[1], "record"))
    run_simple("127.0.0.1", int(sys.argv[2]), app, threaded=True)
