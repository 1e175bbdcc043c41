"""Storm's log viewer under /api/v1, over the kept ends of workers' logs in Redis: no route of it
opens a file.

A file is named `TOPOLOGY/NODE:PORT/worker.log`, or `TOPOLOGY/PORT/worker.log` where one worker only
has that port. The names are parts of a key, each compared with those that there are, so that a path
leads nowhere.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparkstorm.common.errors import InvalidConfigError, NotAliveError
from sparkstorm.common.model.names import shown
from sparkstorm.control_plane.insight.records import TopologyReport
from sparkstorm.control_plane.insight.sampler import ReadModel
from sparkstorm.web.answers import acting, guarded, path_name
from sparkstorm.web.commands import Commands

FILE = "worker.log"
_LENGTH = 51_200
_MOST_LENGTH = 1 << 20
_MOST_MATCHES = 100
_MOST_SEARCH_CHARS = 1_024
_AROUND = 128  # bytes shown before and after a match


def log_routes(model: ReadModel, commands: Commands, base: str) -> list[Route]:
    """Return the routes of the log viewer."""
    logs = _Logs(model, commands, base)

    def in_thread(make: Callable[[Request], Response]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return await to_thread.run_sync(lambda: guarded(lambda: make(request)))

        return endpoint

    return [
        Route(f"{base}/log", in_thread(logs.page), methods=["GET"]),
        Route(f"{base}/download", in_thread(logs.download), methods=["GET"]),
        Route(f"{base}/search", acting(logs.search), methods=["GET"]),
        Route(f"{base}/deepSearch/{{topology}}", acting(logs.deep_search), methods=["GET"]),
        Route(f"{base}/searchLogs", acting(logs.files), methods=["GET"]),
        Route(f"{base}/listLogs", acting(logs.files), methods=["GET"]),
    ]


class _Logs:
    def __init__(self, model: ReadModel, commands: Commands, base: str) -> None:
        self._model = model
        self._commands = commands
        self._base = base

    def page(self, request: Request) -> Response:
        """Return a part of a log as a page: the last `length` bytes, or those from `start` on, or
        lines that hold `grep`.
        """
        file, data = self._read(request)
        length = min(_MOST_LENGTH, _number(request, "length", _LENGTH, 1))
        start = min(len(data), _number(request, "start", max(0, len(data) - length), 0))
        wanted = request.query_params.get("grep", "")
        lines = data[start : start + length].decode("utf-8", "backslashreplace").split("\n")
        text = "\n".join(shown(line) for line in lines if wanted in line)

        def link(words: str, first_byte: int) -> str:
            asked = {
                "file": file,
                "start": first_byte,
                "length": length,
                **({"grep": wanted} if wanted else {}),
            }
            return f'<a href="{html.escape(f"{self._base}/log?{urlencode(asked)}")}">{words}</a>'

        places = {
            "first": 0,
            "previous": max(0, start - length),
            "next": start + length,
            "last": max(0, len(data) - length),
        }
        links = [
            link(words, first_byte)
            for words, first_byte in places.items()
            if words != "next" or first_byte < len(data)
        ]
        whole_link = html.escape(f"{self._base}/download?{urlencode([('file', file)])}")
        links.append(f'<a href="{whole_link}">download</a>')
        name = html.escape(file)
        body = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
            '<link rel="stylesheet" href="/static/page.css"></head><body><main id="page">'
            f"<h1>{name}</h1><p>bytes {start:,} to {min(len(data), start + length):,} of {len(data):,} that are kept</p>"
            f'<p class="bar">{" ".join(links)}</p><pre class="log" tabindex="0">{html.escape(text)}</pre></main></body></html>'
        )
        return Response(body, media_type="text/html")

    def download(self, request: Request) -> Response:
        """Return all that is kept of a log."""
        file, data = self._read(request)
        name = (
            "".join(
                char if char.isascii() and char.isalnum() else "-"
                for char in file.removesuffix(".log")
            )
            + ".log"
        )
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(data, media_type="text/plain; charset=utf-8", headers=headers)

    def search(self, request: Request, _: Any) -> Any:
        """Return the first matches of a text in one log, from a byte on."""
        wanted, most = _search_of(request)
        file, data = self._read(request)
        matches = self._matches(
            file, data, wanted, _number(request, "start-byte-offset", 0, 0), most
        )
        return {"file": file, "isDaemon": "no", **matches}

    def deep_search(self, request: Request, _: Any) -> Any:
        """Return the first matches of a text in the logs of a topology, or of its workers on one
        port.
        """
        wanted, most = _search_of(request)
        view = self._view(path_name(request, "topology"))
        port = request.query_params.get("port", "*")
        slots = [
            slot for slot in self._slots(view) if port == "*" or slot.rpartition(":")[2] == port
        ]
        offset = _number(request, "start-file-offset", 0, 0)
        room = most
        at_byte = _number(request, "start-byte-offset", 0, 0)
        matching_files = []
        for index, slot in enumerate(slots[offset:], offset):
            file = f"{view.id}/{slot}/{FILE}"
            matches = self._matches(file, self._commands.log(view.id, slot), wanted, at_byte, room)
            offset = index
            at_byte = 0
            if matches["matches"]:
                room -= len(matches["matches"])
                matching_files.append(
                    {**matches, "fileName": file, "port": slot.rpartition(":")[2], "isDaemon": "no"}
                )
            if room <= 0:
                break
        return {
            "fileOffset": offset,
            "searchString": wanted,
            "numberOfMatches": most - room,
            "matches": matching_files,
        }

    def files(self, request: Request, _: Any) -> Any:
        """Return the names of the logs of a topology, or of all, on a port or on all."""
        topology = request.query_params.get("topoId", "")
        port = request.query_params.get("port", "")
        ids = [self._view(topology).id] if topology else [*self._model.cluster().topologies]
        names = [(id, slot) for id in ids for slot in self._slots(self._model.topology(id))]
        return [
            f"{id}/{slot}/{FILE}" for id, slot in names if port in ("", slot.rpartition(":")[2])
        ]

    def _view(self, topology_id: str) -> TopologyReport:
        view = self._model.topology(topology_id)
        if view.id != topology_id:
            raise NotAliveError(f"topology {topology_id} is not alive; {view.id} has that name")
        return view

    def _slots(self, view: TopologyReport) -> list[str]:
        return sorted({*self._commands.log_slots(view.id), *view.workers})

    def _read(self, request: Request) -> tuple[str, bytes]:
        """Return the full name of the log that was asked for, and what is kept of it."""
        asked = request.query_params.get("file", "")
        parts = asked.split("/")
        if len(parts) != 3 or parts[2] != FILE:
            raise NotAliveError(
                f"there is no log {asked!r:.120}: logs are named TOPOLOGY/NODE:PORT/{FILE}"
            )
        view = self._view(parts[0])
        worker = parts[1]
        slots = self._slots(view)
        matching = [slot for slot in slots if worker in (slot, slot.rpartition(":")[2])]
        if len(matching) != 1:
            raise NotAliveError(
                f"topology {view.name} has no log of a worker {worker!r:.80}, only of {', '.join(slots) or 'none'}"
            )
        return f"{view.id}/{matching[0]}/{FILE}", self._commands.log(view.id, matching[0])

    def _matches(
        self, file: str, data: bytes, wanted: str, start: int, most: int
    ) -> dict[str, Any]:
        sought = wanted.encode()
        matches = list[dict[str, Any]]()
        offset = data.find(wanted.encode(), start)
        while offset >= 0 and len(matches) < most:
            end = offset + len(sought)
            link = urlencode(
                {"file": file, "start": max(0, offset - _LENGTH // 2), "length": _LENGTH}
            )
            matches.append(
                {
                    "byteOffset": offset,
                    "beforeString": data[max(0, offset - _AROUND) : offset].decode(
                        "utf-8", "replace"
                    ),
                    "afterString": data[end : end + _AROUND].decode("utf-8", "replace"),
                    "matchString": wanted,
                    "logviewerURL": f"{self._base}/log?{link}",
                }
            )
            offset = data.find(sought, end)
        answer = {
            "searchString": wanted,
            "startByteOffset": start,
            "numMatches": len(matches),
            "matches": matches,
        }
        return answer if offset < 0 else {**answer, "nextByteOffset": offset}


def _search_of(request: Request) -> tuple[str, int]:
    wanted = request.query_params.get("search-string", "")
    if not 0 < len(wanted) <= _MOST_SEARCH_CHARS:
        raise InvalidConfigError(
            f"search-string: expected a text of 1 to {_MOST_SEARCH_CHARS:,} characters"
        )
    return wanted, min(_MOST_MATCHES, _number(request, "num-matches", 10, 1))


def _number(request: Request, name: str, otherwise: int, least: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return otherwise
    if not text.isascii() or not text.isdecimal() or len(text) > 12 or int(text) < least:
        raise InvalidConfigError(f"{name}: expected an integer from {least} on, got {text!r:.40}")
    return int(text)
