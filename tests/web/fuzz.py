"""Schemathesis against the web server, by its own OpenAPI description: `make fuzz`.

Without an option the server is that of a simulated word count. `--cluster` starts a real one, whose
topology runs and is submitted again whenever a request has ended it; `--at` takes the address that
`sparkstorm web` has printed, with its token. What is asked may kill, drop and drain: give it a
cluster that is there for it. Each run ends after its time: `--seconds` for the first two, a minute
for those that follow.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.insight.watched import watched
from tests.web.fuzzed import fuzzed
from tests.web.listening import listening
from tests.web.served import SimulatedClient

_LINE = b"a line of a log\n"
_LONG = r"/(traces|stacks)/"
"""Routes that answer after the seconds that they are asked for."""
_STREAMS = r"/stream$"
"""Routes that do not end; `tests/web/test_streams.py` asks them."""
_KILLS = r"/kill/"
_LOOKS_S = 60


@contextmanager
def simulated() -> Iterator[str]:
    """Serve a simulated word count with a failed tuple, an open message and a log."""
    with watched(**{"topology.max.retries": 1, "topology.retry.backoff.ms": 1_000}) as run:
        logs: dict[str, bytes] = {}
        run.feed(5)
        run.feed(1, "a bad word")
        run.pass_seconds(10)
        logs |= dict.fromkeys(run.sampler.topology("words").workers, _LINE * 20)
        with listening(run.sampler, lambda: SimulatedClient(run.cluster, logs)) as at:
            yield f"http://127.0.0.1:{at.port}/?token={at.token}"


def names(address: str, token: str, is_simulated: bool) -> dict[str, Any]:
    """Return names that there are, by the parameters that ask for them."""
    there = urlsplit(address)
    connection = http.client.HTTPConnection(there.hostname or "", there.port, timeout=60)

    def get(path: str) -> Any:
        connection.request("GET", path, headers={"authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return json.loads(answer.read())

    cluster = get("/api/sparkstorm/v1/cluster")
    line = next(iter(cluster["topologies"].values()))
    view = get(f"/api/sparkstorm/v1/topology/{line['name']}")
    letters = get(f"/page/letters/{line['name']}")["letters"]
    component = next(each for each in view["components"].values() if each["kind"] != "spout")
    slot = next(iter(view["workers"]))
    # a real one is submitted again under another id
    topology = line["id"] if is_simulated else line["name"]
    return {
        "name": line["name"],
        "topology": topology,
        "id": topology,
        "component": component["id"],
        "task": next(iter(component["tasks"])),
        "slot": slot,
        "worker": slot,
        "host": next(iter(cluster["hosts"])),
        "owner": line["owner"],
        "file": f"{topology}/{slot}/worker.log",
        "letter": next(iter(letters), "0-0"),
    }


def config(known: Mapping[str, Any]) -> str:
    """Return Schemathesis's configuration: the names that there are, so that more than 404 is
    reached, and what is waived.
    """
    parts = {f"path.{name}": value for name, value in known.items()}
    parts |= {"query.file": parts.pop("path.file")} if known else {}
    letter = parts.pop("path.letter", "0-0")
    given = "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in parts.items())
    return f"""
[parameters]
{given}

[[operations]]
include-path = "/page/capsule/{{topology}}/{{id}}"
parameters = {{ "path.id" = {json.dumps(letter)} }}

# needs an id or a host, which OpenAPI cannot say
[[operations]]
include-path = "/api/v1/supervisor"
checks.positive_data_acceptance.enabled = false

# its reason must be printable, for which JSON Schema has no word
[[operations]]
include-path = "/api/sparkstorm/v1/host/{{host}}/{{verb}}"
checks.positive_data_acceptance.enabled = false
"""


class Fuzz:
    """Runs of Schemathesis against one server."""

    def __init__(self, program: str, address: str, more: Sequence[str]) -> None:
        there = urlsplit(address)
        [self.token] = parse_qs(there.query)["token"]
        self._home = f"{there.scheme}://{there.netloc}"
        self._program, self._more = program, more

    def run(
        self, seconds: int, known: Mapping[str, Any], *options: str, without: str = _STREAMS
    ) -> int:
        """Ask for so many seconds, with the names that are known; return the exit status."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "schemathesis.toml").write_text(config(known))
            words = [self._program, "run", f"{self._home}/api/openapi.json"]
            words += ["--header", f"Authorization: Bearer {self.token}"]
            words += ["--request-timeout", "120", "--max-time", str(seconds)]
            words += [*options, "--exclude-path-regex", without, *self._more]
            return subprocess.run(words, check=False, cwd=folder).returncode


def main() -> int:
    """Ask with names that nothing has, then with those that are there; of a simulated cluster
    nothing that ends the topology.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", help="schemathesis, in an environment of its own")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--at", default="", help="address of a running `sparkstorm web`")
    where.add_argument("--cluster", action="store_true", help="start a real cluster")
    parser.add_argument("--seconds", type=int, default=180, help="of each of the first two runs")
    parser.add_argument("more", nargs="*", help="options of `schemathesis run`, after --")
    given = parser.parse_args()
    is_simulated = not given.at and not given.cluster
    server = fuzzed() if given.cluster else _there(given.at) if given.at else simulated()
    with server as address:
        fuzz = Fuzz(str(Path(given.program).absolute()), address, given.more)
        units = ("--phases", "examples,coverage,fuzzing")
        # each also runs when another has found something
        found = [fuzz.run(given.seconds, {}, *units)]
        known = names(address, fuzz.token, is_simulated)
        # a simulated worker answers no look, and a change is not sampled before the next reading
        ends = rf"{_KILLS}|{_LONG}" + (r"|/do/|/rebalance/|/host/" if is_simulated else "")
        found.append(fuzz.run(given.seconds, known, *units, without=f"{_STREAMS}|{ends}"))
        if not is_simulated:
            # by the examples of the description, which look for a second
            looks = ("--phases", "examples", "--include-path-regex", _LONG)
            found.append(fuzz.run(_LOOKS_S, known, *looks))
            # last, since what was killed is away until it is submitted again
            found.append(fuzz.run(_LOOKS_S, known, *units, "--include-path-regex", _KILLS))
    return max(found)


@contextmanager
def _there(address: str) -> Iterator[str]:
    yield address


if __name__ == "__main__":
    sys.exit(main())
