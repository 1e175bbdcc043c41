"""A reader of the tutorial: writes its files and copies its commands into two terminals, in any
shell.

`python -m tests.tutorial FOLDER -- chroot /bare env -i ... bash` follows the page in another root
(docs/maintaining/test-suite.md); tests/test_wheel.py follows it in its own environment. Nothing of
SparkStorm is imported: the machine under trial has it, this one need not.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
INSTALLS = ("apt-get", "python3 -m venv", "pip install")
"""Commands that a caller may leave out, by how they begin."""
_LIMIT_S = 300.0
_SECOND_TERMINAL = "sparkstorm dev"
_LOOKS = ("python look.py", "sparkstorm dead-letters list")
"""Commands that a reader repeats until the topology has come so far."""
_FAILS = "python -m pytest -q test_front_page.py"
_VARIES = re.compile(
    r"(?<=shop-1-)\d+|(?<='user )\d+|\d[\d.]* ?s\b|\d+ h \d+ min|\.\.\.|\b(?:upgraded|remaining)\b"
)
"""Ids of topologies, the first of several users, durations, the worker that is upgraded first, and
what the page leaves out.
"""


_SLOW = re.compile(r"^accepted although host .* within \d+ s\n", re.MULTILINE)
"""Line of a submission on a machine that is too busy to try the code in time; no page shows it."""


class Terminal:
    """One shell, whose variables go on from command to command."""

    def __init__(
        self, shell: Sequence[str], folder: Path, name: str, environ: Mapping[str, str] | None
    ) -> None:
        # apart: a JVM writes its bars of progress when it ends, after its command
        self.errors = folder / f"{name}.errors"
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                shell, cwd=folder, env=environ, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip

    def type(self, command: str) -> None:
        """Give the shell a command, which `read` waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write(
            f"{command} </dev/null\nstatus=$?; echo; echo end of command $status\n"
        )
        self._process.stdin.flush()

    def read(self, until: str = "") -> tuple[int, str]:
        """Return the exit status of the command and what it printed, or -1 as soon as it has
        printed a line with `until`.
        """
        assert self._process.stdout is not None
        printed = ""
        for line in self._process.stdout:
            if match := re.fullmatch(r"end of command (\d+)\n", line):
                return int(match[1]), printed.removesuffix("\n")
            printed += line
            if until and until in line:
                return -1, printed
        raise AssertionError(f"the shell ended: {printed}{self.errors.read_text()[-3000:]}")

    def interrupt(self) -> None:
        """Send Ctrl-C, which reaches the command and all that it has started in this terminal."""
        os.killpg(self._process.pid, signal.SIGINT)

    def close(self) -> None:
        """End the shell and what runs in it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()


def steps() -> Iterator[tuple[str, str, int]]:
    """Yield ("file", name and text) and ("command", command and what it shows) in the order of the
    page, each with the number of its block.
    """
    blocks = re.finditer(
        r"(?:`(\w+\.\w+)`[^`]*)?```(python|yaml|console)\n(.*?)```",
        PAGE.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    for number, block in enumerate(blocks):
        name, kind, content = block.groups()
        if kind == "console":
            for part in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
                yield "command", part, number
        else:
            assert name, f"a file without a name before it: {content[:80]}"
            yield "file", f"{name}\n{content}", number


def _pattern(shown: str) -> str:
    """Return what a page shows as a pattern; a line of dots is any number of lines."""
    lines = (
        r"(?:.*\n)*.*" if line == "..." else ".*?".join(map(re.escape, _VARIES.split(line)))
        for line in shown.splitlines()
    )
    return "\n".join(lines)


def _copy(terminal: Terminal, command: str, shown: str, limit_s: float) -> None:
    """Run a command, again and again if it looks at what goes on, until it prints what the page
    shows.
    """
    deadline = time.monotonic() + limit_s
    while True:
        terminal.type(command)
        status, printed = terminal.read()
        printed = _SLOW.sub("", printed)
        is_right = (
            status == (1 if command == _FAILS else 0)
            and re.fullmatch(_pattern(shown), printed.rstrip("\n")) is not None
        )
        if is_right or (not shown and status == 0):
            return
        is_time_left = command.startswith(_LOOKS) and time.monotonic() < deadline
        assert is_time_left, (
            f"$ {command}\n{printed}\nin place of\n{shown}\n{terminal.errors.read_text()[-3000:]}"
        )
        time.sleep(0.2)


def follow(
    shell: Sequence[str],
    folder: Path,
    *,
    environ: Mapping[str, str] | None = None,
    left_out: Collection[str] = (),
    dev_options: str = "",
    limit_s: float = _LIMIT_S,
    when_up: Callable[[str], object] = str,
) -> list[tuple[str, float]]:
    """Follow the page from its first to its last command; return the commands and their seconds.

    `shell` is the command of a shell that begins in `folder`, seen from here; `left_out` has how
    the commands begin that are not copied; `when_up` is given what `sparkstorm dev` has printed
    once its cluster is up. AssertionError when a command fails, prints something
    else than the page shows, or does not come so far within `limit_s`.
    """
    # where SIGINT is ignored, as in a command with `&` of a script, the terminals would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first = Terminal(shell, folder, "first", environ)
    second = Terminal(shell, folder, "second", environ)
    took: list[tuple[str, float]] = []
    try:
        all_steps = list(steps())
        in_second = {
            number for _, text, number in all_steps if text.startswith(_SECOND_TERMINAL + "\n")
        }
        for kind, text, number in all_steps:
            name, _, rest = text.partition("\n")
            began = time.monotonic()
            if kind == "file":
                (folder / name).write_text(rest, encoding="utf-8")
                continue
            if name.startswith(tuple(left_out)):
                continue
            if name == _SECOND_TERMINAL:
                second.type(f"{name} {dev_options}")
                status, said = second.read(until="/?token=")
                assert status == -1, f"{said}{second.errors.read_text()[-3000:]}"
                when_up(said)
            else:
                _copy(second if number in in_second else first, name, rest.rstrip("\n"), limit_s)
            took.append((name, time.monotonic() - began))
            print(f"{took[-1][1]:6.1f} s  {name}", flush=True)
        second.interrupt()
        status, said = second.read()
        assert status == 0, f"{said}{second.errors.read_text()[-3000:]}"
    finally:
        first.close()
        second.close()
    return took


def main(arguments: Sequence[str]) -> int:
    """Follow the page in the shell of the command line; return 0, or 1 after the step that
    failed.
    """
    folder, dashes, *shell = arguments
    assert dashes == "--" and shell, "python -m tests.tutorial FOLDER -- SHELL ..."
    try:
        took = follow(shell, Path(folder), limit_s=1800)
    except AssertionError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(took)} commands in {sum(seconds for _, seconds in took):.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
