"""Short form of `make hosts`: a cluster over three worker hosts, started as docs/deploy.md says, one of
which is cut from Redis under a topology.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.__main__ import RATE, Fault, Outcome
from tests.hosts.lab import ROOT, Lab, is_named, now
from tests.hosts.network import Host, Network, why_not
from tests.hosts.settings import SLOTS
from tests.waiting import wait_until

REASON = why_not()
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.system,
    pytest.mark.skipif(bool(REASON), reason=f"hosts are namespaces: {REASON}"),
]


def answers(one: Host, name: str) -> bool:
    """Return whether a host says that its port is closed, which takes both ways; no answer comes
    within 2 s otherwise.
    """
    ask = f"import socket; s = socket.socket(type=2); s.settimeout(2); s.connect(('{name}', 9)); s.send(b'x'); s.recv(1)"
    return "ConnectionRefused" in one.run("python3", "-I", "-S", "-c", ask).stderr


@pytest.mark.parametrize(
    ("pause_s", "named_s", "words"),
    [
        (14.9, 4.9, ""),
        (15.1, 4.9, "paused for more than 15 s"),
        (1.0, 5.1, "named later than 5 s"),
        (16.0, 6.0, "named later than 5 s, paused for more than 15 s"),
        (14.9, None, ""),
    ],
)
def test_a_pause_or_a_silence_beyond_its_limit_is_said(
    pause_s: float, named_s: float | None, words: str
) -> None:
    fault = Fault("power-off", lambda lab: None, lambda lab: None, "w3", 15.0)
    assert Outcome(1, pause_s, named_s).beyond(fault) == words


def test_a_host_is_named_by_a_problem_or_by_a_dead_worker_and_not_by_a_living_one() -> None:
    assert is_named("w3", ["w3 does not reach Redis"], {})
    assert is_named("w3", [], {"w3@2:6700": "dead"})
    assert not is_named("w3", ["w33 does not reach Redis"], {"w3:6700": "running"})


def test_a_host_has_no_settings_of_whoever_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPARK_LOCAL_IP", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "SPARKSTORM_CLUSTER"):
        monkeypatch.setenv(name, "127.0.0.1")
    with Network(tmp_path, {"a": []}) as network:
        found = (
            network.hosts["a"]
            .must("env", environment={"SPARKSTORM_CLUSTER": "/srv/own"})
            .splitlines()
        )
    result = [each for each in found if "SPARK" in each]
    assert result == ["SPARK_LOCAL_DIRS=/srv/tmp", "SPARKSTORM_CLUSTER=/srv/own"]


def test_a_program_on_a_host_is_ended_by_its_own_signal(tmp_path: Path) -> None:
    waiting = "trap 'echo ended; exit 7' TERM; echo begun; while :; do sleep 0.05; done"
    with Network(tmp_path, {"a": []}) as network:
        host = network.hosts["a"]
        process = host.start("log", ["sh", "-c", waiting])
        log = host.folder / "log"
        wait_until(lambda: log.read_text() == "begun\n", "the program's start")
        assert host.end(process) == 7
        assert log.read_text() == "begun\nended\n"


def test_hosts_have_names_and_addresses_and_lose_what_a_cut_loses(tmp_path: Path) -> None:
    with Network(tmp_path, {"a": [], "b": ["b.example"]}) as network:
        a, b = network.hosts["a"], network.hosts["b"]
        assert a.must("hostname").strip() == "a" and a.must("ls").split() == ["tmp"]
        assert answers(a, "b.example") and answers(b, "a")
        a.cut([b], is_one_way=True)
        assert not answers(a, "b")
        a.heal([b])
        assert answers(a, "b")
        a.slow_down(20)
        assert answers(a, "b")
        a.slow_down(0, loss=1.0)
        assert not answers(b, "a")
        a.speed_up()
        b.switch_off()
        assert not b.is_on
        b.switch_on()
        assert answers(a, "b")


def test_a_host_with_a_limit_sends_and_gets_no_more_than_that(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Network(tmp_path, {"a": []}) as network:
        a = network.hosts["a"]
        a.limit("3mbit")
        a.limit("2mbit")
        assert "rate 2Mbit" in a.must("tc", "qdisc", "show", "dev", "eth0")
        network.run("tc", "qdisc", "show", "root")
        assert capfd.readouterr().out.count("rate 2Mbit") == 1


_LISTEN = "import socket, time; s = socket.create_server(('0.0.0.0', 7300)); time.sleep(1000)"
_PROBE = """\
import time
from sparkstorm.control_plane.supervisor.store_probe import DriverProbe
probe, before = DriverProbe("b:7300"), None
while True:
    if (now := probe.away()[1]) != before:
        print(repr(now), flush=True)
        before = now
    time.sleep(0.05)
