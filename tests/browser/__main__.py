"""Walk through every screen of the page in headless Chromium, by keyboard alone:
`python -m tests.browser [FOLDER]`.

It needs Chromium (Debian's will do) and two packages that the suite does without: playwright, and
axe-playwright-python for axe-core. The page is served over a simulated cluster at a real port,
under its own Content-Security-Policy. Each screen is checked by axe-core in light, dark and narrow
form and, with a folder, photographed. At the end it prints the weight of the first load and the
time to its first paint.
"""

from __future__ import annotations

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

from sparkstorm.api import BasicBolt, BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple
from sparkstorm.api.context import TopologyContext
from sparkstorm.client import ClusterClient
from sparkstorm.insight.sampler import Sampler
from sparkstorm.testing import FeederSpout, LocalCluster
from sparkstorm.web.app import make_app
from sparkstorm.web.commands import Commands, Connections
from sparkstorm.web.metrics import metrics_routes
from sparkstorm.web.page import Page
from sparkstorm.web.rest import rest_routes
from sparkstorm.web.security import Access, local_hosts
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
]
_MOST_TABS = 80
_LIGHT = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"}
FORMS: dict[str, dict[str, Any]] = {
    "light": _LIGHT,
    "dark": {**_LIGHT, "color_scheme": "dark"},
    "narrow": {
        "viewport": {"width": 390, "height": 844},
        "color_scheme": "light",
        "has_touch": True,
    },
}


class Clean(BasicBolt):
    """Lets orders through and gives up those without an amount."""

    outputs = ("customer", "amount")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        customer, amount = str(tup["order"]).split(":")
        collector.emit([customer, int(amount)])


class Sum(StatefulBolt):
    """Adds up by customer, with metrics of its own."""

    outputs = ("customer", "total")

    def prepare(self, conf: Any, context: TopologyContext) -> None:
        self.orders, self.amounts = context.counter("orders"), context.histogram("amount")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.orders.inc()
        self.amounts.update(tup["amount"])
        collector.emit([tup["customer"], self.state.add(tup["customer"], tup["amount"])])


