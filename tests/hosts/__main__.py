"""`make hosts`: a cluster over several hosts, harmed in every way that a network and its hosts
know; a table of what came of it.

`python -m tests.hosts [--starts N | --verbs | --documented] [--firewall] [--tls] [--other-user]
[--cells] [--replicas] [FAULT ...]`. Each fault meets a topology with its own known answer, which must be
exact in the end; a pause or a silence of `status` beyond a fault's limits fails it too. As root, on
Linux.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hosts import users
from tests.hosts.lab import ROOT, Lab, Watch, is_named, now
from tests.hosts.network import Host, why_not
from tests.hosts.settings import SLOTS
from tests.reaper import start_reaper
from tests.system.main_job import MainJob, count_words
from tests.waiting import wait_until

RATE = 500
FAULT_S = 25.0
# A host in trouble is to be named by `status` in that time
NAMED_S = 5.0
_FIRST_S, _LAST_S = 4, 6


@dataclass(frozen=True)
class Fault:
    """Something that happens to a host (w3) or a driver (d1) under a topology, and how it ends;
    `subject` is the host to be named, `pause_s` the longest pause that is let pass; some need stores
    with replicas.
    """

    name: str
    begin: Callable[[Lab], object]
    end: Callable[[Lab], object]
    subject: str = ""
    pause_s: float = math.inf
    needs_replicas: bool = False

    @property
    def topology(self) -> str:
        """Return the name of the topology that meets it."""
        return self.name.split(",")[0].replace(" ", "-")


def _w3(lab: Lab) -> Host:
    return lab.hosts["w3"]


def _others(lab: Lab) -> list[Host]:
    return [host for host in lab.hosts.values() if host.name != "w3"]


def _power_on(lab: Lab) -> None:
    _w3(lab).switch_on()
    lab.start_worker(_w3(lab))


def _upgrade(lab: Lab) -> None:
    lab.answer("upgrade", "start", "gray-upgrade.yaml", "-c", "topology.upgrade.worker.num=1")


FAULTS = (
    Fault(
        "cut from Redis",
        lambda lab: _w3(lab).cut(lab.redis),
        lambda lab: _w3(lab).heal(lab.redis),
        "w3",
        25.0,
    ),
    Fault("power-off", lambda lab: _w3(lab).switch_off(), _power_on, "w3", 15.0),
    Fault(
        "cut from ZooKeeper",
        lambda lab: _w3(lab).cut(lab.keepers),
        lambda lab: _w3(lab).heal(lab.keepers),
        "w3",
    ),
    Fault(
        "cut from the driver",
        lambda lab: _w3(lab).cut([lab.hosts["d1"]]),
        lambda lab: _w3(lab).heal([lab.hosts["d1"]]),
        "w3",
    ),
    Fault(
        "cut from all",
        lambda lab: _w3(lab).cut(_others(lab)),
        lambda lab: _w3(lab).heal(_others(lab)),
        "w3",
        25.0,
    ),
    Fault(
        "one way to Redis",
        lambda lab: _w3(lab).cut(lab.redis, is_one_way=True),
        lambda lab: _w3(lab).heal(lab.redis),
        "w3",
        25.0,
    ),
    Fault(
        "50 ms each way, 2 % loss",
        lambda lab: _w3(lab).slow_down(50, 0.02),
        lambda lab: _w3(lab).speed_up(),
    ),
    Fault(
        "one ZooKeeper off", lambda lab: lab.keepers[0].switch_off(), lambda lab: _keeper_on(lab)
    ),
    Fault("a Redis off", lambda lab: _store_off(lab), lambda lab: _store_on(lab)),
    Fault(
        "a Redis cut from its replicas",
        lambda lab: _isolate(lab),
        lambda lab: lab.harmed.heal(_away_from(lab, lab.harmed)),
        needs_replicas=True,
    ),
    Fault("ZooKeepers replaced", lambda lab: lab.replace_keepers(), lambda lab: None),
    Fault(
        "drain",
        lambda lab: lab.answer("hosts", "drain", "w3", "--yes"),
        lambda lab: lab.answer("hosts", "include", "w3"),
    ),
    Fault(
        "rebalance",
        lambda lab: lab.answer("rebalance", "rebalance", "--workers", "2", "--wait", "0", "--yes"),
        lambda lab: lab.answer("rebalance", "rebalance", "--workers", "3", "--wait", "0", "--yes"),
    ),
    Fault("gray upgrade", _upgrade, lambda lab: lab.answer("upgrade", "complete", "gray-upgrade")),
    Fault("split brain of drivers", lambda lab: _split(lab), lambda lab: _join(lab)),
)


# {letter} is the dead letter of `refusing`, {worker} a worker of `verbs`; a command that ends with
# another status than 0 has it in front
VERBS = tuple(
    line.split()
    for line in """
