"""The tether of embedded servers: a server ends with its starter, however that ends, and never
before.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from sparkstorm.common.errors import EmbeddedServerError
from sparkstorm.extensions.embedded import process as embedded_process
from sparkstorm.extensions.embedded import tether as tether_module
from sparkstorm.extensions.embedded.process import TetheredProcess, start_tethered
from sparkstorm.extensions.embedded.tether import started_at
from tests.embedded.waiting import is_running
from tests.waiting import wait_until

pytestmark = pytest.mark.system

_SERVER = [
    sys.executable,
    "-I",
    "-S",
    "-c",
    "import time; print('up', flush=True); time.sleep(600)",
]
_STUBBORN = [
    sys.executable,
    "-I",
    "-S",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]
_STARTER = """
import os, sys, threading, time
from pathlib import Path
from sparkstorm.extensions.embedded.process import start_tethered
started = []
def start():
    started.append(start_tethered("server", sys.argv[2:], Path(sys.argv[1])))
thread = threading.Thread(target=start)
thread.start()
thread.join()
if os.environ.get("FORK") and os.fork() == 0:  # a child that keeps every descriptor, as multiprocessing's do
    time.sleep(60)
    os._exit(0)
print(started[0].pid, started[0]._tether.pid, flush=True)
time.sleep(600)
"""

_WITHOUT_LINUX = """
import os, runpy, sys
sys.platform = "darwin"
for name in ("eventfd", "pidfd_open", "pipe2", "sched_getaffinity"):
    delattr(os, name)
runpy.run_path(TETHER, run_name="__main__")
"""


def start_from_elsewhere(
    directory: Path, command: list[str]
) -> tuple[subprocess.Popen[str], int, int]:
    """Another process, whose starting thread ends at once; gives it, the server's pid and the life
    line's.
    """
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTER, str(directory), *command],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    server, tether = map(int, starter.stdout.readline().split())
    return starter, server, tether


def end(starter: subprocess.Popen[str]) -> None:
    starter.kill()
    starter.wait()
    assert starter.stdout is not None
    starter.stdout.close()


def is_up(process: TetheredProcess) -> bool:
    return "up" in process.last_lines()


@pytest.mark.parametrize("command", [_SERVER, _STUBBORN], ids=["gentle", "ignores SIGTERM"])
def test_a_server_ends_within_seconds_of_its_starter_being_killed(
    tmp_path: Path, command: list[str]
) -> None:
    starter, server, tether = start_from_elsewhere(tmp_path, command)
    wait_until(lambda: "up" in (tmp_path / "server.log").read_text(), "the server is up")
    end(starter)
    wait_until(lambda: not is_running(server), "the server is gone")
    wait_until(lambda: not is_running(tether), "its life line is gone")


def test_a_server_starts_and_ends_where_there_are_no_calls_of_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, which has none of them."""
    tether = tmp_path / "tether.py"
    tether.write_text(_WITHOUT_LINUX.replace("TETHER", repr(tether_module.__file__)))
    monkeypatch.setattr(embedded_process, "_TETHER", tether)
    process = start_tethered("server", _SERVER, tmp_path)
    wait_until(lambda: is_up(process), "the server is up")
    process.stop()
    assert not is_running(process.pid)


def test_a_forked_child_that_lives_on_does_not_keep_the_server_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORK", "1")
    starter, server, _ = start_from_elsewhere(tmp_path, _SERVER)
    (child,) = forked_children_of(starter.pid)
    end(starter)
    wait_until(lambda: not is_running(server), "the server is gone")
    assert child.is_running()
    child.kill()


def forked_children_of(pid: int) -> list[psutil.Process]:
    """Children that are copies of the process itself."""
    parent = psutil.Process(pid)
    return [child for child in parent.children() if child.cmdline() == parent.cmdline()]


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[TetheredProcess] = []
    thread = threading.Thread(
        target=lambda: started.append(start_tethered("server", _SERVER, tmp_path))
    )
    thread.start()
    thread.join()
    wait_until(lambda: is_up(started[0]), "the server is up")
    # some later work: time passes by an event, not by a pause
    again = start_tethered("other", _SERVER, tmp_path)
    wait_until(lambda: is_up(again), "the other server is up")
    assert started[0].is_alive()
    started[0].stop()
    again.stop()
    assert not is_running(started[0].pid)


