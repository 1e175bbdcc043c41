"""Command line of a replay (`sparkstorm replay`, `spark-submit jobs/replay_history.py`), with the
job file of the live run.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparkstorm.common.config import parse_override
from sparkstorm.common.errors import InvalidConfigError, ReplayFailedError
from sparkstorm.common.model.topology import DEFAULT_STREAM, Topology
from sparkstorm.driver.exit_status import guarded
from sparkstorm.driver.job_file import make_topology, read_job_file, say_warnings
from sparkstorm.driver.replay.job_part import NOTE, read_replay, with_inputs
from sparkstorm.driver.replay.options import EXITS, add_options
from sparkstorm.driver.replay.run import ReplayRun

_ADVICE = re.compile(r"; skip_bad (?=(?:puts such|names the) [^;]*\Z)")


def main(arguments: Sequence[str], prog: str = "replay_history.py") -> int:
    """Replay a job's topology over history; the result is the process's exit status, as `--help`
    explains it.
    """
    parser = argparse.ArgumentParser(
        prog=prog, description="Run a topology over history, as a Spark batch.", epilog=EXITS
    )
    add_options(parser)
    options = parser.parse_args(list(arguments))
    return guarded(lambda: _perform(options))


def _perform(options: argparse.Namespace) -> int:
    overrides = dict(parse_override(c) for c in options.c)
    job = read_job_file(options.conf, overrides, options.name)
    say_warnings(overrides, job.own_conf, options.conf)
    file = read_replay(options.conf, {**job.replay, **_given(options)})
    if file.checkpoint and options.input:  # then they are the spouts', as live
        job = replace(job, arguments={**job.arguments, "input": list(options.input)})
    topology, by_value = make_topology(job, is_live=False)
    file = with_inputs(file, () if file.checkpoint else options.input, _only_stream(topology))
    folder = _folder(options)
    against = Path(options.against) if options.against else None
    if against is not None and not against.is_dir():
        raise InvalidConfigError(
            f"--against {against} is no folder: name the --output of a replay of the other version"
        )

    try:
        run = ReplayRun(job, topology, by_value, file)
        return run.write(folder, options.output_format, against)
    except ReplayFailedError as error:
        raise ReplayFailedError(_in_words_of_options(str(error))) from error


def _in_words_of_options(text: str) -> str:
    """Return the text of an error, whose advice names an argument of `replay()`, with the option of
    the command line.
    """
    return _ADVICE.sub("; --skip-bad ", text)


def _given(options: argparse.Namespace) -> dict[str, object]:
    given = {
        "format": options.format,
        "event_time": options.event_time,
        "outputs": options.result or None,
        "checkpoint": options.checkpoint,
        "from_checkpoint": options.from_checkpoint,
        "rows": dict(map(_rows, options.rows)) or None,
    }
    if options.skip_bad:
        given["skip_bad"] = True
    return {key: value for key, value in given.items() if value is not None}


def _rows(text: str) -> tuple[str, int]:
    spout, _, count = text.partition("=")
    if not count.isascii() or not count.isdigit():
        raise InvalidConfigError(f"--rows {text}: write SPOUT=NUMBER")
    return spout, int(count)


def _folder(options: argparse.Namespace) -> Path:
    folder = Path(options.output)
    if folder.exists() and not folder.is_dir():
        raise InvalidConfigError(f"--output {folder} is no folder; name another one")
    # The note is written before the results: alone it is left by a replay that failed.
    has_results = folder.exists() and any(entry.name != NOTE for entry in folder.iterdir())
    if has_results and not options.overwrite:
        raise InvalidConfigError(
            f"--output {folder}: there is something already; name another folder, or add --overwrite"
        )
    return folder


def _only_stream(topology: Topology) -> str | None:
    streams = [
        s.id if name == DEFAULT_STREAM else f"{s.id}:{name}"
        for s in topology.spouts
        for name in s.streams
    ]
    return streams[0] if len(streams) == 1 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "sparkstorm replay"))