list
list --json
hosts
doctor
doctor verbs
status
status verbs
tasks verbs
errors verbs
failures verbs
logs verbs
tail verbs words -n 5
monitor verbs -i 1 --lines 2
dead-letters list
log-level verbs root=DEBUG:60
deactivate verbs
activate verbs
restart verbs
rebalance verbs --workers 3 --wait 0 --yes
hosts exclude w2
hosts include w2
hosts drain w2 --plan-only
rebalance verbs --workers 2 --plan-only
journey verbs
stacks verbs {worker} --seconds 1
blob create notes README
blob list
blob update notes README
blob delete notes
savepoint verbs saved
upgrade start verbs.yaml -c topology.upgrade.worker.num=1
upgrade status verbs
upgrade rollback verbs
upgrade start verbs.yaml -c topology.upgrade.worker.num=1
upgrade continue verbs --num 1
upgrade complete verbs
update verbs.yaml
submit verbs.yaml --name later --from saved --detach
kill later --wait 0
submit refusing.yaml --detach
3 follow refusing
failures refusing
dead-letters list refusing
dead-letters show refusing {letter}
capsule refusing {letter}
dead-letters replay refusing {letter}
dead-letters drop refusing --all
kill refusing --wait 0
""".strip().splitlines()
)


def _split(lab: Lab) -> None:
    lab.cut_off = lab.leader()
    lab.hosts[lab.cut_off].cut(lab.keepers)


def _join(lab: Lab) -> None:
    now_leads = lab.leader()
    lab.hosts[lab.cut_off].heal(lab.keepers)
    assert now_leads != lab.cut_off, f"{now_leads} still leads"


def _keeper_on(lab: Lab) -> None:
    lab.keepers[0].switch_on()
    lab.start_keeper(lab.keepers[0])


def _store_off(lab: Lab) -> None:
    lab.harmed = lab.primary("redis")
    lab.harmed.switch_off()


def _away_from(lab: Lab, primary: Host) -> list[Host]:
    return [*(host for host in lab.redis if host is not primary), *lab.keepers]


def _isolate(lab: Lab) -> None:
    """Cut a primary from all other Redis and from the Sentinels; workers still reach it."""
    lab.harmed = lab.primary("redis")
    lab.harmed.cut(_away_from(lab, lab.harmed))


def _store_on(lab: Lab) -> None:
    lab.harmed.switch_on()
    lab.start_redis(lab.harmed)


@dataclass(frozen=True)
class Outcome:
    """Effects of a fault: numbers counted, the longest time without a complete tree, and after how
    long the subject was named.
    """

    counted: int
    pause_s: float
    named_s: float | None

    def beyond(self, fault: Fault) -> str:
        """Return which limits of the fault were not kept, "" for none."""
        late = self.named_s is not None and self.named_s > NAMED_S
        parts = [f"named later than {NAMED_S:g} s"] if late else []
        parts += (
            [f"paused for more than {fault.pause_s:g} s"] if self.pause_s > fault.pause_s else []
        )
        return ", ".join(parts)


def harm(lab: Lab, fault: Fault, fault_s: float = FAULT_S, workers: int = 3) -> Outcome:
    """Put a topology through a fault; AssertionError when it has no worker on that host, `status`
    does not name the host, or the sums are wrong in the end.
    """
    name = fault.topology
    watch = lab.submit(name, RATE, workers)
    lab.wait_for(watch, RATE * _FIRST_S)
    used = {slot.partition("@")[0].partition(":")[0] for slot in watch.lines[-1]["workers"]}
    assert not fault.subject or fault.subject in used, f"{fault.subject} has no worker, only {used}"
    at = now()
    fault.begin(lab)
    try:
        if fault.subject:
            require_named(lab, name, watch, fault.subject, at)
        wait_until(lambda: now() - at >= fault_s, "the fault's time", fault_s + 60)
    finally:
        fault.end(lab)
    lab.wait_for(watch, watch.done() + RATE * _LAST_S)
    counted = lab.end(name, watch)
    return Outcome(
        counted,
        watch.longest_pause(at),
        watch.named_after(fault.subject, at) if fault.subject else None,
    )


def require_named(lab: Lab, name: str, watch: Watch, host: str, at: float) -> None:
    """Require that the watch, and then `sparkstorm status`, name a host in trouble.

    On a starved machine the command may look when the host's workers have moved, and the watch no
    longer names it either.
    """
    wait_until(lambda: watch.named_after(host, at) is not None, f"a problem that names {host}")
    found = json.loads(lab.verb("status", name, "--json").stdout)  # its status is 1
    workers = {slot: each["state"] for slot, each in found["workers"].items()}
    last = watch.lines[-1]
    is_over = not is_named(host, last.get("problems", [host]), last.get("workers", {}))
    assert is_over or is_named(host, found["problems"], workers), (
        f"status does not name {host}: {found}"
    )


def starts(lab: Lab, times: int) -> int:
    """Start and end a leading and a spare driver; return how often their slots were not the same
    number on each host.
    """
    bad = 0
    print("| start | slots of one driver | with the spare driver's | load |", flush=True)
    print("| --- | --- | --- | --- |", flush=True)
    for number in range(1, times + 1):
        drivers = [lab.cluster("d1")]
        lab.share_connection("d1", ["d2"])
        alone = list(lab.slots_by_host().values())
        drivers.append(lab.cluster("d2"))
        both = list(lab.slots_by_host().values())
        hosts = len(lab.workers)
        bad += (alone, both) != ([SLOTS] * hosts, [2 * SLOTS] * hosts)
        load = os.getloadavg()[0]
        print(
            f"| {number} | {', '.join(map(str, alone))} | {', '.join(map(str, both))} | {load:.0f} |",
            flush=True,
        )
        for driver in reversed(drivers):
            Host.end(driver)
    return bad


def every_verb(lab: Lab) -> int:
    """Try each verb that asks a cluster at the client's host, over a topology that runs; return how
    many fail.
    """
    watch = lab.submit("verbs", RATE, 2)
    lab.wait_for(watch, RATE)
    (lab.client.folder / "README").write_text("a file that the cluster keeps")
    bad = 0
    for line in VERBS:
        status = int(line[0]) if line[0].isdecimal() else 0
        words = [_filled(lab, watch, word) for word in line[bool(status) :]]
        at = now()
        done = lab.verb(*words)
        bad += done.returncode != status
        said = (done.stderr if done.returncode else done.stdout).strip().splitlines() or [""]
        print(
            f"{now() - at:6.1f} s  {done.returncode}  sparkstorm {' '.join(words)}: {said[-1][:120]}",
            flush=True,
        )
    print(f"numbers counted: {lab.end('verbs', watch)}, all sums right", flush=True)
    return bad


def _filled(lab: Lab, watch: Watch, word: str) -> str:
    """Return a word of a command with what stands for {letter} and {worker}."""
    if word == "{letter}":
        lines = lab.answer("dead-letters", "list", "refusing", "--lines").splitlines()
        return str(json.loads(lines[0])["id"])
    return min(watch.lines[-1]["workers"]) if word == "{worker}" else word


def run_documented_command(lab: Lab) -> int:
    """Type the standalone master's command of docs/deploy.md, which counts the words of Python's standard
    library; return how often its exit status or its counts were wrong.
    """
    at = now()
    done = lab.type_documented_command("d1")
    print(done.stdout[-2000:], done.stderr[-2000:], sep="\n")
    library = Path(sysconfig.get_paths()["stdlib"])
    packages = {"site-packages", "dist-packages"}
    files = [path for path in library.rglob("*.py") if not packages & set(path.parts)]
    counts = MainJob(lab.hosts["d1"].folder, ROOT / "conf" / "wordcount.yaml").counts()
    wanted = count_words(files)
    wrong = {word for word in {*counts, *wanted} if counts[word] != wanted[word]}
    print(
        f"{now() - at:.0f} s, exit status {done.returncode}, {len(counts)} words, {len(wrong)} wrong"
    )
    return bool(done.returncode) + bool(wrong)


def harm_each(lab: Lab, names: Sequence[str]) -> int:
    """Print a table of these faults, or of all; return how many failed."""
    bad = 0
    print(
        "| fault, 25 s | counted | lost or doubled | pause (s) | named after (s) | load | limits |",
        flush=True,
    )
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    by_name = {each.name: each for each in FAULTS}
    every = [each.name for each in FAULTS if lab.has_replicas or not each.needs_replicas]
    for fault in [by_name[name] for name in names or every]:
        try:
            found = harm(lab, fault)
        except AssertionError as error:
            bad += 1
            print(f"| {fault.name} | FAILED: {str(error)[:3000]} |", flush=True)
            lab.verb("kill", fault.topology, "--wait", "0")
            _wait_for_slots(lab)
            continue
        named = "-" if found.named_s is None else f"{found.named_s:.1f}"
        beyond = found.beyond(fault)
        bad += bool(beyond)
        cells = (fault.name, found.counted, 0, f"{found.pause_s:.1f}", named)
        load = f"{os.getloadavg()[0]:.0f}"
        print(f"| {' | '.join(map(str, (*cells, load, beyond or 'kept')))} |", flush=True)
        _wait_for_slots(lab)
    return bad


def _wait_for_slots(lab: Lab) -> None:
    """Wait until w3 has slots again, which the next fault needs."""
    wait_until(lambda: lab.slots_by_host().get("w3", 0) >= 2, "w3's slots", 400)


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line; a name that is no fault's ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts", description=__doc__)
    parser.add_argument(
        "faults",
        nargs="*",
        metavar="FAULT",
        help="names of faults, one after the other; all if none is given",
    )
    parser.add_argument(
        "--starts",
        type=int,
        default=0,
        metavar="N",
        help="only start two drivers so often; show their slots",
    )
    parser.add_argument(
        "--documented",
        action="store_true",
        help="only type the standalone master's command of docs/deploy.md",
    )
    parser.add_argument(
        "--firewall",
        action="store_true",
        help="let only the ports of docs/operations.md through to each host",
    )
    parser.add_argument(
        "--tls",
        action="store_true",
        help="encrypt Redis (Debian's) and ZooKeeper; both ask for a client's certificate",
    )
    parser.add_argument(
        "--other-user",
        action="store_true",
        help="run drivers and clients as one user and executors as another, neither of them root",
    )
    parser.add_argument(
        "--cells",
        action="store_true",
        help="two Redis on hosts of their own, every topology cut over them",
    )
    parser.add_argument(
        "--replicas",
        action="store_true",
        help="two replicas for each Redis, and a Sentinel on each host of a ZooKeeper",
    )
    parser.add_argument(
        "--verbs", action="store_true", help="only try every verb at the client's host"
    )
    parser.add_argument(
        "--old-jars",
        type=Path,
        metavar="FOLDER",
        help="jars of the PySpark whose ZooKeeper runs until `ZooKeepers replaced`",
    )
    options = parser.parse_args(arguments)
    if options.replicas and options.tls:
        parser.error("--replicas with --tls is not built: the lab's replicas have no certificates")
    if not options.replicas and (
        needs := [
            each.name for each in FAULTS if each.needs_replicas and each.name in options.faults
        ]
    ):
        parser.error(f"{needs[0]!r} needs --replicas")
    if unknown := set(options.faults) - {each.name for each in FAULTS}:
        parser.error(
            f"no fault is called {min(unknown)!r}; there are {', '.join(each.name for each in FAULTS)}"
        )
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the faults that are named, or all; the number of those that failed."""
    options = options_of(arguments)
    start_reaper()  # when this process is killed, its hosts go
    if reason := why_not():
        print(f"no hosts can be made here: {reason}")
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="sparkstorm-hosts-") as folder,
        Lab(
            Path(folder),
            is_guarded=options.firewall,
            is_encrypted=options.tls,
            old_jars=options.old_jars,
            has_users=options.other_user,
            stores=2 if options.cells else 1,
            replicas=2 if options.replicas else 0,
        ) as lab,
    ):
        if options.other_user:
            print(users.require_a_refusal(lab), flush=True)
        if options.documented:
            return run_documented_command(lab)
        if options.starts:
            return starts(lab, options.starts)
        lab.cluster("d1")
        lab.share_connection("d1", ["d2"])
        lab.cluster("d2")
        print(f"slots {lab.slots_by_host()}", flush=True)
        if options.other_user:
            print(f"{users.require_own_folders(lab)} numbers, all sums right", flush=True)
        if options.verbs:
            return every_verb(lab)
        return harm_each(lab, options.faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
