"""Verbs that need no cluster: explain, show, schedule, recorded."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkstorm.cli import terminal
from sparkstorm.cli.common import OK, add_job_options, write_json
from sparkstorm.common import config
from sparkstorm.common.errors import RecordingError, reason_of
from sparkstorm.driver.job_file import make_topology, read_job
from sparkstorm.notebook.topology_graph import dot, graph_of, mermaid, picture, rows_of

_FORMS = {
    "svg": "write a picture",
    "mermaid": "write a Mermaid flowchart",
    "dot": "write Graphviz's language",
    "json": "write JSON, for programs",
}


def explain(arguments: argparse.Namespace) -> int:
    """Print what configuration keys do: effect, values, default; `*` is a wildcard."""
    for pattern in arguments.keys:
        for text in config.explain(pattern):
            terminal.show(text)
    return OK


def show(arguments: argparse.Namespace) -> int:
    """Print the topology of a job file without running it: a table, or a picture or text for other
    programs.
    """

    job = read_job(arguments)
    graph = graph_of(make_topology(job)[0], job.conf)
    if arguments.form == "json":
        write_json({"name": job.name, **asdict(graph)})
    elif arguments.form == "table":
        terminal.show(
            terminal.table(
                ("component", "kind", "executors", "tasks", "inputs"),
                rows_of(graph),
                terminal.columns(),
            )
        )
    else:
        forms = {
            "svg": lambda: picture(graph, f"topology {job.name}").text,
            "mermaid": lambda: mermaid(graph),
            "dot": lambda: dot(graph),
        }
        print(forms[arguments.form]())
    return OK


def _problems(path: str, one_per_line: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the problems of a file, each behind what names it in an error."""
    content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    file = "standard input" if path == "-" else path
    if one_per_line:
        for number, line in enumerate(content.split(b"\n"), 1):
            if line.strip():
                yield f"{file}, line {number}: ", line
    else:
        yield f"{file}: ", content


def schedule(arguments: argparse.Namespace) -> int:
    """Answer scheduling problems, one line of JSON each; 1 when any was malformed or unreadable."""
    from sparkstorm.extensions.laboratory.form.solve import answer_to

    status = 0
    if ":" in (arguments.scheduler or ""):
        # a class of the user's, as `python -m` would see it
        sys.path.append(os.getcwd())
    for path in arguments.files:
        try:
            problems = list(_problems(path, arguments.lines))
        except (OSError, ValueError) as error:  # ValueError: a path with a null byte
            print(json.dumps({"error": f"{path} cannot be read: {reason_of(error)}"}))
            status = 1
            continue
        for where, problem in problems:
            answer, well_formed = answer_to(problem, arguments.why, arguments.scheduler, where)
            print(answer, flush=True)
            status = status if well_formed else 1
    return status


def recorded(arguments: argparse.Namespace) -> int:
    """Show the tuples that a bolt's task was given, as one line of JSON each; 1 when nothing can be
    read.
    """
    from sparkstorm.extensions.recording.stepping.recorded import recorded as read

    try:
        for part in read(arguments.path):
            for tup in part.tuples:
                shown = {
                    "task": part.task,
                    "at_ms": tup.at_ms,
                    "from": f"{tup.component}#{tup.task}",
                    "stream": tup.stream,
                    "values": tup.values,
                    "failure": tup.failure,
                }
                print(json.dumps(shown, ensure_ascii=False, default=repr), flush=True)
    except RecordingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def add_verbs(verbs: Any) -> None:
    """Add them to the command line."""
    verb = verbs.add_parser("explain", description=explain.__doc__)
    verb.add_argument(
        "keys", nargs="+", metavar="KEY", help="a key, or a pattern such as 'topology.max.*'"
    )
    verb.set_defaults(run=explain)
    verb = verbs.add_parser("show", description=show.__doc__)
    verb.add_argument("conf", metavar="CONF.yaml", help="the job file")
    add_job_options(verb)
    forms = verb.add_mutually_exclusive_group()
    for form, what in _FORMS.items():
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, help=what)
    verb.set_defaults(run=show, form="table")
    verb = verbs.add_parser("schedule", description=schedule.__doc__)
    verb.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help='a problem as JSON (shown in benchmarks/conformance), "-" for stdin',
    )
    verb.add_argument("--lines", action="store_true", help="one problem per line")
    verb.add_argument(
        "--why", action="store_true", help="add the reason of each place to the answers"
    )
    verb.add_argument(
        "--scheduler",
        metavar="NAME",
        help="answer by this one, also by a class of yours (module:Class), in place of the file's",
    )
    verb.set_defaults(run=schedule)
    verb = verbs.add_parser("recorded", description=recorded.__doc__)
    verb.add_argument(
        "path",
        metavar="PATH",
        help="folder of a task, or a file in it, below `recorded` in the folder of the logs",
    )
    verb.set_defaults(run=recorded)
