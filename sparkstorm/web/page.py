"""Routes of the page: its files, the live stream, a moment of the past, and what is read on
demand.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import tempfile
import zipfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from sparkstorm.client import ClusterClient
from sparkstorm.client.logs import last_lines
from sparkstorm.client.looks.traces import spans
from sparkstorm.common.errors import InvalidConfigError, NotAliveError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.names import file_name, shown
from sparkstorm.control_plane.insight.records import WINDOWS_S, ClusterReport, to_json
from sparkstorm.control_plane.insight.sampler import ReadModel
from sparkstorm.extensions.recording.capsule_files import ENDING, write_capsule
from sparkstorm.extensions.recording.capsule_tests import name_of_test, text_of_test
from sparkstorm.notebook.flame_graph import boxes, figures
from sparkstorm.web import actions
from sparkstorm.web.answers import body_of, moment, whole
from sparkstorm.web.commands import Connections
from sparkstorm.web.live import SharedView, cluster_record, delta, topology_record
from sparkstorm.web.security import Access

STATIC: Final = Path(__file__).with_name("static")
_MOST_LINES = 2_000
_MOST_CHARS = 4_000
_MOST_LETTERS = 100
_MOST_SHARED = 50  # records of one sample that differ by what a page looks at; more are made again
_MOST_TRACES = 50
_MOST_ROOTS = 20  # of one letter
_MOST_BOXES = 5_000
_LONGEST_LOOK_S = 60
_LETTER = re.compile(r"[0-9]{1,19}(-[0-9]{1,19})?", re.ASCII)
_BEAT_S = 4.0  # an event this often: the page greys itself after 5 s without any


class Page:
    """Handlers over one read model and, for records that only the stores have, connections next to
    the sampler's.
    """

    def __init__(
        self, model: ReadModel, access: Access, connections: Connections, name: str
    ) -> None:
        self._model = model
        self._access = access
        self._at = connections
        self._name = name
        self._records: SharedView[tuple[int, str, str, str], dict[str, Any]] = SharedView(
            _MOST_SHARED
        )
        # Both records are kept with their change: an id may come back once its record is gone.
        self._changes: SharedView[tuple[int, int], tuple[dict[str, Any], dict[str, Any], str]] = (
            SharedView(_MOST_SHARED)
        )

    async def _read(self, read: Callable[[ClusterClient], Any]) -> Any:
        """Read on demand."""
        return await run_in_threadpool(self._at.read, read)

    async def _ask(self, ask: Callable[[ClusterClient], Any]) -> Any:
        """Carry out a request."""
        return await run_in_threadpool(self._at.act, ask)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        gets = {
            "/page/session": self.session,
            "/page/stream": self.stream,
            "/page/at": self.at,
            "/page/series/{topology}": self.series,
            "/page/conf/{topology}": self.conf,
            "/page/letters/{topology}": self.letters,
            "/page/capsule/{topology}/{id}": self.capsule,
            "/page/log/{topology}/{slot}": self.log,
            "/page/upgrade/{topology}": self.upgrade,
            "/page/journey/{topology}": self.journey,
        }
        return [
            Route("/", self.index),
            *(Route(path, handler) for path, handler in gets.items()),
            Route("/page/plan/{verb}", self.plan, methods=["POST"]),
            Route("/page/do/{verb}", self.do, methods=["POST"]),
            Route("/page/traces/{topology}", self.traces, methods=["POST"]),
            Route("/page/stacks/{topology}/{slot}", self.stacks, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    async def index(self, request: Request) -> Response:
        """Return the page; it is the same for every user, and fetches the rest."""
        return FileResponse(STATIC / "index.html", media_type="text/html")

    async def session(self, request: Request) -> Response:
        """Return the page's own settings."""
        access = self._access
        return JSONResponse(
            {
                "csrf": access.csrf,
                "read_only": access.is_read_only,
                "name": self._name,
                "windows": [*WINDOWS_S],
            }
        )

    async def stream(self, request: Request) -> Response:
        """Send a snapshot, then what changes, after each sample."""
        topology, window, component = _look(request)
        events = self._events(lambda: self._record(topology, window, component))
        return StreamingResponse(
            events, media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    async def _events(self, record: Callable[[], dict[str, Any]]) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        end = self._model.subscribe(wake)
        try:
            last = await run_in_threadpool(record)
            yield f"event: snapshot\ndata: {_text(last)}\n\n"
            sampled = loop.time()
            while True:
                try:
                    await asyncio.wait_for(woken.wait(), _BEAT_S)
                except TimeoutError:
                    # the server is there, and its stores have not answered yet
                    yield f'event: beat\ndata: {{"seconds":{loop.time() - sampled:.0f}}}\n\n'
                    continue
                woken.clear()
                sampled = loop.time()
                now = await run_in_threadpool(record)
                yield f"event: delta\ndata: {self._change(last, now)}\n\n"
                last = now
        finally:
            end()

    def _change(self, last: dict[str, Any], now: dict[str, Any]) -> str:
        """Return what has changed as text; pages that show the same have the same two records."""
        _, _, text = self._changes.get(
            (id(last), id(now)), lambda: (last, now, _text(delta(last, now) or {}))
        )
        return text

    def _record(self, topology: str, window: str, component: str) -> dict[str, Any]:
        """Return what a page shows, one record for all that show the same of one sample."""
        try:
            cluster = self._model.cluster()
        except Exception as error:  # before the first reading the page shows the reason
            return {"problem": str(error)}
        return self._records.get(
            (cluster.number, topology, window, component),
            lambda: self._made(cluster, topology, window, component),
        )

    def _made(
        self, cluster: ClusterReport, topology: str, window: str, component: str
    ) -> dict[str, Any]:
        record: dict[str, Any] = {"cluster": cluster_record(cluster)}
        if topology:
            try:
                record["topology"] = topology_record(
                    self._model.topology(topology), window, component
                )
            except NotAliveError as error:
                record["gone"] = str(error)
        return record

    async def at(self, request: Request) -> Response:
        """Return the same record as of a moment of the last 24 hours."""
        topology, window, component = _look(request)
        time_ms = moment(request, "time_ms")
        if time_ms is None:
            raise InvalidConfigError("time_ms: expected milliseconds since the epoch, got none")
        cluster, views = await run_in_threadpool(self._model.at, time_ms)
        record: dict[str, Any] = {"cluster": cluster_record(cluster)}
        view = next(
            (
                candidate
                for candidate in views.values()
                if topology in (candidate.id, candidate.name)
            ),
            None,
        )
        if view is not None:
            record["topology"] = topology_record(view, window, component)
        elif topology:
            record["gone"] = f"topology {topology:.80} was not there then"
        return JSONResponse(record)

    async def series(self, request: Request) -> Response:
        """Return time series for charts."""
        name = request.path_params["topology"]
        component = request.query_params.get("component") or None
        window = request.query_params.get("window", "10m")
        since_ms = moment(request, "since_ms") or 0
        points = await run_in_threadpool(self._model.series, name, component, window, since_ms)
        return JSONResponse(to_json(points))

    async def conf(self, request: Request) -> Response:
        """Return a topology's configuration, without secrets."""
        return JSONResponse(to_json(self._model.topology(request.path_params["topology"]).conf))

    async def letters(self, request: Request) -> Response:
        """Return the oldest dead letters behind an id, with the causes of all failures."""
        self._require_writer("tuples may hold secrets")
        name = request.path_params["topology"]
        after = request.query_params.get("after", "0")
        if not _LETTER.fullmatch(after):
            raise InvalidConfigError(f"after: expected the id of a dead letter, got {after!r:.40}")

        def read(client: ClusterClient) -> dict[str, Any]:
            store = client.topology(name).dead_letters
            letters = store.read(_MOST_LETTERS, after)
            return {
                "count": store.count(),
                "letters": {id: _letter(letter) for id, letter in letters.items()},
            }

        return JSONResponse(await self._read(read))

    async def capsule(self, request: Request) -> Response:
        """Return a dead letter as a capsule with its test, in one archive."""
        self._require_writer("tuples may hold secrets")
        name = request.path_params["topology"]
        id = request.path_params["id"]
        data = await self._read(lambda client: _archive(client.topology(name), id))
        disposition = f'attachment; filename="{re.sub(r"[^0-9A-Za-z-]", "-", id)}.zip"'
        return Response(
            data, media_type="application/zip", headers={"content-disposition": disposition}
        )

    async def log(self, request: Request) -> Response:
        """Return the last lines of a worker's log that hold a text."""
        self._require_writer("logs may hold secrets")
        wanted = request.query_params.get("q", "")[:200].lower()
        name = request.path_params["topology"]
        slot = request.path_params["slot"]
        lines = await self._read(lambda client: last_lines(client.topology(name), slot, 1_000_000))
        matching_lines = [line[:_MOST_CHARS] for line in lines if wanted in line.lower()]
        return JSONResponse(
            {
                "lines": matching_lines[-_MOST_LINES:],
                "found": len(matching_lines),
                "all": len(lines),
            }
        )

    async def upgrade(self, request: Request) -> Response:
        """Return the stage of a gray upgrade and the comparison of old and new code."""
        name = request.path_params["topology"]
        return JSONResponse(
            to_json(await self._read(lambda client: client.topology(name).upgrade.status()))
        )

    async def journey(self, request: Request) -> Response:
        """Return where a message is, by its root or id; without one the oldest open messages."""
        self._require_writer("tuples may hold secrets")
        name = request.path_params["topology"]
        message = request.query_params.get("message", "")[:200]

        def read(client: ClusterClient) -> dict[str, Any]:
            journeys = client.topology(name).journeys
            if not message:
                return {"open": to_json(journeys.open(_MOST_LETTERS))}
            journey = journeys.find(message)
            return {"journey": {**to_json(journey), "sentence": journey.sentence}}

        return JSONResponse(await self._read(read))

    async def traces(self, request: Request) -> Response:
        """Follow a sample of messages for some seconds; return the failed and the slowest."""
        self._require_writer("a tap is a key in the store")
        name = request.path_params["topology"]
        seconds = _seconds(await body_of(request))
        view = self._model.topology(name)
        traces = await self._ask(
            lambda client: client.topology(name).traces(seconds, view.spouts_per_s)
        )
        records = [
            {
                "root": trace.root,
                "took_ms": trace.took_us / 1000,
                "has_failed": trace.has_failed,
                "events": spans(trace),
            }
            for trace in traces[:_MOST_TRACES]
        ]
        return JSONResponse({"traces": to_json(records), "count": len(traces)})

    async def stacks(self, request: Request) -> Response:
        """Sample a worker's stacks for some seconds; return the boxes of its flame graph."""
        self._require_writer("a tap is a key in the store")
        name = request.path_params["topology"]
        slot = request.path_params["slot"]
        seconds = _seconds(await body_of(request))
        stacks = await self._ask(lambda client: client.topology(name).stacks(slot, seconds))
        drawn, idle = boxes(stacks.stacks, stacks.samples, stacks.seconds)
        shown_boxes = [
            {**to_json(box), "title": figures(box, stacks.samples)} for box in drawn[:_MOST_BOXES]
        ]
        return JSONResponse(
            {
                "samples": stacks.samples,
                "seconds": stacks.seconds,
                "boxes": shown_boxes,
                "idle": idle,
            }
        )

    async def plan(self, request: Request) -> Response:
        """Return what an action would do, and its command line; nothing is changed."""
        self._require_writer("a plan is a request")
        verb = request.path_params["verb"]
        body = await body_of(request)
        if verb != "rebalance":
            return JSONResponse({"command": actions.command(verb, body)})
        return JSONResponse(await self._ask(lambda client: actions.plan(client, verb, body)))

    async def do(self, request: Request) -> Response:
        """Carry an action out, and answer when it is done."""
        self._require_writer("an action changes the cluster")
        verb = request.path_params["verb"]
        body = await body_of(request)
        actions.command(verb, body)  # refuses wrong arguments before a connection is opened
        return JSONResponse(
            {"done": await self._ask(lambda client: actions.carry_out(client, verb, body))}
        )

    def _require_writer(self, why: str) -> None:
        """Refuse with a read-only connection file."""
        if self._access.is_read_only:
            raise HTTPException(
                403, f"this server was started with a read-only connection file, and {why}"
            )


def _look(request: Request) -> tuple[str, str, str]:
    """Return topology, window and component that a page looks at."""
    query = request.query_params
    window = query.get("window", "1m")
    if window not in WINDOWS_S:
        raise InvalidConfigError(
            f"window: expected one of {', '.join(WINDOWS_S)}, got {window!r:.40}"
        )
    return query.get("topology", ""), window, query.get("component", "")


def _seconds(body: Mapping[str, Any]) -> float:
    seconds = whole(body.get("seconds", 5))
    if type(seconds) is not int or not 1 <= seconds <= _LONGEST_LOOK_S:
        raise InvalidConfigError(
            f"seconds: expected an integer from 1 to {_LONGEST_LOOK_S}, got {seconds!r:.40}"
        )
    return float(seconds)


def _text(record: Any) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _letter(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter for the page; long values are cut, with a mark."""
    values = {
        name: shown(repr(value)[:300])
        for name, value in zip(letter.fields, letter.values, strict=False)
    }
    failure = letter.failure
    return {
        "component": letter.component,
        "task": letter.task,
        "from": f"{letter.source_component}/{letter.stream}",
        "attempts": letter.attempts,
        "time_ms": letter.time_ms,
        "reason": shown(letter.reason),
        "traceback": "\n".join(shown(line) for line in failure.traceback.split("\n")),
        "cause": str(letter.cause),
        "values": values,
        "roots": [f"{root:016x}" for root in letter.roots[:_MOST_ROOTS]],
        "state": None
        if letter.state is None
        else [shown(repr(pair)[:300]) for pair in letter.state[:20]],
    }


def _archive(handle: Any, id: str) -> bytes:
    """Return a zip of a capsule and its test, or what makes one of a topology that was submitted
    from code; NotAliveError when the letter is not there.
    """
    letter = handle.dead_letters.get(id)
    if letter is None:
        raise NotAliveError(f"{handle.name} keeps no dead letter {id!r:.60} that can be read")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (file_name(f"{letter.component}-{id}") + ENDING)
        write_capsule(path, letter)
        test = path.with_name(name_of_test(path))
        try:
            text = text_of_test(path, letter, test, handle.conf())
        except InvalidConfigError as error:
            test = path.with_name("README.txt")
            text = f"{str(error).replace(f'{folder}/', '')}\n\nsparkstorm capsule {path.name} --pytest --topology MODULE:FUNCTION\n"
        test.write_text(text, encoding="utf-8")
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in (path, test):
                archive.write(file, file.name)
    return data.getvalue()
