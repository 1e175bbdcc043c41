"""Stops and ends that come while a run starts: nothing begins, and one sentence says so."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkRuntimeError

from sparkstorm.common.errors import SlotsUnavailableError
from sparkstorm.driver.cluster import Cluster
from sparkstorm.driver.exit_status import FAILED, INTERRUPTED, guarded
from sparkstorm.driver.own_cluster import run_in_own_cluster, spark_may_end
from sparkstorm.driver.run import Run
from tests.app.test_resume import run as a_run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_a_run_starts_ends_it_with_what_was_opened_closed(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed: list[str] = []
    # a process that nohup has started ignores SIGHUP, and so does a run in it
    former = signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    @contextlib.contextmanager
    def opening(*_: Any, **__: Any) -> Iterator[None]:
        try:
            os.kill(os.getpid(), number)
            raise AssertionError("the start went on")
            yield
        finally:
            closed.append("servers and Spark")

    monkeypatch.setattr(Cluster, "open", opening)
    starting: Run = a_run()
    try:
        assert run_in_own_cluster(starting, starting._job) == INTERRUPTED
    finally:
        signal.signal(signal.SIGHUP, former)
    assert closed == ["servers and Spark"]
    said = capsys.readouterr().out
    assert "stopping: nothing has begun yet" in said
    assert "stopped while starting; no run was begun" in said
    assert "Traceback" not in said


def test_the_end_of_sparks_process_is_one_sentence_whatever_call_met_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parents = iter([1234, 1])
    monkeypatch.setattr(os, "getppid", parents.__next__)
    sentence = "Spark was ended from outside while the run was starting"
    with pytest.raises(SlotsUnavailableError, match=sentence), spark_may_end(lambda: False):
        raise ConnectionRefusedError("py4j cannot reach 127.0.0.1:4711")


def test_other_faults_of_a_start_keep_their_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="of ours"), spark_may_end(lambda: True):
        raise ValueError("a fault of ours")


def test_a_jvm_that_ends_before_it_is_up_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start() -> int:
        with spark_may_end(lambda: False):
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    assert guarded(start) == FAILED
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "Spark's JVM ended while it was starting" in said


def test_a_jvm_that_is_gone_is_one_sentence(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "py4j.java_gateway")  # a kept record keeps the socket
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    def ask() -> int:
        found: int = JavaGateway(gateway_parameters=GatewayParameters(port=port)).entry_point.any()
        return found

    assert guarded(ask) == FAILED
    gc.collect()  # py4j leaves the socket that was refused
    err = capsys.readouterr().err
    assert err.startswith("Spark is gone: its JVM ended") and "Traceback" not in err


def test_a_name_that_a_lost_jvm_does_not_answer_for_is_the_same_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ask() -> int:
        raise Py4JError("System does not exist in the JVM")

    assert guarded(ask) == FAILED
    assert capsys.readouterr().err.startswith("Spark is gone: its JVM ended")


def test_an_error_of_a_socket_of_others_is_no_lost_jvm(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise ConnectionRefusedError("elsewhere")

    assert guarded(fail) == FAILED
    assert "SparkStorm failed unexpectedly" in capsys.readouterr().err
