"""The page of all commands, from the parsers of the command line. `python -m tests.cli_page` writes
docs/cli.md anew.

Parsers are walked, not printed: every Python writes the same page.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sparkstorm.cli.__main__ import GROUPS, parser

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "cli.md"
_COMMON = ("--help", "--cluster", "--context", "--json")
_OFTEN = 4  # an option or argument of as many commands is told once, in front
_HEAD = """# Commands

Every command of `sparkstorm` with its options. Written by `python -m tests.cli_page`; a test
compares them.

Commands of a running cluster take `--cluster FILE`, else `SPARKSTORM_CLUSTER`, or `--context NAME`; and `--json`,
which writes JSON for programs. Exit status: 0 done, 1 refused or failed (one sentence on stderr), 2 wrong arguments,
130 stopped with Ctrl-C. `submit`, `run` and `follow` also: 3 done, but tuples were parked; 4 done, but Redis had lost
data. `status` and `doctor`: 1 when something is at fault.

Ctrl-C of a command that follows a topology leaves the topology running and prints the command that follows it again.
Ctrl-C of `cluster` ends slots, Nimbus, Spark and the embedded servers in order; topologies go on from their last
commits with the next start.

Options and arguments of several commands, which name them as *common*:
"""


def _sub_commands(made: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _leaves(
    words: list[str], made: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    below = _sub_commands(made)
    if not below:
        yield " ".join(words), made
    for name, subparser in below.items():
        yield from _leaves([*words, name], subparser)


def _text(words: str | None) -> str:
    text = " ".join((words or "").replace("%%", "%").split())
    # what would begin a link, a tag or emphasis is text, but in code
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\[<*_])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    choices = None if action.choices is None else "|".join(map(str, action.choices))
    named = action.metavar or (f"{{{choices}}}" if choices else action.dest.upper())
    name = " ".join(named) if isinstance(named, tuple) else str(named)
    return {"*": f"[{name} ...]", "+": f"{name} ...", "?": f"[{name}]"}.get(str(action.nargs), name)


def _told(action: argparse.Action) -> str:
    """Return the line that tells an option or argument; empty without a help of its own."""
    value, help = _value(action), _text(str(action.help)) if action.help else ""
    if not action.option_strings:
        return f"* `{value}`: {help}" if help else ""
    return f"* `{', '.join(action.option_strings)}{f' {value}' if value else ''}`: {help}"


def _shown(made: argparse.ArgumentParser) -> list[argparse.Action]:
    return [
        action
        for action in made._actions
        if action.help != argparse.SUPPRESS and not set(_COMMON) & set(action.option_strings)
    ]


def _entry(command: str, made: argparse.ArgumentParser, common: set[str]) -> list[str]:
    shown = _shown(made)
    places = [_value(action) for action in shown if not action.option_strings]
    options = " [options]" if len(places) < len(shown) else ""
    usage = " ".join(["sparkstorm", command + options, *places])
    lines = [f"### {command}", "", f"`{usage}`", ""]
    if made.description:
        lines += [_text(made.description), ""]
    told = [line for line in map(_told, shown) if line and line not in common]
    names = [
        f"`{action.option_strings[0]}`"
        for action in shown
        if action.option_strings and _told(action) in common
    ]
    told += [f"* common: {', '.join(names)}"] if names else []
    return [*lines, *told, *([""] if told else [])]


def page() -> str:
    """Return the page."""
    commands = _sub_commands(parser())
    groups = {
        title: [
            leaf
            for names in modules.values()
            for name in names
            for leaf in _leaves([name], commands[name])
        ]
        for title, modules in GROUPS.items()
    }
    counted = Counter(
        line
        for leaves in groups.values()
        for _, made in leaves
        for line in map(_told, _shown(made))
        if line
    )
    common = [line for line, count in counted.items() if count >= _OFTEN]
    lines = [_HEAD, *common, ""]
    for title, leaves in groups.items():
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        for command, made in leaves:
            lines += _entry(command, made, set(common))
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written")
