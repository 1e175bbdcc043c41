"""A Spark driver for tests of Nimbus: it counts the words of a folder, again and again, and
executes the commands on its input.

Run as `python -m tests.system.nimbus_driver CONF.json FOLDER`. A topology that runs already is
taken up, else one is submitted. Each command is answered by one line: `wait N` (until N more lines
are acked), `rebalance WORKERS SPLIT COUNT SECS`, `stop` and `restart` (Nimbus), `deploy`,
`restart_in_deploy` and `doom` (Nimbus is restarted, or the process kills itself, as soon as the
next deploy has killed the old topology), `show`, `finish` (lets the source end, waits for it, then
writes counts.json into the folder's parent).
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sparkstorm.api import TopologyBuilder
from sparkstorm.client.handle import TopologyHandle
from sparkstorm.common.config import merge
from sparkstorm.common.model.status import RebalanceOptions, TopologyStatus
from sparkstorm.common.model.topology import Topology
from sparkstorm.connectors import find_files
from sparkstorm.driver.cluster import Cluster
from tests.system.gated_count import Count, GatedLines, Split

NAME = "words"
LIMIT_S = 400.0


def gate_of(folder: Path) -> Path:
    return folder.parent / "gate"


def build(folder: Path) -> Topology:
    """Two spouts, four tasks of each bolt."""
    builder = TopologyBuilder()
    builder.set_spout(
        "lines", GatedLines(find_files([str(folder)], "*"), str(gate_of(folder))), parallelism=2
    )
    builder.set_bolt("split", Split(), parallelism=2, num_tasks=4).local_or_shuffle_grouping(
        "lines"
    )
    builder.set_bolt("count", Count(), parallelism=2, num_tasks=4).fields_grouping("split", "word")
    return builder.build()


class Driver:
    """Obeys one command after the other."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._own = {
            "topology.workers": 2,
            "topology.acker.executors": 2,
            "topology.max.spout.pending": 1000,
        }
        self._handle = cluster.find(NAME) or self._submit({})

    def _submit(self, conf: dict[str, object]) -> TopologyHandle:
        return self._cluster.submit(
            NAME, build(self._folder), {**self._own, **conf}, ["tests.system.nimbus_driver"]
        )

    def obey(self, word: str, arguments: list[str]) -> object:
        commands: dict[str, Callable[..., object]] = {
            "wait": self.wait,
            "rebalance": self.rebalance,
            "stop": self._cluster.stop_nimbus,
            "restart": self._cluster.restart_nimbus,
            "deploy": self.deploy,
            "doom": self.doom,
            "restart_in_deploy": self.restart_in_deploy,
            "show": self.show,
            "finish": self.finish,
        }
        return commands[word](*arguments)

    def wait(self, lines: str) -> int:
        before = self._handle.progress().acked
        self._until(lambda: self._handle.progress().acked >= before + int(lines))
        return self._handle.progress().acked

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._handle.progress()} {self._handle.errors()}")
            time.sleep(0.05)

    def rebalance(self, workers: str, split: str, count: str, secs: str) -> None:
        options = RebalanceOptions(int(workers), {"split": int(split), "count": int(count)})
        service = self._cluster.service
        pending = service.begin(service.rebalance_request(NAME, options, float(secs)))
        self._until(lambda: pending.poll() is not None)

    def deploy(self) -> str:
        self._handle = self._submit({"topology.hot.deploy.enable": True})
        return self._handle.topology_id

    def doom(self) -> None:
        self._once_killed(lambda: os.kill(os.getpid(), signal.SIGKILL))

    def restart_in_deploy(self) -> None:
        self._once_killed(self._cluster.restart_nimbus)

    def _once_killed(self, act: Callable[[], None]) -> None:
        old_id, state = self._handle.topology_id, self._cluster.state

        def watch() -> None:
            while (base := state.read_base(old_id)) and base.status is not TopologyStatus.KILLED:
                time.sleep(0.002)
            act()

        threading.Thread(target=watch, daemon=True).start()

    def show(self) -> dict[str, object]:
        found = self._cluster.state.read_assignment(self._handle.topology_id)
        slots = found.slot_by_executor if found else {}
        return {
            "id": self._handle.topology_id,
            "status": str(self._handle.status()),
            "workers": len(set(slots.values())),
            "executors": len(slots),
            "acked": self._handle.progress().acked,
        }

    def finish(self) -> str:
        gate_of(self._folder).touch()
        self._until(lambda: self._handle.progress().is_drained)
        counts = dict(self._handle.key_values("count"))
        (self._folder.parent / "counts.json").write_text(json.dumps(counts), encoding="utf-8")
        self._handle.kill(0)
        self._until(lambda: self._handle.status() is None)
        return "drained"


def run(conf_file: Path, folder: Path) -> None:
    with Cluster.open(merge(json.loads(conf_file.read_text(encoding="utf-8")))) as cluster:
        driver = Driver(cluster, folder)
        print(json.dumps("up"), flush=True)
        for line in sys.stdin:
            word, *arguments = line.split()
            if word == "end":
                return
            print(json.dumps(driver.obey(word, arguments)), flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))