class Take(BasicBolt):
    """Takes what comes."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        return


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
    lock, ended, listener = (
        threading.RLock(),
        threading.Event(),
        socket.create_server(("127.0.0.1", 0)),
    )
    port = listener.getsockname()[1]
    with LocalCluster(is_lively=True) as cluster:
        cluster.submit(
            _sums_of(orders), {"topology.workers": 2, "topology.max.retries": 1}, "orders"
        )
        cluster.submit(_idle(), {}, "a-topology-with-a-long-name-that-rests")
        sampler = Sampler(cluster.source())

        def pass_second(number: int) -> None:
            with lock:
                for at in range(20):
                    orders.feed([_order(number, at)])
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


def _sums_of(orders: FeederSpout) -> Any:
    builder = TopologyBuilder()
    builder.set_spout("orders", orders)
    builder.set_bolt("clean", Clean(), 2).shuffle_grouping("orders")
    builder.set_bolt("sum", Sum(), 3).fields_grouping("clean", "customer")
    builder.set_bolt("alerts", Take()).shuffle_grouping("sum")
    builder.set_bolt("archive", Take(), 2).shuffle_grouping("clean").shuffle_grouping("sum")
    return builder.build()


def _order(second: int, at: int) -> str:
    """Return one of the orders of a second; the first of every tenth second is bad."""
    return f"c{(second * 7 + at) % 5}:{at * second % 90}" if at or second % 10 else "no amount"


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


def _idle() -> Any:
    builder = TopologyBuilder()
    builder.set_spout("nothing", FeederSpout(["word"]))
    builder.set_bolt("take", Take()).shuffle_grouping("nothing")
    return builder.build()


class Walk:
    """A person with a keyboard; complaints are gathered, and the walk goes on."""

    def __init__(self, page: Any, form: str, axe: str, folder: Path | None) -> None:
        self._page, self._form, self._axe, self._folder = page, form, axe, folder
        self.complaints: list[str] = []

    def tab_to(self, words: str, within: str = "body") -> None:
        """Press Tab until the element with these words has the focus, and see that the focus is
        seen.
        """
        for _ in range(_MOST_TABS):
            self._page.keyboard.press("Tab")
            found = self._page.evaluate(_FOCUSED, within)
            if found["words"].startswith(words):
                if not found["seen"]:
                    self._complain(f"the focus on {words!r} is not seen")
                return
        raise AssertionError(f"{self._form}: Tab does not reach {words!r}")

    def press(self, key: str) -> None:
        """Press a key."""
        self._page.keyboard.press(key)

    def sees(self, selector: str, words: str = "") -> None:
        """Wait until something is on the screen."""
        self._page.locator(selector, has_text=words).first.wait_for(timeout=10_000)

    def look(self, name: str) -> None:
        """Check a screen, and take its picture."""
        self._page.evaluate(self._axe)
        for each in self._page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")[
            "violations"
        ]:
            places = "; ".join(
                node["target"][0] if isinstance(node["target"][0], str) else "?"
                for node in each["nodes"][:4]
            )
            self._complain(f"{name}: {each['id']} ({each['impact']}): {each['help']}: {places}")
        wide = self._page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
        if wide > 0:
            self._complain(f"{name}: the page is {wide} px wider than the screen")
        if self._folder is not None:
            self._page.screenshot(
                path=str(self._folder / f"{self._form}-{name}.png"), full_page=True
            )

    def _complain(self, words: str) -> None:
        self.complaints.append(f"{self._form}: {words}")


_FOCUSED = """(within) => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.querySelector?.(".box");
  const lined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const seen = lined || (box && parseFloat(getComputedStyle(box).strokeWidth) > 2);
  const words = at.closest(within) ? at.getAttribute("aria-label") || at.innerText || at.value || "" : "";
  return {words: words.trim(), seen: !!seen};
}"""


def walk(step: Walk, is_narrow: bool) -> None:
    """Walk through all screens."""
    step.sees("h1", "simulated")
    step.look("cluster")
    step.tab_to("orders", "main")
    step.press("Enter")
    step.sees("h1", "orders")
    step.sees(".plot canvas")
    step.look("topology")
    if is_narrow:
        step.tab_to("Show graph")
        step.press("Enter")
        step.sees("svg.graph")
        step.look("graph")
    step.tab_to("bolt sum")
    step.press("Enter")
    step.sees("dialog[open] h1", "sum")
    step.sees("dialog[open] td", "orders")
    step.look("component")
    step.press("Escape")
    walk_tabs(step)
    for label, name in (("Rebalance", "rebalance"), ("Kill", "kill")):
        step.tab_to(label, ".head")
        step.press("Enter")
        step.sees("dialog[open] pre", "sparkstorm")
        step.look(name)
        step.press("Escape")
    confirm(step, "Deactivate", "is inactive")
    step.look("done")
    step.press("Escape")
    confirm(step, "Activate", "is active")
    step.press("Escape")
    step.press("]")
    step.sees("button[aria-pressed=true]", "10m")
    step.press("[")
    step.press("?")
    step.sees("h2", "Keys")
    step.look("keys")
    step.press("?")
    step.press("g")
    step.press("c")
    step.sees("h1", "simulated")


def walk_tabs(step: Walk) -> None:
    """Walk through the tabs of a topology, then from the first worker to its log."""
    for words, tab, selector in (
        ("Workers", "workers", "table"),
        ("Errors", "errors", "table"),
        ("Dead letters", "letters", "details"),
        ("Journey", "journey", "form"),
        ("Upgrade", "upgrade", ".empty"),
        ("Configuration", "conf", "table"),
    ):
        if tab == "workers":
            step.tab_to("Components", "[role=tablist]")
        step.press("ArrowRight")
        step.sees("[role=tab][aria-selected=true]", words)
        step.sees(f"#panel {selector}")
        step.look(tab)
    step.press("Home")
    step.press("ArrowRight")
    step.tab_to("node", "#panel")
    step.press("Enter")
    step.sees("pre.log", "started")
    step.look("log")


def confirm(step: Walk, label: str, ending: str) -> None:
    """Press a button of a command and the one in the dialog that shows the command; wait for the
    toast.
    """
    step.tab_to(label, ".head")
    step.press("Enter")
    step.sees("dialog[open] pre", label.lower())
    step.tab_to(label, "dialog")
    step.press("Enter")
    step.sees(".toast", ending)


def first_loads(browser: Any, address: str, times: int = 5) -> tuple[int, list[float]]:
    """Return bytes of a first load as sent, and the times to first paint in milliseconds."""
    paints, weight = [], 0
    for _ in range(times):
        with browser.new_context(**_LIGHT) as context:
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


def _keep_error(errors: list[str]) -> Callable[[Any], None]:
    return lambda error: errors.append(str(error))


def _keep_note(errors: list[str]) -> Callable[[Any], None]:
    return lambda note: errors.append(note.text) if note.type == "error" else None


def main(folder: str | None = None) -> int:
    """Walk in every form; print what is wrong."""
    sync_playwright = importlib.import_module("playwright.sync_api").sync_playwright
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    shots = None if folder is None else Path(folder)
    if shots is not None:
        shots.mkdir(parents=True, exist_ok=True)
    complaints: list[str] = []
    with served() as address, sync_playwright() as play:
        found = next(filter(None, map(which, BROWSERS)))
        with play.chromium.launch(executable_path=found, args=_FLAGS) as browser:
            weight, paints = first_loads(browser, address)
            for form, options in FORMS.items():
                with browser.new_context(**options) as context:
                    page = context.new_page()
                    errors: list[str] = []
                    page.on("pageerror", _keep_error(errors))
                    page.on("console", _keep_note(errors))
                    page.goto(address)
                    step = Walk(page, form, axe, shots)
                    walk(step, form == "narrow")
                    complaints += step.complaints + [f"{form}: {each}" for each in errors]
    print(
        f"first load: {weight:,} bytes as sent; first paint {statistics.median(paints):.0f} ms (median of {len(paints)})"
    )
    if weight > WEIGHT_BYTES:
        complaints.append(f"the first load is heavier than {WEIGHT_BYTES:,} bytes")
    print(
        "\n".join(complaints) or "every screen was reached by keyboard, and axe-core finds nothing"
    )
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