def test_a_server_ends_when_its_life_line_is_killed(tmp_path: Path) -> None:
    starter, server, tether = start_from_elsewhere(tmp_path, _STUBBORN)
    os.kill(tether, signal.SIGKILL)
    wait_until(lambda: not is_running(server), "the server is gone")
    end(starter)


def test_ctrl_c_at_the_terminal_does_not_reach_the_server(tmp_path: Path) -> None:
    process = start_tethered("server", _SERVER, tmp_path)
    assert os.getsid(process.pid) != os.getsid(0)
    process.stop()


def test_a_stubborn_server_is_killed_at_once_on_demand(tmp_path: Path) -> None:
    process = start_tethered("server", _STUBBORN, tmp_path)
    process.kill()
    assert not is_running(process.pid)
    assert not process.is_alive()
    process.stop()  # says nothing and does nothing


def test_a_folder_in_use_by_a_living_starter_is_refused_by_name(tmp_path: Path) -> None:
    process = start_tethered("server", _SERVER, tmp_path)
    with pytest.raises(EmbeddedServerError, match=f"in use.*belongs to process {os.getpid()}"):
        start_tethered("server", _SERVER, tmp_path)
    assert process.is_alive()
    process.stop()


def test_a_server_left_by_a_former_run_is_ended_before_the_new_one_starts(tmp_path: Path) -> None:
    stale = subprocess.Popen(_SERVER, stdout=subprocess.DEVNULL)
    (tmp_path / "server.pid").write_text(f"{stale.pid} {started_at(stale.pid)}\n")
    process = start_tethered("server", _SERVER, tmp_path)
    assert not is_running(stale.pid)
    assert stale.wait() == -signal.SIGKILL
    process.stop()


@pytest.mark.parametrize(
    "content", ["{pid} 1\n", "{pid}\n", "", "x y\n", "-1 5\n", "999999999 5\n"]
)
def test_a_process_that_only_shares_the_pid_of_a_former_server_is_left_alone(
    tmp_path: Path, content: str
) -> None:
    bystander = subprocess.Popen(_SERVER, stdout=subprocess.DEVNULL)
    (tmp_path / "server.pid").write_text(content.format(pid=bystander.pid))
    process = start_tethered("server", _SERVER, tmp_path)
    assert is_running(bystander.pid)
    bystander.kill()
    bystander.wait()
    process.stop()


def test_a_server_that_ends_while_starting_shows_the_end_of_its_log(tmp_path: Path) -> None:
    process = start_tethered(
        "server", [sys.executable, "-c", "print('no such luck'); raise SystemExit(3)"], tmp_path
    )
    sentence = r"embedded server ended while starting[^$]*server\.log[^$]*no such luck"
    with pytest.raises(EmbeddedServerError, match=sentence):
        process.wait_ready(lambda: False, 10)


def test_a_server_that_never_becomes_ready_is_ended_and_named(tmp_path: Path) -> None:
    process = start_tethered("server", _STUBBORN, tmp_path)
    with pytest.raises(EmbeddedServerError, match=r"was not ready after 0\.05 s"):
        process.wait_ready(lambda: False, 0.05)
    assert not is_running(process.pid)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    process = start_tethered("server", ["/nowhere/server"], tmp_path)
    with pytest.raises(EmbeddedServerError, match="cannot run /nowhere/server: No such file"):
        process.wait_ready(lambda: False, 10)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "server.lock").mkdir()
    sentence = f"could not be started in {tmp_path}: IsADirectoryError"
    with pytest.raises(EmbeddedServerError, match=sentence):
        start_tethered("server", _SERVER, tmp_path)