"""


def test_a_host_that_is_cut_from_its_driver_one_way_notices_though_nothing_is_sent(
    tmp_path: Path,
) -> None:
    with Network(tmp_path, {"a": [], "b": []}) as network:
        a, b = network.hosts["a"], network.hosts["b"]
        b.start("log", [sys.executable, "-c", _LISTEN])
        wait_until(lambda: "7300" in b.must("ss", "-ltn"), "the driver's port")
        a.start("log", [sys.executable, "-c", _PROBE], {"PYTHONPATH": str(ROOT)})
        log = a.folder / "log"
        wait_until(lambda: "7300" in a.must("ss", "-tn"), "the probe's connection")
        a.cut([b], is_one_way=True)
        wait_until(lambda: "'no answer'" in log.read_text(), "the silence is told", 60)
        a.heal([b])
        wait_until(lambda: log.read_text().endswith("''\n"), "the driver is back", 60)


def test_hosts_end_with_the_program_that_made_them(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time; from tests.hosts.network import Network; "
        "from tests.reaper import start_reaper; start_reaper(); "
        "hosts = Network(pathlib.Path(sys.argv[1]), {'a': []}); hosts.__enter__(); a = hosts.hosts['a']; "
        "a.start('log', ['sleep', 'infinity']); "
        "print(hosts._bridge.pid, a._spaces.pid, flush=True); time.sleep(1000)"
    )
    made = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert made.stdout is not None
    with made.stdout:
        pids = [Path("/proc", pid) for pid in made.stdout.readline().split()]
        assert len(pids) == 2 and all(pid.exists() for pid in pids)
        made.kill()
        made.wait()
        wait_until(lambda: not any(pid.exists() for pid in pids), "the end of the hosts")


def test_slots_spread_over_hosts_and_workers_of_one_that_is_cut_from_redis_move(
    tmp_path: Path,
) -> None:
    # With as many cores as slots Spark itself would have nowhere else to put them
    with Lab(tmp_path, keepers=1, workers=3, drivers=1, spare_cores=SLOTS) as lab:
        lab.cluster("d1", SLOTS, "-c", "sparkstorm.worker.store.timeout.secs=4")
        lab.share_connection("d1", [])
        assert lab.slots_by_host() == {"w1": SLOTS, "w2": SLOTS, "w3": SLOTS}
        assert "/rack-of-w3" in lab.answer("hosts")
        watch = lab.submit("short", RATE)
        lab.wait_for(watch, RATE)
        w3 = lab.hosts["w3"]
        assert any(w3.name in slot for slot in watch.lines[-1]["workers"])
        at = now()
        w3.cut(lab.redis)
        wait_until(lambda: watch.named_after(w3.name, at) is not None, "a problem that names w3")
        # of 4 s; by its own death the worker moves too, after minutes
        wait_until(
            lambda: not any(w3.name in slot for slot in watch.lines[-1].get("workers", [w3.name])),
            "another host for the worker of w3",
            90,
        )
        lab.wait_for(watch, watch.done() + 2 * RATE)
        w3.heal(lab.redis)
        assert lab.end("short", watch) > 2 * RATE
        assert list((w3.folder / "of-slots" / "logs").glob("slot-w3-*.log"))
