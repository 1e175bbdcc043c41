"""The other side of the HTTP connectors, in its own process: takes requests, and sends them
when it is asked to.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_ROWS = 100  # of a request
_CONNECTIONS = 8


class Taker(BaseHTTPRequestHandler):
    """Parses each body and answers 200, on a connection that is kept."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_POST(self) -> None:
        for row in json.loads(self.rfile.read(int(self.headers["Content-Length"]))):
            (row["n"], row["text"])
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


def _send(port: int, rows: int) -> None:
    bodies = [
        json.dumps([{"n": n, "text": f"text {n}"} for n in range(start, start + _ROWS)])
        for start in range(0, rows, _ROWS)
    ]

    def post(mine: list[str]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for body in mine:
            connection.request("POST", "/", body)
            answer = connection.getresponse()
            assert answer.read() == b"" and answer.status == 200
        connection.close()

    threads = [
        threading.Thread(target=post, args=(bodies[n::_CONNECTIONS],)) for n in range(_CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for line in sys.stdin:
        _send(*map(int, line.split()))
        print("done", flush=True)
