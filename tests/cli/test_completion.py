"""Checks the completion of the command line: words from the parsers, live names, and the script in
its shell.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable

import pytest

from sparkstorm.cli.__main__ import main, parser
from sparkstorm.cli.completion import candidates, live_names

_NAMES = {
    "NAME": ["words", "w$(id)", "words-2"],
    "ID": ["count", "split"],
    "NODE:PORT": ["node-1:6700", "node-2:6700"],
}
_asked: list[tuple[str, str | None, str | None]] = []


def names(metavar: str, topology: str | None, file: str | None) -> Iterable[str]:
    _asked.append((metavar, topology, file))
    return _NAMES.get(metavar, ())


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("", None),
        ("stat", ["status"]),
        ("status ", ["words", "words-2"]),
        ("status words-", ["words-2"]),
        ("status words ", []),
        ("status words --js", ["--json"]),
        ("errors words --component ", ["count", "split"]),
        ("errors words --component c", ["count"]),
        ("restart words --worker node-1", ["node-1:6700"]),
        ("dead-letters ", ["drop", "list", "replay", "show"]),
        ("dead-letters list ", ["words", "words-2"]),
        ("hosts ex", ["exclude"]),
        ("completion ", ["bash", "fish", "zsh"]),
        ("nonsense ", []),
        ("show ", []),
    ],
)
def test_words_come_from_the_parsers_and_the_cluster(line: str, found: list[str] | None) -> None:
    words = line.split(" ")
    got = candidates(words, parser(words[0] if len(words) > 1 else ""), names)
    if found is None:
        assert {"status", "kill", "web", "completion"} <= {*got}
    else:
        assert got == found


def test_names_are_those_of_the_topology_and_the_cluster_that_were_typed() -> None:
    _asked.clear()
    candidates(["errors", "--cluster", "far.json", "words", "--component", ""], parser(), names)
    assert _asked == [("ID", "words", "far.json")]


def test_configuration_keys_are_offered_and_a_cluster_that_is_away_offers_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPARKSTORM_CLUSTER", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")  # no contexts
    assert main(["__complete", "explain", "topology.max.spout.p"]) == 0
    assert capsys.readouterr().out == "topology.max.spout.pending\n"
    result = [each for each in live_names("KEY=VALUE", None, None) if "max.spout.p" in each]
    assert result == ["topology.max.spout.pending="]
    assert main(["__complete", "status", ""]) == 0
    assert capsys.readouterr().out == "\n"


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "answer", "asked", "replies"),
    [
        ("sparkstorm status wo", "words\nwords-2", "<__complete><status><wo>", "<words><words-2>"),
        ("sparkstorm status ", "words", "<__complete><status><>", "<words>"),
        (
            "sparkstorm restart w --worker node-1:67",
            "node-1:6700",
            "<__complete><restart><w><--worker><node-1:67>",
            "<6700>",
        ),
        ("sparkstorm show ", "", "<__complete><show><>", ""),
    ],
)
def test_bash_asks_for_the_words_before_the_cursor(
    line: str, answer: str, asked: str, replies: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = f"""
{script("bash", capsys)}
sparkstorm() {{ printf '<%s>' "$@" >&3; printf '%s\\n' '{answer}'; }}
compopt() {{ :; }}
COMP_LINE='{line} and more' COMP_POINT={len(line)}
exec 3>&1
_sparkstorm
echo
[[ -z ${{COMPREPLY[0]}} ]] || printf '<%s>' "${{COMPREPLY[@]}}"
complete -p sparkstorm >&2
"""
    ended = subprocess.run(
        ["bash", "--norc", "-c", typed], capture_output=True, text=True, timeout=20
    )
    assert ended.stderr.strip() == "complete -o default -F _sparkstorm sparkstorm"
    assert ended.stdout == f"{asked}\n{replies}"


_CASES = [
    # line, answer, words asked for, what the shell offers
    ("sparkstorm status wo", "words words-2", "<__complete><status><wo>", ["words", "words-2"]),
    ("sparkstorm status ", "words", "<__complete><status><>", ["words"]),
    (
        "sparkstorm restart w --worker node-1:67",
        "node-1:6700",
        "<__complete><restart><w><--worker><node-1:67>",
        ["node-1:6700"],
    ),
    ("sparkstorm submit -c topology.w", "topology.workers=", None, ["topology.workers="]),
]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(("line", "answer", "asked", "offered"), _CASES)
def test_zsh_asks_for_the_words_before_the_cursor(
    line: str,
    answer: str,
    asked: str | None,
    offered: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, _, word = line.rpartition(" ")
    typed = f"""
compdef() {{ print -u2 "$@"; }}
compadd() {{ print -rl -- "${{@[$@[(i)--]+1,-1]}}"; }}
_files() {{ print files; }}
sparkstorm() {{ printf '<%s>' "$@" >&3; print >&3; print -l {answer}; }}
{script("zsh", capsys)}
words=({before} '{word}behind') CURRENT=$#words PREFIX='{word}'
exec 3>&1
_sparkstorm
"""
    ended = subprocess.run(["zsh", "-f", "-c", typed], capture_output=True, text=True, timeout=20)
    assert ended.stderr == "_sparkstorm sparkstorm\n"
    said, *found = ended.stdout.split()
    assert asked in (None, said) and found == offered


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(("line", "answer", "asked", "offered"), _CASES)
def test_fish_asks_for_the_words_before_the_cursor(
    line: str,
    answer: str,
    asked: str | None,
    offered: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = f"""
function sparkstorm; printf '<%s>' $argv >&2; printf '%s\\n' {answer}; end
{script("fish", capsys)}
complete -C '{line}'
"""
    typed = typed.replace("2>/dev/null", "")  # to see what was asked
    ended = subprocess.run(
        ["fish", "--no-config", "-c", typed], capture_output=True, text=True, timeout=20
    )
    assert asked in (None, ended.stderr) and ended.stdout.split() == offered
