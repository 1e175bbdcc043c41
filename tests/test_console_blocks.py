"""Console blocks of the documents: commands that need no cluster run here and print what their page
shows.
"""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from sparkstorm.cli import main as cli
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.testing.__main__ import main as simulation
from tests import pages

ROOT = pages.ROOT
DOCUMENTS = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")}
    - {ROOT / "README.md", ROOT / "docs" / "tutorial.md"}
)
"""tests/system/test_readme.py runs README, tests/test_wheel.py the tutorial, in two terminals."""
_RUN = {"init", "show", "explain", "schedule", "recorded", "dead-letters", "capsule"}
"""Verbs of `sparkstorm` that run; so do `python -m sparkstorm.testing` and scripts of jobs/ that
start nothing.
"""
_NOT_RUN = {
    "make": "installs, or starts Spark and servers; `make test` is the suite",
    "pip": "installs",
    ".": "changes the shell",
    "export": "changes the shell",
    "kill": "kills the driver of the page's cluster",
    "spark-submit": "starts Spark; tests/system and tests/replay run the scripts",
    "python jobs/run_topology.py": "starts Spark; tests/system runs it",
    "sparkstorm cluster": "starts Spark; tests/system/test_standing_cluster.py runs it",
    "sparkstorm dev": "starts Spark and servers; tests/test_wheel.py runs it",
    "sparkstorm submit": "of a cluster; tests/cli/test_verbs.py runs the verbs of clusters",
    "sparkstorm update": "of a cluster",
    "sparkstorm doctor": "of a cluster; tests/cli/test_doctor.py runs it",
    "sparkstorm blob": "of a cluster; tests/cli/test_verbs.py runs it",
    "sparkstorm list": "of a cluster",
    "sparkstorm status": "of a cluster",
    "sparkstorm tasks": "of a cluster",
    "sparkstorm rebalance": "of a cluster",
    "sparkstorm scale": "of a cluster; tests/cli/test_verbs.py runs the verbs of clusters",
    "sparkstorm kill": "of a cluster",
    "sparkstorm savepoint": "of a cluster; tests/system/test_standing_cluster.py runs it",
    "sparkstorm web": "of a cluster; tests/test_wheel.py and tests/web serve the page",
    "sparkstorm context": "changes the user's own file; tests/cli/test_contexts.py runs it",
    "sparkstorm run": "starts Spark; tests/test_wheel.py runs it",
    "sparkstorm upgrade": "of a cluster; `shadow` reads a recording of one, tests/cli/test_upgrade_texts.py",
}
"""Commands that are parsed only (test_docs.py), and why."""
_VARIES = {"recorded", "sparkstorm.testing"}
"""Commands whose output follows from draws and the clock: it is compared without numbers and words
in capitals.
"""


class Command(NamedTuple):
    """A command of a page and the lines that the page shows below it."""

    place: str
    words: list[str]
    shown: list[str]

    @property
    def name(self) -> str:
        """The program, with its verb or script."""
        if self.words[0] not in {"sparkstorm", "python"}:
            return self.words[0]
        return " ".join(self.words[: 3 if self.words[1] == "-m" else 2])

    @property
    def is_run(self) -> bool:
        """Whether this module runs it."""
        return self.name not in _NOT_RUN


def _commands(document: Path) -> Iterator[Command]:
    text = document.read_text(encoding="utf-8")
    for block in re.finditer(r"```console\n(.*?)```", text, re.DOTALL):
        place = f"{document.name}:{text[: block.start()].count(chr(10)) + 1}"
        lines = re.sub(r"\\\n\s*", "", block.group(1)).splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in pairwise([*starts, len(lines)]):
            for part in lines[start][2:].split(" ; "):
                yield Command(
                    place,
                    shlex.split(part.partition(" | ")[0], comments=True),
                    lines[start + 1 : end],
                )


COMMANDS = [command for document in DOCUMENTS for command in _commands(document)]


def _execute(words: list[str]) -> int:
    """Run a command in this process; its exit status."""
    if words[0] == "sparkstorm":
        assert words[1] in _RUN
        return cli(words[1:])
    if words[1:3] == ["-m", "sparkstorm.testing"]:
        return simulation([*words[3:], "--processes", "1"])
    sys.argv = words[1:]
    runpy.run_path(words[1], run_name="__main__")
    return 0


def _prepare(command: Command) -> None:
    """Make the files that a command reads, in the working folder."""
    for word in command.words:
        if word == "words.yaml":
            pages.write_flux_document(Path(word))
        elif word == "dead-letters.jsonl":
            failure = Failure(
                FailureKind.RAISED,
                "KeyError: 'x' (shout.py, line 14)",
                "count",
                3,
                traceback="in count",
            )
            conf = {"topology.builder": "shout:build"}
            letter = DeadLetter(
                failure,
                "shout",
                2,
                "default",
                ("word",),
                ("STORM",),
                4,
                state=(("STORM", 1),),
                conf=conf,
            )
            Path(word).write_text(letter.to_line("1700000000000-0") + "\n", encoding="utf-8")
        elif "/recorded/" in word:
            pages.record_count(Path(word).absolute())
        elif (ROOT / word).is_file() and "/" in word:
            Path(word).parent.mkdir(parents=True, exist_ok=True)
            Path(word).write_bytes((ROOT / word).read_bytes())


def _pattern(command: Command) -> str:
    """Return a pattern of the output that a page shows: a line `...` is any lines."""
    pattern = "".join(
        "(?:.*\n)*" if line == "..." else re.escape(line) + "\n" for line in command.shown
    )
    if _VARIES & {*command.words}:
        pattern = re.sub(r'"[A-Z]+"', '".*"', re.sub(r"\d+(?:\\\.\d+)?", r"[\\d.]+", pattern))
    return pattern


@pytest.mark.parametrize(
    "command",
    [command for command in COMMANDS if command.is_run],
    ids=lambda command: f"{command.place}-{command.name}",
)
def test_a_command_that_needs_no_cluster_runs_and_prints_what_its_page_shows(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    with pages.folder_of_examples(tmp_path, monkeypatch):
        _prepare(command)
        capsys.readouterr()
        assert _execute(command.words) == 0
    printed = capsys.readouterr().out
    assert not command.shown or re.fullmatch(_pattern(command), printed), printed


def test_the_commands_that_are_not_run_are_those_of_the_pages() -> None:
    assert {command.name for command in COMMANDS if not command.is_run} == set(_NOT_RUN)
    assert len([command for command in COMMANDS if command.is_run]) >= 8
