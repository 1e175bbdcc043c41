"""Schema Registry on this host that speaks Confluent's REST: schemas by id, subjects with versions,
a password, and outages.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class Registry:
    """Schemas of the server; `requests` are those that came."""

    def __init__(self) -> None:
        self.url = ""
        self.schemas: list[dict[str, Any]] = []  # by id, from 1
        self.subjects: dict[str, list[int]] = {}
        self.compiled: dict[str, str] = {}  # Protobuf's by text: no compiler is on this host
        self.requests: list[str] = []
        self.password = ""
        self.status = 0  # that every request is answered with
        self.refused = ""  # subject that takes no schema

    def add(self, text: str, kind: str = "AVRO", subject: str = "x", **more: Any) -> int:
        """Register a schema under a subject; return its id, that of an equal one if there is one."""
        schema = {"schema": text, "schemaType": kind, "references": [], **more}
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, query: str, body: Any) -> tuple[int, Any]:
        """Return the status and the JSON for a request."""
        if self.status:
            return self.status, {"error_code": self.status, "message": "not now"}
        if match := re.fullmatch(r"/schemas/ids/(\d+)", path):
            number = int(match[1])
            if not 0 < number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self._shown(number, query)
        match = re.fullmatch(r"/subjects/([^/]+)/versions(?:/(\w+))?", path)
        if match is None:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        subject = unquote(match[1])
        if method == "POST":
            if subject == self.refused:
                return 409, {
                    "error_code": 409,
                    "message": "Schema being registered is incompatible",
                }
            return 200, {"id": self.add(body["schema"], body["schemaType"], subject)}
        versions = self.subjects.get(subject)
        if versions is None:
            return 404, {"error_code": 40401, "message": "Subject not found"}
        version = len(versions) if match[2] == "latest" else int(match[2])
        number = versions[version - 1]
        return 200, {
            "subject": subject,
            "version": version,
            "id": number,
            **self._shown(number, query),
        }

    def _shown(self, number: int, query: str) -> dict[str, Any]:
        schema = dict(self.schemas[number - 1])
        if "format=serialized" in query:
            schema["schema"] = self.compiled.get(schema["schema"], schema["schema"])
        return schema


@contextmanager
def serve() -> Iterator[Registry]:
    """A registry that answers while the block runs."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            registry.requests.append(f"{self.command} {self.path}")
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else None
            wanted = base64.b64encode(f"app:{registry.password}".encode()).decode()
            if registry.password and self.headers.get("Authorization") != f"Basic {wanted}":
                status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
            else:
                status, answer = registry.answer(self.command, parts.path, parts.query, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
