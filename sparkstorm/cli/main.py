"""Owns the `sparkstorm` command: one verb per thing that can be asked, each with its arguments and its function."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sparkstorm.scheduling.form.solve import answer_to

Verb = Callable[[argparse.Namespace], int]


def _problems(path: str, one_per_line: bool) -> Iterator[bytes]:
    content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    if one_per_line:
        yield from (line for line in content.split(b"\n") if line.strip())
    else:
        yield content


def schedule(arguments: argparse.Namespace) -> int:
    """Answer scheduling problems, one line of JSON each; 1 when any was malformed or unreadable."""
    status = 0
    for path in arguments.files:
        try:
            problems = list(_problems(path, arguments.lines))
        except (OSError, ValueError) as error:  # ValueError: a path with a null byte
            print(json.dumps({"error": f"{path}: cannot be read: {error}"}))
            status = 1
            continue
        for problem in problems:
            answer, well_formed = answer_to(problem, arguments.why)
            print(answer, flush=True)
            status = status if well_formed else 1
    return status


def recorded(arguments: argparse.Namespace) -> int:
    """Show the tuples that a bolt's task was given, as one line of JSON each; 1 when nothing can be read."""
    from sparkstorm.errors import RecordingError
    from sparkstorm.replay.recorded import recorded as read

    try:
        for part in read(arguments.path):
            for each in part.tuples:
                shown = {
                    "task": part.task,
                    "at_ms": each.at_ms,
                    "from": f"{each.component}#{each.task}",
                    "stream": each.stream,
                    "values": each.values,
                    "failure": each.failure,
                }
                print(json.dumps(shown, ensure_ascii=False, default=repr), flush=True)
    except RecordingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def dead_letters(arguments: argparse.Namespace) -> int:
    """List or drop the tuples that topologies have given up; they stay until they are dropped."""
    from sparkstorm.cli.dead_letters import drop_letters, list_letters

    return drop_letters(arguments) if arguments.action == "drop" else list_letters(arguments)


def parser() -> argparse.ArgumentParser:
    """The command line; a verb is a sub-command that sets `run`."""
    made = argparse.ArgumentParser(prog="sparkstorm", description="Storm topologies in Python, hosted on Spark.")
    verbs = made.add_subparsers(required=True, metavar="VERB")
    verb = verbs.add_parser("schedule", help="answer scheduling problems", description=schedule.__doc__)
    verb.add_argument("files", nargs="+", metavar="FILE", help='a problem as JSON (shown in benchmarks/conformance), "-" for stdin')
    verb.add_argument("--lines", action="store_true", help="one problem per line")
    verb.add_argument("--why", action="store_true", help="add the reason of each place to the answers")
    verb.set_defaults(run=schedule)
    verb = verbs.add_parser("recorded", help="show a bolt's recorded input", description=recorded.__doc__)
    verb.add_argument("path", metavar="PATH", help="folder of a task, or a file in it, below `recorded` in the folder of the logs")
    verb.set_defaults(run=recorded)
    verb = verbs.add_parser("dead-letters", help="list or drop tuples that were given up", description=dead_letters.__doc__)
    actions = verb.add_subparsers(required=True, metavar="ACTION", dest="action")
    action = actions.add_parser("list", help="by cause, the most frequent first")
    action.add_argument(
        "where", metavar="FILE", help="a run's dead-letters.jsonl, a replay's folder of them, or a cluster's connection.json"
    )
    action.add_argument("topology", nargs="?", metavar="TOPOLOGY", help="name or id; else all of the cluster's")
    action.add_argument("--lines", action="store_true", help="each letter as a line of JSON, its values whole")
    action = actions.add_parser("drop", help="delete those of one topology from Redis; files stay")
    action.add_argument("where", metavar="CONNECTION.json", help="the connection.json of the cluster")
    action.add_argument("topology", metavar="TOPOLOGY", help="name or id")
    verb.set_defaults(run=dead_letters)
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
