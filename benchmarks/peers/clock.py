"""Times of cases in a process that runs one after the other, without psutil: peers run in
environments of their own.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
# Begins a line of standard output that is an answer: Spark and Flink print there too
MARK = "field-answer "
_LONGEST_ERROR = 600


def cpu_seconds() -> float:
    """Return user and system time of this process and its descendants, ended ones that were waited
    for included.
    """
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        rest = text[text.rindex(")") + 2 :].split()
        stats[int(path.parent.name)] = (int(rest[1]), sum(map(int, rest[11:15])))
    total = 0
    pids = {os.getpid()}
    while pids:
        total += sum(stats[pid][1] for pid in pids if pid in stats)
        pids = {pid for pid, (parent, _) in stats.items() if parent in pids}
    return total / TICKS


def serve(run: Callable[[str, str, str], Mapping[Any, Any]], collect: Callable[[], Any]) -> None:
    """Run what is asked for by lines of JSON on standard input, until it ends.

    `run` gets a kind, a case and the folder of its files, and returns the answer. `collect` is
    called before the clock starts: garbage of one case is not paid for by the next one.
    """
    for line in sys.stdin:
        asked = json.loads(line)
        collect()
        cpu = cpu_seconds()
        began = time.perf_counter()
        try:
            answer = run(asked["kind"], asked["case"], asked["folder"])
        except Exception as error:
            _say({"failed": _cause(error)})
            continue
        seconds = time.perf_counter() - began
        pairs = [
            [list(key) if isinstance(key, tuple) else key, value] for key, value in answer.items()
        ]
        _say({"seconds": seconds, "cpu": cpu_seconds() - cpu, "answer": pairs})


def _say(record: Mapping[str, Any]) -> None:
    print(MARK + json.dumps(record), flush=True)


def _cause(error: Exception) -> str:
    """Return the last cause that a JVM names, else the error's text."""
    text = str(error)
    causes = [line.strip() for line in text.splitlines() if "Caused by: " in line]
    return (causes[-1] if causes else f"{type(error).__name__}: {text}")[:_LONGEST_ERROR]
