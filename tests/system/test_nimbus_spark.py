"""Rebalances and hot deploys under load on real Spark, Redis and ZooKeeper: undisturbed, with
Nimbus restarted in the middle, and with the driver killed and started again on the same stores; the
counts are exact each time."""

import json
import os
import random
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.gated_count import expected_counts

pytestmark = [pytest.mark.system, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
ANSWER_S = 500.0
WORDS_PER_LINE = 10
LINES = 20_000  # of one pass over the corpus
PART = 3_000  # lines between two changes
LEAST_LOAD = 2_000  # tuples per second: the changes meet work


class Driver:
    """A driver process and its two pipes."""

    def __init__(self, conf_file: Path, folder: Path, log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.system.nimbus_driver", str(conf_file), str(folder)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )  # fmt: skip
        self._rest = b""

    def wait_up(self) -> None:
        assert self._answer() == "up"

    def ask(self, command: str) -> Any:
        self.tell(command)
        return self._answer()

    def tell(self, command: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout
        deadline = time.monotonic() + ANSWER_S
        while b"\n" not in self._rest:
            ready, _, _ = select.select(
                [self._process.stdout], [], [], max(0.0, deadline - time.monotonic())
            )
            part = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            assert part, f"the driver gave no answer:\n{self._log.read_text()[-3000:]}"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()

    def wait_dead(self) -> None:
        assert self._process.wait(900) < 0
        self.kill()

    def end(self) -> None:
        if self._process.poll() is None:
            self.tell("end")
            self._process.wait(900)


class Load:
    """Tuples per second while drivers work: lines and words, by the lines that are acked."""

    def __init__(self, tuples_per_line: float) -> None:
        self._tuples_per_line = tuples_per_line
        self._lines = 0
        self._secs = 0.0
        self._since: tuple[float, int] | None = None

    def begin(self, acked: int) -> None:
        self._since = (time.monotonic(), acked)

    def stop(self, acked: int) -> None:
        assert self._since
        start, before = self._since
        self._secs, self._lines, self._since = (
            self._secs + time.monotonic() - start,
            self._lines + acked - before,
            None,
        )

    def per_second(self) -> float:
        return self._lines * self._tuples_per_line / self._secs


class Scene:
    """A corpus that is counted until a gate opens, and drivers on stores that outlive them."""

    def __init__(self, tmp_path: Path, zookeeper: Any, redis: Any) -> None:
        self.tmp = tmp_path
        self.folder = tmp_path / "corpus"
        self.folder.mkdir()
        self._write_corpus()
        self.load = Load(1 + WORDS_PER_LINE)
        user, password = zookeeper.identity
        with redis.client() as client:  # its own user, as on servers that others share
            client.acl_setuser(
                "storm",
                enabled=True,
                passwords=["+of-storm"],
                categories=["+@all"],
                keys=["*"],
                channels=["*"],
            )
        conf = {
            "sparkstorm.supervisors": 3, "storm.local.dir": str(tmp_path / "local"), "nimbus.monitor.freq.secs": 1,
            "storm.zookeeper.servers": [zookeeper.host], "storm.zookeeper.port": zookeeper.port,
            "storm.zookeeper.root": f"/{tmp_path.name}", "storm.zookeeper.session.timeout": 6000,
            "storm.zookeeper.auth.user": user, "storm.zookeeper.auth.password": password,
            "sparkstorm.redis.url": f"redis://storm:of-storm@{redis.host}:{redis.port}/0",
        }  # fmt: skip
        self.conf_file = tmp_path / "conf.json"
        self.conf_file.write_text(json.dumps(conf))
        self.drivers: list[Driver] = []

    def _write_corpus(self) -> None:
        dice = random.Random(7)
        words = [f"word{n}" for n in range(5000)]
        for number in range(4):
            lines = [[dice.choice(words) for _ in range(WORDS_PER_LINE)] for _ in range(LINES // 4)]
            (self.folder / f"{number}.txt").write_text("\n".join(map(" ".join, lines)) + "\n")

    def start(self) -> Driver:
        self.drivers.append(Driver(self.conf_file, self.folder, self.tmp / "driver.log"))
        self.drivers[-1].wait_up()
        return self.drivers[-1]

    def assert_exact(self, driver: Driver) -> None:
        assert driver.ask("finish") == "drained"
        counts = Counter[str](json.loads((self.tmp / "counts.json").read_text()))
        assert counts == expected_counts(sorted(self.folder.iterdir()), counts)

    def assert_loaded(self) -> None:
        rate = self.load.per_second()
        print(f"{rate:,.0f} tuples/s on average while rebalanced and deployed")
        assert rate >= LEAST_LOAD / max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))

    def close(self) -> None:
        for driver in self.drivers:
            driver.kill()


@pytest.fixture
def scene(tmp_path: Path, own_zookeeper: Any, own_redis: Any) -> Iterator[Scene]:
    made = Scene(tmp_path, own_zookeeper, own_redis)
    yield made
    made.close()


def wait_for(driver: Driver, **wanted: object) -> dict[str, Any]:
    deadline = time.monotonic() + 240
    while True:
        found: dict[str, Any] = driver.ask("show")
        if all(found[key] == value for key, value in wanted.items()):
            return found
        assert time.monotonic() < deadline, f"{found} instead of {wanted}"
        time.sleep(0.1)


@pytest.mark.parametrize(
    "disturbed", [False, True], ids=["undisturbed", "nimbus restarted in the middle"]
)
def test_rebalances_and_a_hot_deploy_under_load_keep_the_counts_exact(
    scene: Scene, disturbed: bool
) -> None:
    driver = scene.start()
    scene.load.begin(driver.ask(f"wait {PART}"))
    if disturbed:
        driver.ask("stop")
        driver.ask(f"wait {PART}")  # workers go on without a Nimbus
        driver.ask("restart")
    driver.ask("rebalance 3 2 4 0.3")
    if disturbed:
        driver.ask("restart")
    wait_for(driver, status="ACTIVE", workers=3, executors=10)
    driver.ask(f"wait {PART}")
    driver.ask("rebalance 1 1 1 0.3")
    if disturbed:
        driver.ask("restart")
    wait_for(driver, status="ACTIVE", workers=1, executors=6)
    scene.load.stop(driver.ask(f"wait {PART}"))
    if disturbed:
        driver.ask("restart_in_deploy")
    driver.ask("deploy")
    wait_for(driver, status="ACTIVE", workers=2)
    driver.ask(f"wait {PART}")
    scene.assert_exact(driver)
    scene.assert_loaded()
    driver.end()


def test_drivers_killed_in_rebalances_and_in_a_hot_deploy_are_followed_by_ones_that_finish_them_exactly(
    scene: Scene,
) -> None:
    first = scene.start()
    first.ask(f"wait {PART}")
    first.ask("rebalance 3 2 4 1")
    first.kill()
    second = scene.start()
    wait_for(second, status="ACTIVE", workers=3, executors=10)
    second.ask(f"wait {PART}")
    second.ask("rebalance 1 1 1 1")
    second.kill()
    third = scene.start()
    old_id = wait_for(third, status="ACTIVE", workers=1, executors=6)["id"]
    third.ask(f"wait {PART}")
    third.ask("doom")
    third.tell("deploy")
    third.wait_dead()
    fourth = scene.start()
    assert wait_for(fourth, status="ACTIVE", workers=2)["id"] != old_id
    fourth.ask(f"wait {PART}")
    scene.assert_exact(fourth)
    fourth.end()
