"""Short form of `make hosts`: two worker hosts, started as README says, one of which loses its
power under a topology.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.__main__ import Fault, harm
from tests.hosts.lab import Lab
from tests.hosts.network import Host, Network, why_not
from tests.waiting import wait_until

REASON = why_not()
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(REASON), reason=f"hosts are namespaces: {REASON}"),
]


def answers(one: Host, name: str) -> bool:
    """Return whether a host says that its port is closed, which takes both ways; no answer comes
    within 2 s otherwise.
    """
    ask = f"import socket; s = socket.socket(type=2); s.settimeout(2); s.connect(('{name}', 9)); s.send(b'x'); s.recv(1)"
    return "ConnectionRefused" in one.run("python3", "-I", "-S", "-c", ask).stderr


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
    assert [each for each in found if "SPARK" in each] == [
        "SPARK_LOCAL_DIRS=/srv/tmp",
        "SPARKSTORM_CLUSTER=/srv/own",
    ]


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


@pytest.mark.skipif(
    not os.environ.get("SPARKSTORM_HOSTS"),
    reason="minutes of five JVMs: SPARKSTORM_HOSTS=1, or make hosts",
)
def test_a_host_without_power_costs_no_count_and_is_named(tmp_path: Path) -> None:
    with Lab(tmp_path, keepers=1, workers=2, drivers=1) as lab:
        lab.cluster("d1")
        lab.share_connection("d1", [])
        assert lab.slots_by_host() == {"w1": 2, "w2": 2}
        w2 = lab.hosts["w2"]

        def power_on(_: Lab) -> None:
            w2.switch_on()
            lab.start_worker(w2)

        fault = Fault("power-off", lambda _: w2.switch_off(), power_on, "w2")
        assert harm(lab, fault, fault_s=10.0, workers=2).named_s is not None
        wait_until(lambda: lab.slots_by_host().get("w2") == 2, "the slots of the host that is back")
        assert "/rack-of-w2" in lab.answer("hosts")
        assert list((w2.folder / "of-slots" / "logs").glob("slot-w2-*.log"))
