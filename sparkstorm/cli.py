"""Owns the `sparkstorm` command: one verb per thing that can be asked, each with its arguments and its function."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sparkstorm.scheduling.form.solve import answer_to

Verb = Callable[[argparse.Namespace], int]


def _problems(path: str, one_per_line: bool) -> Iterator[str]:
    content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    text = content.decode("utf-8")
    if one_per_line:
        yield from (line for line in text.split("\n") if line.strip())
    else:
        yield text


def schedule(arguments: argparse.Namespace) -> int:
    """Answer scheduling problems, one line of JSON each; 1 when any was malformed or unreadable."""
    status = 0
    for path in arguments.files:
        try:
            problems = list(_problems(path, arguments.lines))
        except (OSError, UnicodeDecodeError) as error:
            print(json.dumps({"error": f"{path}: cannot be read: {error}"}))
            status = 1
            continue
        for problem in problems:
            answer, well_formed = answer_to(problem)
            print(answer, flush=True)
            status = status if well_formed else 1
    return status


def parser() -> argparse.ArgumentParser:
    """The command line; a verb is a sub-command that sets `run`."""
    made = argparse.ArgumentParser(prog="sparkstorm", description="Storm topologies in Python, hosted on Spark.")
    verbs = made.add_subparsers(required=True, metavar="VERB")
    verb = verbs.add_parser("schedule", help="answer scheduling problems", description=schedule.__doc__)
    verb.add_argument("files", nargs="+", metavar="FILE", help='a problem as JSON (shown in benchmarks/conformance), "-" for stdin')
    verb.add_argument("--lines", action="store_true", help="one problem per line")
    verb.set_defaults(run=schedule)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; its exit status."""
    arguments = parser().parse_args(argv)
    run: Verb = arguments.run
    try:
        return run(arguments)
    except BrokenPipeError:  # whoever read our output has enough (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 1


if __name__ == "__main__":
    sys.exit(main())
