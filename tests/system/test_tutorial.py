"""The tutorial from its first to its last command, in one shell beside one `sparkstorm dev`, with
the output that it shows.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkstorm.embedded.process import free_port
from sparkstorm.testing.system.main_job import environment
from tests.pages import ROOT

pytestmark = [
    pytest.mark.system,
    # one dev cluster, four pytests and a replay: its time on a machine of its own has to be known
    # before every run pays it
    pytest.mark.skipif(
        "SPARKSTORM_TUTORIAL" not in os.environ,
        reason="SPARKSTORM_TUTORIAL=1 walks through the tutorial",
    ),
]
_LIMIT_S = 300.0
_INSTALLS = ("python3 -m venv", ". .venv", "pip install")
_LOOKS = ("python look.py", "sparkstorm dead-letters list")
"""Commands that a reader repeats until the topology has come so far."""
_FAILS = "python -m pytest -q test_front_page.py"
_VARIES = re.compile(
    r"(?<=shop-1-)\d+|(?<='user )\d+|\d[\d.]* ?s\b|\d+ h \d+ min|\.\.\.|\b(?:upgraded|remaining)\b"
)
"""Ids of topologies, the first of several users, durations, the worker that is upgraded first, and
what the page leaves out.
"""


class Shell:
    """One bash, whose variables go on from command to command."""

    def __init__(self, folder: Path) -> None:
        # apart: a JVM writes its bars of progress when it ends, after its command
        self.errors = folder / "errors.log"
        with self.errors.open("wb") as errors:
            self._bash = subprocess.Popen(
                ["bash"], cwd=folder, env=environment(), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip

    def say(self, command: str) -> tuple[int, str]:
        """Run a command; return its exit status and what it prints."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.write(
            f"{command} </dev/null\nstatus=$?; echo; echo end of command $status\n"
        )
        self._bash.stdin.flush()
        printed = ""
        for line in self._bash.stdout:
            if found := re.fullmatch(r"end of command (\d+)\n", line):
                return int(found[1]), printed.removesuffix("\n")
            printed += line
        raise AssertionError(f"the shell ended in {command!r}: {printed}")

    def close(self) -> None:
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.close()
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        self._bash.stdout.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()


def _steps() -> Iterator[tuple[str, str]]:
    """Yield ("file", name and text) and ("command", command and what it shows) in the order of the
    page.
    """
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    for block in re.finditer(
        r"(?:`(\w+\.\w+)`[^`]*)?```(python|yaml|console)\n(.*?)```", text, re.DOTALL
    ):
        name, kind, content = block.groups()
        if kind == "console":
            for part in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
                yield "command", part
        else:
            assert name, f"a file without a name before it: {content[:80]}"
            yield "file", f"{name}\n{content}"


def _pattern(shown: str) -> str:
    """Return what a page shows as a pattern; a line of dots is any number of lines."""
    lines = (
        r"(?:.*\n)*.*" if line == "..." else ".*?".join(map(re.escape, _VARIES.split(line)))
        for line in shown.splitlines()
    )
    return "\n".join(lines)


def _follow(shell: Shell, command: str, shown: str) -> None:
    """Run a command, again and again if it looks at what goes on, until it prints what the page
    shows.
    """
    deadline = time.monotonic() + _LIMIT_S
    while True:
        status, printed = shell.say(command)
        is_right = (
            status == (1 if command == _FAILS else 0)
            and re.fullmatch(_pattern(shown), printed.rstrip("\n")) is not None
        )
        if is_right or (not shown and status == 0):
            return
        is_time_left = command.startswith(_LOOKS) and time.monotonic() < deadline
        assert is_time_left, (
            f"$ {command}\n{printed}\nin place of\n{shown}\n{shell.errors.read_text()[-3000:]}"
        )
        time.sleep(0.2)


def _hold(folder: Path) -> subprocess.Popen[bytes]:
    """Start `sparkstorm dev` as the second terminal does, and wait until its cluster is up."""
    command = [sys.executable, "-m", "sparkstorm.cli", "dev", "--web", str(free_port())]
    with (folder / "dev.log").open("wb") as log:
        held = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + _LIMIT_S
    while "the cluster is up" not in (said := (folder / "dev.log").read_text()):
        assert held.poll() is None and time.monotonic() < deadline, said
        time.sleep(0.1)
    return held


def test_the_tutorial_ends_with_equal_answers(shell: Shell, tmp_path: Path) -> None:
    held: subprocess.Popen[bytes] | None = None
    try:
        for kind, text in _steps():
            first, _, rest = text.partition("\n")
            if kind == "file":
                (tmp_path / first).write_text(rest, encoding="utf-8")
            elif first == "sparkstorm dev":
                held = _hold(tmp_path)
            elif not first.startswith(_INSTALLS):
                _follow(shell, first, rest.rstrip("\n"))
        assert held is not None
        held.send_signal(signal.SIGINT)
        assert held.wait(_LIMIT_S) == 0, (tmp_path / "dev.log").read_text()
    finally:
        if held is not None and held.poll() is None:
            held.terminate()
            held.wait(_LIMIT_S)
