"""Runs one topology under several schedulers on emulated hosts, and tables what crosses between them.

    python -m tests.hosts.placements [--rounds 5] [--rate 1200] [--workers 3] [SCHEDULER ...]

Three chains (spout, relay by one key, relay by another, latencies by the first; keys by Zipf's law)
emit `--parts` of the rate, of rows with 400, 200 and 100 bytes of text. In each round every
scheduler places them once, on three hosts with two slots each. `traffic` has a row for its first
placement, which goes by edges alone, and one for that of its plan, which takes a minute of
measurements; without a plan that pays both are of one placement, as with a worker for each chain.

The hosts are those of `make hosts` (root, Linux): namespaces of one machine. A process adds 1 ms to
each frame from and to a worker host, `tc` limits its link to 1 Gb/s. Not emulated: the hosts share
the machine's cores, also with Redis, ZooKeeper and Spark. One Redis (`topology.cells` would take
several, none on a worker's host) carries all tuples between workers, also those of one host. So a
placement changes what is passed by reference within a worker. `through Redis` has the rows that
workers wrote for each other, and the few that a commit left for themselves; `between hosts` those
for other hosts; `on the wires` all that the interfaces of worker hosts have sent and received: rows
twice, commits, polls. CPU is that of workers. At a rate that they cannot carry acked/s is the
greatest throughput, and latencies are a backlog's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.field.results import machine
from benchmarks.latency import quantile
from benchmarks.topologies import keyed_chains
from sparkstorm.client import connect
from sparkstorm.client.cluster import ClusterClient
from tests.hosts.lab import ROOT, Lab
from tests.hosts.network import why_not
from tests.hosts.settings import SLOTS
from tests.reaper import start_reaper

NAME = "chains"
SCHEDULERS = ("default", "even", "resource-aware", "traffic")
SIZES = (400, 200, 100)  # bytes of a row's text
WARM_S = 8.0
PLAN_S = 100.0  # measurements need a minute, and Nimbus a round
EXECUTORS = 24  # with ackers, which ask for as much as others: 10 % of a core and 128 MiB
# above an even share, for which hosts have CPU and workers memory, by which resource-aware goes
SPARE = 2
COLUMNS = {
    "between_hosts_kb": ("between hosts kB/s", "{:,.0f}"),
    "redis_kb": ("through Redis kB/s", "{:,.0f}"),
    "wires_kb": ("on the wires kB/s", "{:,.0f}"),
    "cpu_us": ("CPU us/tuple", "{:,.0f}"),
    "p50_ms": ("p50 ms", "{:,.1f}"),
    "p99_ms": ("p99 ms", "{:,.1f}"),
    "acked": ("acked/s", "{:,.0f}"),
    "hosts": ("hosts", "{:.0f}"),
}
Look = dict[str, Any]


def serve() -> None:
    """Answer the requests of `Chains` at the client's host: a line of standard input for each."""
    with connect("/srv/connection.json") as cluster:
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            if verb == "submit":
                rates, conf = arguments
                topology = keyed_chains(list(zip(rates, SIZES, strict=True)))
                cluster.submit(NAME, topology, conf, by_value=["benchmarks.topologies"])
            elif verb == "kill":
                cluster.topology(NAME).kill(0)
                while cluster.find(NAME) is not None:
                    time.sleep(0.05)
            print(json.dumps(look(cluster) if verb == "look" else None), flush=True)


