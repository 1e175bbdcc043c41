"""Security settings of a Spark context: what is set for which master, and what is refused or warned
of.
"""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark import SparkConf, SparkContext, accumulators

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.driver.hosting.spark_security import (
    check_given,
    guard_accumulators,
    secured,
    with_private_scratch,
)


def a_conf(master: str, **own: str) -> SparkConf:
    conf = SparkConf(loadDefaults=False).setMaster(master)
    for name, value in own.items():
        conf.set(name.replace("__", "."), value)
    return conf


@pytest.fixture(autouse=True)
def no_address_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)


class GivenContext:
    def __init__(self, master: str, **own: str) -> None:
        self.master, self._conf = master, a_conf(master, **own)

    def getConf(self) -> SparkConf:
        return self._conf


def given(master: str, **own: str) -> SparkContext:
    return cast(SparkContext, GivenContext(master, **own))


@pytest.mark.parametrize(
    "master", ["local", "local[3]", "local[2,4]", "yarn", "k8s://https://host"]
)
def test_where_spark_makes_the_secret_authentication_and_encryption_are_on(master: str) -> None:
    conf = secured(a_conf(master), True)
    assert conf.get("spark.authenticate") == conf.get("spark.network.crypto.enabled") == "true"
    assert conf.get("spark.network.crypto.saslFallback") == "false"
    assert conf.get("spark.authenticate.secret") is None


def test_a_cluster_inside_the_driver_gets_a_secret_of_its_own_each_time() -> None:
    first, second = (
        secured(a_conf("local-cluster[1,2,1024]"), True).get("spark.authenticate.secret")
        for _ in range(2)
    )
    assert first is not None and len(first) == 64 and first != second


def test_a_standalone_master_needs_the_secret_that_its_owner_chose() -> None:
    sentence = r"spark://head:7077 .* set spark\.authenticate=true and"
    with pytest.raises(InvalidConfigError, match=sentence):
        secured(a_conf("spark://head:7077"), True)
    conf = secured(a_conf("spark://head:7077", spark__authenticate__secret="chosen"), True)
    assert conf.get("spark.authenticate") == "true"
    assert conf.get("spark.authenticate.secret") == "chosen"
    # its daemons may speak the older handshake
    assert conf.get("spark.network.crypto.saslFallback") is None


def test_authentication_that_was_turned_off_is_refused_unless_the_key_accepts_it() -> None:
    sentence = r"spark\.authenticate is false.*sparkstorm\.spark\.authenticate: false"
    with pytest.raises(InvalidConfigError, match=sentence):
        secured(a_conf("local[2]", spark__authenticate="false"), True)
    assert (
        secured(a_conf("local[2]", spark__authenticate="false"), False).get("spark.authenticate")
        == "false"
    )
    assert secured(a_conf("spark://head:7077"), False).get("spark.authenticate") is None


def test_local_masters_listen_on_loopback_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("spark.driver.host", "spark.driver.bindAddress", "spark.ui.enabled")
    result = [secured(a_conf("local[2]"), True).get(name) for name in names]
    assert result == ["127.0.0.1", "127.0.0.1", "false"]
    told = secured(
        a_conf("local[2]", spark__driver__host="10.0.0.7", spark__driver__bindAddress="10.0.0.7"),
        True,
    )
    assert [told.get(name) for name in names[:2]] == ["10.0.0.7", "10.0.0.7"]
    assert secured(a_conf("yarn"), True).get("spark.driver.host") is None
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.7")
    assert secured(a_conf("local[2]"), True).get("spark.driver.host") is None


def test_rows_that_spark_puts_on_disk_go_to_a_folder_of_this_user_alone(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = with_private_scratch(a_conf("local[2]")).get("spark.local.dir")
    assert made is not None
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o700]
    assert (
        with_private_scratch(a_conf("local[2]", spark__local__dir="/mine")).get("spark.local.dir")
        == "/mine"
    )
    assert with_private_scratch(a_conf("yarn")).get("spark.local.dir") is None


def test_a_given_context_without_authentication_is_warned_of_here_and_refused_on_a_network() -> (
    None
):
    assert check_given(given("local[2]", spark__authenticate="true"), True) == ""
    assert "can run code in this job" in check_given(given("local[2]"), True)
    assert "can run code in this job" in check_given(given("yarn"), False)
    with pytest.raises(InvalidConfigError, match=r"given Spark context has no spark\.authenticate"):
        check_given(given("yarn"), True)


MAKE = """
import sys
from pyspark import SparkConf
from sparkstorm.driver.hosting.spark_security import with_private_scratch
print(with_private_scratch(SparkConf(loadDefaults=False).setMaster("local")).get("spark.local.dir"), flush=True)
sys.stdin.read()
"""


def test_scratch_folders_of_killed_drivers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "sparkstorm-spark-without-a-lock").mkdir()
    environ = {**os.environ, "TMPDIR": str(tmp_path)}

    def driver() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", MAKE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        assert process.stdout
        return process, Path(process.stdout.readline().strip())

    drivers = [driver() for _ in range(2)]
    (killed, left), (_, used) = drivers
    (left / "blockmgr").mkdir()
    killed.kill()
    killed.wait(60)
    assert left.exists() and used.exists()
    drivers.append(driver())
    result = set(tmp_path.iterdir())
    assert result == {used, drivers[2][1], tmp_path / "sparkstorm-spark-without-a-lock"}
    for process, _ in drivers:
        process.communicate(timeout=60)


def test_the_accumulator_server_ends_strange_connections_in_a_line(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    guard_accumulators()
    server: Any = accumulators._start_update_server("token", False)
    try:
        with socket.create_connection(server.server_address, timeout=60) as line:
            line.sendall(b"wrong")
            assert line.recv(1) == b""
        with socket.create_connection(server.server_address, timeout=60) as line:
            line.sendall(b"token" + struct.pack(">i", 0))
            assert line.recv(1) == b"\x01"
    finally:
        server.shutdown()
    assert "Traceback" not in "".join(capfd.readouterr())
    assert caplog.text.count("Spark's accumulators") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_accumulator_server_refuses_other_users_at_once() -> None:
    guard_accumulators()
    server: Any = accumulators._start_update_server("token", False)
    call = (
        "import encodings.idna, os, socket, sys; os.setuid(65534); "
        "line = socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=60); print(line.recv(1))"
    )
    try:
        port = str(server.server_address[1])
        assert (
            subprocess.run(
                [sys.executable, "-c", call, port], capture_output=True, text=True
            ).stdout
            == "b''\n"
        )
    finally:
        server.shutdown()
