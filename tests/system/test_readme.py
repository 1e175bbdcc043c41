"""README's commands, typed in order in one shell, in a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Of all commands on a busy machine; on a quiet one they take a minute and a half.
LIMIT_S = 1_200
# A command that goes on in the background has printed what README shows before the next is typed.
_WAIT = "until grep -q '{line}' {file}; do kill -0 $! || exit 7; sleep 0.2; done; cat {file}"


def commands() -> list[tuple[str, list[str]]]:
    """Return each command with the lines that README shows below it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        lines = block.splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in pairwise([*starts, len(lines)]):
            found.append((lines[start][2:], lines[start + 1 : end]))
    return found


def script() -> str:
    """Return the commands as one script that prints a line before each."""
    lines = ["set -em"]
    for number, (command, shown) in enumerate(commands()):
        lines.append(f"echo '@@ {number}'")
        if command.endswith(" &"):
            file = f"background-{number}.log"
            lines.append(f"{command.removesuffix('&')}>{file} 2>&1 &")
            awaited = next(line for line in shown if line != "...")
            lines.append(_WAIT.format(line=awaited.partition(":")[0], file=file))
        elif command.startswith("sparkstorm status"):
            # 1: it is not well, since some of its orders become dead letters
            lines.append(f"{command} || [ $? -eq 1 ]")
        else:
            lines.append(command)
    return "\n".join([*lines, "wait || true", "echo '@@ end'"])


def pattern(shown: list[str]) -> str:
    """Return a pattern of what README shows: `...` is any lines, and a number or path any other."""
    return "".join("(?:.*\n)*" if line == "..." else f"{_any_numbers(line)}\n" for line in shown)


def _any_numbers(line: str) -> str:
    parts = re.split(r"((?:/[\w.-]+)+|[\d,.]*\d)", line)
    text = "".join(
        (r"\S+" if part.startswith("/") else r"[\d.,]+") if number % 2 else re.escape(part)
        for number, part in enumerate(parts)
    )
    return re.sub(r"(\\ )+", " +", text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree with the environment of this one. Its files are older than that: `make`
    would install the copy into it.
    """
    words = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
            os.utime(tmp_path / name, (0, 0))
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    return tmp_path


@pytest.mark.system
@pytest.mark.nightly
def test_every_command_of_readme_runs_in_order_in_one_shell(tree: Path) -> None:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        ["bash", "-c", script()],
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.endswith("@@ end\n"), done.stdout
    printed = re.split(r"^@@ \w+\n", done.stdout, flags=re.MULTILINE)[1:-1]
    for (command, shown), output in zip(commands(), printed, strict=True):
        assert not shown or re.search(pattern(shown), output), f"{command}\n{output}"
    counted = {path.read_text() for path in tree.glob("results/shout-*/count.jsonl")}
    replayed = {path.read_text() for path in tree.glob("results/history/count.jsonl")}
    assert len(counted) == 1
    assert _sorted(counted.pop()) == _sorted(replayed.pop())


def _sorted(text: str) -> list[str]:
    return sorted(text.splitlines())