def look(cluster: ClusterClient) -> Look:
    """Return where tasks are, and what was counted so far."""
    handle = cluster.topology(NAME)
    now, acked = time.monotonic(), handle.progress().acked
    assignment = cluster.state.read_assignment(handle.topology_id)
    assert assignment is not None, cluster.service.problems_of(handle.topology_id)
    pids: defaultdict[str, list[int]] = defaultdict(list)
    slots, hosts = set(assignment.slot_by_executor.values()), assignment.host_by_node
    for beat in handle.beats():
        if beat.state == "RUNNING" and beat.slot in slots:
            pids[hosts[beat.slot.node]].append(beat.pid)
    steps: Counter[int] = Counter()
    for step, count in chain(*(handle.key_values(f"sink{number}") for number in (1, 2, 3))):
        steps[step] += count
    return {
        "at": now,
        "acked": acked,
        "pids": pids,
        "is_running": sum(map(len, pids.values())) == len(slots),
        "places": {
            str(task): [handle.tasks()[task].component_id, hosts[slot.node], str(slot)]
            for executor, slot in assignment.slot_by_executor.items()
            for task in executor.tasks
        },
        "executed": {str(task): counts.executed for task, counts in handle.counts().items()},
        "bytes": [
            [owner, edge[2], counts.bytes]
            for owner, progress in handle.progress_by_worker().items()
            for edge, counts in progress.edges.items()
        ],
        "steps": list(steps.items()),
    }


