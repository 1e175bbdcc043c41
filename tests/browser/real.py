"""Walk through the page of a real cluster: two drivers, slots on Spark, Redis and ZooKeeper, each in
its own processes.

Actions are carried out to their end, code of workers is looked into, an upgrade is compared, and
then the leader and Redis are killed under the open page. The walk by keyboard is that of a
simulated cluster (`tests.browser.walk`).
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparkstorm.client import ClusterClient, connect
from tests.browser.walk import FORMS, LIGHT, Walk
from tests.client.bare import ended, sparkstorm
from tests.system.test_spare_driver import Drivers
from tests.web.listening import running

EXAMPLES = Path(__file__).parents[2] / "examples"
# Of a cluster's start, of a dead leader's session, of a browser on a busy machine.
_LIMIT_S = 300.0
_WAIT_MS = 120_000
_BAD = 3
_MODULE = """
import time

from sparkstorm.api import BasicBolt, ReplayableSpout, StatefulBolt, TopologyBuilder


class Orders(ReplayableSpout):
    outputs = ("order",)

    def open(self, conf, context, collector):
        self.collector, self.next = collector, 0

    def next_tuple(self):
        time.sleep(0.005)
        is_bad = self.next in (113, 226, 339)
        text = "no amount" if is_bad else f"c{self.next % 5}:{self.next % 90}"
        self.collector.emit((text,), message_id=self.next)
        self.next += 1

    def snapshot(self):
        return self.next

    def restore(self, position):
        self.next = position


class Clean(BasicBolt):
    outputs = ("customer", "amount")

    def prepare(self, conf, context):
        print("cleaning orders", flush=True)

    def execute(self, tup, collector):
        customer, amount = tup["order"].split(":")
        collector.emit([customer, int(amount)])


class Sum(StatefulBolt):
    def execute(self, tup, collector):
        self.state.add(tup["customer"], tup["amount"])


def build():
    builder = TopologyBuilder()
    builder.set_spout("orders", Orders())
    builder.set_bolt("clean", Clean(), 2).shuffle_grouping("orders")
    builder.set_bolt("sum", Sum(), 2).fields_grouping("clean", "customer")
    return builder.build()
