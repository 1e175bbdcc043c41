"""Walk through every screen of the page in headless Chromium, by keyboard alone, and compare
pictures of it: `python -m tests.browser [FOLDER] [--only STATE ... | --cluster | --readme]`.

It needs Chromium (Debian's will do) and two packages that the suite does without: playwright, and
axe-playwright-python for axe-core. The page is served over a simulated cluster at a real port,
under its own Content-Security-Policy. Each screen is checked by axe-core in light, dark and narrow
form and, with a folder, photographed; the weight of the first load and the time to its first paint
are printed. Then come the screens of `tests.browser.states`, whose pictures are equal to the pixel
in two runs. `--cluster` takes a real cluster instead, and the page of `tests.browser.real`.
"""

from __future__ import annotations

import argparse
import importlib
import socket
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from shutil import which
from typing import Any

import uvicorn

from sparkstorm.client import ClusterClient
from sparkstorm.common.http_guard import local_hosts
from sparkstorm.control_plane.insight.sampler import Sampler
from sparkstorm.testing import FeederSpout, LocalCluster
from sparkstorm.web.app import make_app
from sparkstorm.web.commands import Commands, Connections
from sparkstorm.web.metrics import metrics_routes
from sparkstorm.web.page import Page
from sparkstorm.web.rest import rest_routes
from sparkstorm.web.security import Access
from tests.browser.pictures import compare_pictures
from tests.browser.real import photograph_example, walk_real
from tests.browser.states import STATES
from tests.browser.walk import FORMS, LIGHT, Walk, walk
from tests.browser.world import CONF, idle, order, sums_of
from tests.web.served import SimulatedClient

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WEIGHT_BYTES = 120_000
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    # what changes would be drawn into the old picture, and corners would differ by a shade
    "--disable-partial-raster",
]


class Locked(Connections):
    """Connections to a simulation, which one thread may use at a time."""

    def __init__(self, opened: Callable[[], ClusterClient], lock: threading.RLock) -> None:
        super().__init__(opened)
        self._simulation = lock

    def read(self, ask: Callable[[ClusterClient], Any]) -> Any:
        with self._simulation:
            return super().read(ask)

    def act(self, ask: Callable[[ClusterClient], Any]) -> Any:
        with self._simulation:
            return super().act(ask)


@contextmanager
def served() -> Iterator[str]:
    """Serve the page of a simulated cluster in which orders come all the time; yield its address
    with the token.
    """
    orders = FeederSpout(["order"])
    lock = threading.RLock()
    ended = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with LocalCluster(is_lively=True) as cluster:
        cluster.submit(sums_of(orders), CONF, "orders")
        cluster.submit(idle(), {}, "a-topology-with-a-long-name-that-rests")
        sampler = Sampler(cluster.source())

        def pass_second(number: int) -> None:
            with lock:
                for at in range(20):
                    orders.feed([order(number, at)])
                cluster.advance(seconds=1)
                sampler.step()

        def run() -> None:
            number = 90
            while not ended.wait(1):
                pass_second(number := number + 1)

        for number in range(90):
            pass_second(number)
        logs = dict.fromkeys(
            sampler.topology("orders").workers, b"2026-11-24 17:02:11 INFO started\n" * 30
        )
        access = Access(local_hosts(port))
        connections = Locked(lambda: SimulatedClient(cluster, logs), lock)
        server = _server(sampler, access, connections)
        threads = [
            threading.Thread(target=run),
            threading.Thread(target=server.run, kwargs={"sockets": [listener]}),
        ]
        for thread in threads:
            thread.start()
        try:
            yield f"http://127.0.0.1:{port}/?token={access.token}"
        finally:
            ended.set()
            server.should_exit = True
            for thread in threads:
                thread.join()


def _server(sampler: Sampler, access: Access, connections: Connections) -> uvicorn.Server:
    page = Page(sampler, access, connections, "simulated")
    routes = [
        *rest_routes(sampler, Commands(connections)),
        *metrics_routes(sampler),
        *page.routes(),
    ]
    app = make_app(routes, access)
    return uvicorn.Server(
        uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    )


def first_loads(browser: Any, address: str, times: int = 5) -> tuple[int, list[float]]:
    """Return bytes of a first load as sent, and the times to first paint in milliseconds."""
    paints, weight = [], 0
    for _ in range(times):
        with browser.new_context(**LIGHT) as context:
            page = context.new_page()
            page.goto(address)
            page.locator("h1").first.wait_for()
            sent = "() => performance.getEntries().reduce((sum, each) => sum + (each.transferSize || 0), 0)"
            weight = max(weight, page.evaluate(sent))
            paints.append(
                page.evaluate(
                    "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
                )
            )
    return weight, paints


def main() -> int:
    """Walk in every form, then compare the pictures of two runs; print what is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="for a picture of each screen")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", nargs="*", choices=STATES, help="these states, without the walk")
    what.add_argument("--cluster", action="store_true", help="the walk over a real cluster alone")
    what.add_argument("--readme", action="store_true", help="only README's pictures, into FOLDER")
    options = parser.parse_args()
    if options.readme and options.folder is None:
        parser.error("--readme needs a FOLDER: docs/pictures")
    sync_playwright = importlib.import_module("playwright.sync_api").sync_playwright
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    complaints: list[str] = []
    with sync_playwright() as play:
        found = next(filter(None, map(which, BROWSERS)))
        with play.chromium.launch(executable_path=found, args=_FLAGS) as browser:
            if options.readme:
                photograph_example(browser, options.folder)
                return 0
            if options.cluster:
                complaints += walk_real(browser, axe, options.folder)
                print("\n".join(complaints) or "axe-core finds nothing, and every action did it")
                return int(bool(complaints))
            if options.only is None:
                complaints += _walk_in_every_form(browser, axe, options.folder)
            wrong, count = compare_pictures(browser, axe, options.folder, options.only or ())
    print(
        "\n".join([*complaints, *wrong])
        or f"every screen was reached by keyboard, axe-core finds nothing, and {count} pictures are equal in two runs"
    )
    return int(bool(complaints or wrong))


def _walk_in_every_form(browser: Any, axe: str, shots: Path | None) -> list[str]:
    """Walk through the page of a cluster at work, and weigh its first load; return what is
    wrong.
    """
    complaints: list[str] = []
    with served() as address:
        weight, paints = first_loads(browser, address)
        for form, options in FORMS.items():
            with browser.new_context(**options) as context:
                page = context.new_page()
                step = Walk(page, form, axe, shots)
                step.keep_notes()
                page.goto(address)
                walk(step, form == "narrow")
                complaints += step.complaints
                print(f"walked, {form}", flush=True)
    print(
        f"first load: {weight:,} bytes as sent; first paint {statistics.median(paints):.0f} ms (median of {len(paints)})",
        flush=True,
    )
    if weight > WEIGHT_BYTES:
        complaints.append(f"the first load is heavier than {WEIGHT_BYTES:,} bytes")
    return complaints


if __name__ == "__main__":
    sys.exit(main())