class Chains:
    """The chains on the lab's cluster, asked for through a process at the client's host."""

    def __init__(self, lab: Lab) -> None:
        self._workers = lab.workers
        command = lab.client.inside([sys.executable, "-m", "tests.hosts.placements", "--serve"])
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, *request: Any) -> Any:
        """Return the answer of the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the process at the client's host has ended"
        return json.loads(line)

    def look(self) -> Look:
        """Return a look, with the CPU of all worker processes and the bytes of their hosts'
        interfaces.
        """
        found: Look = self.ask("look")
        ticks = wires = 0
        for host in self._workers:
            for pid in found["pids"].get(host.name, ()):
                stat = Path(f"/proc/{host.pid}/root/proc/{pid}/stat").read_text()
                ticks += sum(map(int, stat.rpartition(")")[2].split()[11:13]))
            counts = Path(f"/proc/{host.pid}/net/dev").read_text().partition("eth0:")[2].split()
            wires += int(counts[0]) + int(counts[8])
        return found | {"hosts_at": time.monotonic(), "ticks": ticks, "wires": wires}

    def window(self, seconds: float) -> dict[str, Any]:
        """Return the values of a window that begins some seconds after all workers run and rows are
        acked, and in which no executor was moved and no worker ended.
        """
        while True:
            acked = self.ask("look")["acked"]
            while not ((now := self.ask("look"))["is_running"] and now["acked"] > acked):
                time.sleep(0.5)
            time.sleep(WARM_S)
            before = self.look()
            time.sleep(seconds)
            after = self.look()
            if (before["places"], before["pids"]) == (after["places"], after["pids"]):
                return values_of(before, after)

    def wait_for_plan(self) -> None:
        """Wait until executors are moved, or for so long that no plan has paid."""
        places, end = self.ask("look")["places"], time.monotonic() + PLAN_S
        while time.monotonic() < end and self.ask("look")["places"] == places:
            time.sleep(1)


def values_of(before: Look, after: Look) -> dict[str, Any]:
    """Return what two looks at one placement differ by."""
    seconds, hosts_s = (after[name] - before[name] for name in ("at", "hosts_at"))
    acked = (after["acked"] - before["acked"]) / seconds
    cores = (after["ticks"] - before["ticks"]) / os.sysconf("SC_CLK_TCK") / hosts_s
    steps = Counter(dict(after["steps"])) - Counter(dict(before["steps"]))
    workers, hosts = crossing(before, after)
    placement: defaultdict[str, list[str]] = defaultdict(list)
    for component, _, slot in after["places"].values():
        placement[slot].append(component)
    return {
        "between_hosts_kb": hosts / seconds / 1000,
        "redis_kb": workers / seconds / 1000,
        "wires_kb": (after["wires"] - before["wires"]) / hosts_s / 1000,
        "cpu_us": cores / acked * 1e6,
        "p50_ms": quantile(steps, 0.5),
        "p99_ms": quantile(steps, 0.99),
        "acked": acked,
        "hosts": len({host for _, host, _ in after["places"].values()}),
        "placement": {slot: sorted(names) for slot, names in sorted(placement.items())},
    }


def crossing(before: Look, after: Look) -> tuple[float, float]:
    """Return the bytes of rows that workers wrote, which are exact, and of these those for other
    hosts: divided by what the receivers took in, since keys of a hop are drawn by themselves.
    """
    receivers: defaultdict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for task, (component, host, slot) in after["places"].items():
        took = after["executed"].get(task, 0) - before["executed"].get(task, 0)
        receivers[component].append((host, slot, max(took, 1)))
    hosts = {slot: host for _, host, slot in after["places"].values()}
    written: Counter[tuple[str, str]] = Counter()
    for look_at, sign in ((after, 1), (before, -1)):
        for owner, receiver, count in look_at["bytes"]:
            written[owner, receiver] += sign * count
    away = 0.0
    for (owner, receiver), count in written.items():
        others = [(host, took) for host, slot, took in receivers[receiver] if slot != owner]
        far = sum(took for host, took in others if host != hosts.get(owner))
        away += count * far / max(1, sum(took for _, took in others))
    return float(written.total()), away


def run(chains: Chains, scheduler: str, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Place the chains by a scheduler; return the values by row of the table."""
    rates = [max(1, options.rate * part // sum(options.parts)) for part in options.parts]
    conf = {
        "topology.workers": options.workers,
        "topology.scheduler": scheduler,
        "topology.max.spout.pending": 2000,
        "topology.worker.max.heap.size.mb": 128 * (EXECUTORS // options.workers + SPARE),
    }
    chains.ask("submit", rates, conf)
    try:
        if scheduler != "traffic":
            return {scheduler: chains.window(options.seconds)}
        unmeasured = chains.window(options.seconds)
        chains.wait_for_plan()
        return {"traffic, unmeasured": unmeasured, "traffic": chains.window(options.seconds)}
    finally:
        chains.ask("kill")


def table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return medians and ranges as Markdown."""
    titles = ("scheduler", *(title for title, _ in COLUMNS.values()))
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for name, several in results.items():
        cells = [name]
        for column, (_, form) in COLUMNS.items():
            values = [row[column] for row in several]
            low, middle, high = (form.format(f(values)) for f in (min, statistics.median, max))
            cells.append(middle if low == high else f"{middle} ({low}-{high})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("schedulers", nargs="*", metavar="SCHEDULER", default=SCHEDULERS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a window, below 40")
    parser.add_argument("--rate", type=int, default=1200, help="rows a second of all spouts")
    parser.add_argument("--parts", type=int, nargs=3, default=(6, 2, 1), help="of the chains")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "placements.jsonl")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    if reason := why_not():
        raise SystemExit(f"no hosts can be made here: {reason}")
    start_reaper()  # when this process is killed, its hosts go
    options.results.parent.mkdir(exist_ok=True)
    results: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="sparkstorm-hosts-") as folder,
        Lab(Path(folder), keepers=1, drivers=1) as lab,
        options.results.open("a") as file,
    ):
        asked = {name: getattr(options, name) for name in ("rate", "parts", "workers")}
        print(json.dumps(machine() | asked), file=file, flush=True)
        capacity = f"supervisor.cpu.capacity={10 * (EXECUTORS // options.workers + SPARE)}"
        lab.cluster("d1", SLOTS, "-c", capacity, "-c", "traffic.scheduler.period.secs=60")
        lab.share_connection("d1", [])
        for worker in lab.workers:
            worker.slow_down(1.0)
            worker.limit("1gbit")
        chains = Chains(lab)
        for number in range(1, options.rounds + 1):
            for scheduler in options.schedulers:
                began = time.monotonic()
                for name, row in run(chains, scheduler, options).items():
                    results[name].append(row)
                    line = json.dumps({"round": number, "scheduler": name, **row})
                    print(line, file=file, flush=True)
                print(f"round {number}, {scheduler}: {time.monotonic() - began:.0f} s", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