"""
_JOB = """
name: orders
topology: {module}:build
topology.workers: 2
topology.max.retries: 0
"""


def _wait(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about")
        time.sleep(0.2)


# Of charts that have filled, and of a failing order that was parked.
_LOOKS_ALIVE_S = 75


def photograph_example(browser: Any, folder: Path) -> None:
    """Save README's pictures of the web UI: `examples/orders.yaml` on a real cluster, light and
    dark.
    """
    with tempfile.TemporaryDirectory() as work:
        drivers = Drivers(Path(work))
        try:
            drivers.start("one")
            drivers.wait_up("one")
            drivers.run("submit", str(EXAMPLES / "orders.yaml"), "--detach")
            with running(drivers.connection) as served:
                time.sleep(_LOOKS_ALIVE_S)
                for form in ("light", "dark"):
                    with browser.new_context(**FORMS[form]) as context:
                        page = context.new_page()
                        page.goto(f"http://127.0.0.1:{served.port}/?token={served.token}")
                        page.locator("main a", has_text="orders").first.click()
                        page.locator(".plot canvas").first.wait_for()
                        page.wait_for_timeout(3_000)
                        page.screenshot(path=str(folder / f"web-ui-{form}.png"))
        finally:
            drivers.stop_all()


@contextmanager
def _cluster() -> Iterator[tuple[Drivers, ClusterClient]]:
    """Run a driver, and a spare one, with a topology that has three dead letters."""
    with tempfile.TemporaryDirectory() as folder:
        drivers = Drivers(Path(folder))
        try:
            for module in ("now", "later"):
                (drivers.folder / f"{module}.py").write_text(_MODULE)
                (drivers.folder / f"{module}.yaml").write_text(_JOB.format(module=module))
            drivers.start("one")
            drivers.wait_up("one")
            drivers.start("two")
            drivers.run("submit", "now.yaml", "--detach")
            with connect(drivers.connection) as client:
                letters = client.topology("orders").dead_letters
                _wait(lambda: letters.count() == _BAD, "three dead letters")
                yield drivers, client
        finally:
            drivers.stop_all()


class _RealWalk:
    """The steps, in one browser's page."""

    def __init__(self, page: Any, step: Walk, drivers: Drivers, client: ClusterClient) -> None:
        self._page = page
        self._step = step
        self._drivers = drivers
        self._client = client

    def run(self) -> None:
        """Walk through all screens, then kill servers."""
        self._step.sees("td", "orders")
        self._step.look("real-cluster")
        self._page.locator("main a", has_text="orders").first.click()
        self._step.sees("svg.graph .name", "clean")
        self._step.sees(".plot canvas")
        self._step.look("real-topology")
        self._component()
        self._worker()
        self._letters()
        self._journey()
        self._commands()
        self._upgrade()
        self._without_leader()
        self._without_redis()
        self._kill()
        print("walked, a real cluster", flush=True)

    def _tab(self, words: str) -> None:
        self._page.get_by_role("tab", name=words).click()
        self._step.sees("[role=tab][aria-selected=true]", words)

    def _button(self, words: str) -> None:
        # from its begin: "Activate" is in "Deactivate" too
        self._page.get_by_role("button", name=re.compile(f"^{words}")).first.click()

    def _confirm(self, button: str, title: str, done: str) -> None:
        """Press a button of a command and the one of its dialog, and wait for the outcome."""
        self._button(button)
        self._step.sees("dialog[open] pre", "sparkstorm")
        self._page.locator("dialog[open] button", has_text=title).last.click()
        self._page.locator(".toast", has_text=done).first.wait_for(timeout=_WAIT_MS)
        self._page.locator(".toast button").click()

    def _component(self) -> None:
        self._page.locator("main table a", has_text="clean").first.click()
        self._step.sees("dialog[open] h1", "clean")
        self._step.look("real-component")
        self._step.press("Escape")
        self._tab("Errors")
        self._step.sees("#panel td", "ValueError")
        self._step.look("real-errors")
        self._tab("Configuration")
        self._step.sees("#panel td", "topology.max.retries")

    def _worker(self) -> None:
        self._tab("Workers")
        self._page.locator("#panel a").first.click()
        self._step.sees("pre.log", "cleaning orders")
        self._page.locator("#panel input[type=search]").fill("no line has this")
        self._step.sees("pre.log", "nothing matches")
        self._page.locator("#panel input[type=search]").fill("cleaning")
        self._step.sees("pre.log", "cleaning orders")
        self._button("Stacks, 5 s")
        self._page.locator("svg.flame").wait_for(timeout=_WAIT_MS)
        self._step.look("real-worker")

    def _letters(self) -> None:
        self._tab("Dead letters")
        self._step.sees("#panel", f"{_BAD} tuples parked")
        self._step.look("real-letters")
        with self._page.expect_download() as found:
            self._page.locator("#panel summary").first.click()
            self._page.get_by_role("link", name="Save as test").first.click()
        if not Path(found.value.path()).stat().st_size:
            self._step.complain("the capsule of a dead letter is empty")
        self._confirm("Replay all", "Replay dead letters", f"{_BAD} dead letters are put back")
        letters = self._client.topology("orders").dead_letters
        _wait(lambda: letters.count() == _BAD, "replayed letters fail again")
        # those that are listed have other ids by now
        self._page.reload()
        self._step.sees("#panel", f"{_BAD} tuples parked")
        self._confirm("Drop", "Drop dead letters", f"{_BAD} dead letters are deleted")
        _wait(lambda: not letters.count(), "letters are dropped")

    def _journey(self) -> None:
        self._tab("Journey")
        self._button("Follow a sample")
        self._page.locator("#panel details").first.wait_for(timeout=_WAIT_MS)
        self._step.look("real-journey")

    def _commands(self) -> None:
        self._confirm("Deactivate", "Deactivate", "is inactive")
        self._confirm("Activate", "Activate", "is active")
        self._confirm("Log level", "Log level", "")
        self._button("Rebalance")
        self._step.sees("dialog[open] pre", "sparkstorm rebalance")
        self._page.get_by_label("workers", exact=True).fill("1")
        self._step.sees("dialog[open]", "2 → 1 workers")
        self._page.locator("dialog[open] button", has_text="Rebalance").last.click()
        topology = self._client.topology("orders")
        _wait(lambda: len(topology.slots()) == 1, "a rebalance from the page")
        self._drivers.run("rebalance", "orders", "--workers", "2", "--wait", "0", "--yes")
        _wait(lambda: len(topology.slots()) == 2, "a rebalance back")

    def _upgrade(self) -> None:
        # Equal code, so that it goes on comparing; with other results it would be taken back.
        shadow = ("--live-shadow", "clean", "--tuples", "100000")
        words = ("upgrade", "start", "later.yaml", "--num", "1", *shadow)
        follows = sparkstorm(*words, folder=self._drivers.folder, cluster=self._drivers.connection)
        self._tab("Upgrade")
        self._page.locator("#panel", has_text=", no difference").wait_for(timeout=_WAIT_MS)
        self._step.look("real-upgrade")
        self._button("rollback")
        self._step.sees("dialog[open] pre", "sparkstorm upgrade rollback orders")
        self._page.locator("dialog[open] button", has_text="Upgrade").last.click()
        self._page.locator("#panel", has_text="No upgrade is under way").wait_for(timeout=_WAIT_MS)
        ended(follows)

    def _without_leader(self) -> None:
        self._page.goto(self._page.url.partition("?")[0])
        self._step.sees("td", "orders")
        leader = self._client.leader()
        assert leader and leader.driver
        dies = next(
            name
            for name, process in self._drivers.processes.items()
            if process.pid == leader.driver.pid
        )
        self._drivers.kill(dies)
        _wait(
            lambda: (now := self._client.leader()) and now.owner != leader.owner, "another leader"
        )
        self._step.sees("td", "orders")
        self._page.locator("main", has_text="ACTIVE").first.wait_for(timeout=_WAIT_MS)
        self._step.look("real-other-leader")

    def _without_redis(self) -> None:
        redis = self._drivers.redis
        redis.kill()
        self._page.locator("main", has_text="does not answer").first.wait_for(timeout=_WAIT_MS)
        self._step.look("real-no-redis")
        redis.restart()
        self._page.locator("main", has_text="does not answer").wait_for(
            state="hidden", timeout=_WAIT_MS
        )
        self._step.sees("td", "orders")

    def _kill(self) -> None:
        self._page.locator("main a", has_text="orders").first.click()
        self._button("Kill")
        self._page.get_by_label("type orders to go on").fill("orders")
        self._page.get_by_label("wait, seconds").fill("0")
        self._page.locator("dialog[open] button", has_text="Kill").last.click()
        _wait(lambda: not self._client.topologies(), "a kill from the page")


def walk_real(browser: Any, axe: str, shots: Path | None) -> list[str]:
    """Walk through the page of a real cluster; return what is wrong."""
    with (
        _cluster() as (drivers, client),
        running(drivers.connection) as at,
        browser.new_context(**LIGHT) as context,
    ):
        page = context.new_page()
        step = Walk(page, "light", axe, shots)
        page.goto(f"http://127.0.0.1:{at.port}/?token={at.token}")
        try:
            _RealWalk(page, step, drivers, client).run()
        # what was found before is said too
        except Exception as error:
            step.complain(f"a real cluster: {error}")
            if shots is not None:
                (shots / "real-last.png").write_bytes(step.picture())
        return step.complaints
