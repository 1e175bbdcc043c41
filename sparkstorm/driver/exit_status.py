"""Exit statuses of jobs, replays and clusters, and the two ways to one: from an error, and at once.

The command line (`driver/job.py`) imports the modules that run a job, and they all need the statuses:
in the command line's module they made a circle of imports.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable

from sparkstorm.common.errors import SparkStormError

OK = 0
FAILED = 1
PARKED = 3  # not 2, argparse's status of a wrong command line
DATA_LOST = 4
INTERRUPTED = 130  # 128 and SIGINT's number, as shells count
_NO_JVM = (
    "Spark's JVM ended while it was starting: killed (also for want of memory), a Java or an option that Spark does not take, "
    "or a name of this host that it cannot resolve (UnknownHostException: add '127.0.1.1 NAME' to /etc/hosts); "
    "what it said itself is above; nothing was begun"
)
_LOST_JVM = (
    "its JVM ended, and with it this run: it was killed, also for want of memory (what it said itself is above); "
    "give the same command again"
)


def guarded(run: Callable[[], int]) -> int:
    """Return the exit status of a job, a replay or a cluster; an error is one sentence with its
    kind.
    """
    try:
        return run()
    except SparkStormError as error:
        sys.stdout.flush()
        print(f"{title(error)}: {error}", file=sys.stderr, flush=True)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # PySpark's text for a JVM that ended before it was connected to
        if "JAVA_GATEWAY_EXITED" in str(error):
            print(f"Slots unavailable: {_NO_JVM}", file=sys.stderr, flush=True)
            return FAILED
        if _is_of_lost_jvm(error):
            print(f"Spark is gone: {_LOST_JVM}", file=sys.stderr, flush=True)
            return FAILED
        # a fault of ours: report it, with all that helps to find it
        traceback.print_exc()
        print(
            f"SparkStorm failed unexpectedly, please report it: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return FAILED


def _is_of_lost_jvm(error: Exception) -> bool:
    """Return whether py4j has lost its JVM: it raises its own error, lets the socket's
    through, or takes a name for missing that nobody answered for.
    """
    if type(error).__name__ == "Py4JError":
        return str(error).endswith("does not exist in the JVM")
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_cut = isinstance(error, OSError) or type(error).__name__ == "Py4JNetworkError"
    return is_cut and any(
        str(frame.f_globals.get("__name__")).startswith("py4j.") for frame in frames[-3:]
    )


def leave(status: int) -> None:
    """End the process at once, threads of Spark's or the user's notwithstanding."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader is gone
            stream.flush()
    os._exit(status)


def title(error: SparkStormError) -> str:
    """InvalidConfigError: Invalid config."""
    name = type(error).__name__.removesuffix("Error")
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
    return words.capitalize()
