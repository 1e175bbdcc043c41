"""Schemathesis against the web server, by its own OpenAPI description: `make fuzz`.

Without an address the server is that of a simulated word count; `--at` takes the address that
`sparkstorm web` has printed, with its token. What is asked may kill, drop and drain: give it a
cluster that is there for it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.insight.watched import watched
from tests.web.listening import listening
from tests.web.served import SimulatedClient

_LINE = b"a line of a log\n"
_LONG = r"/(traces|stacks)/|/stream$"
"""Routes that answer after seconds, or not at all before they are left."""


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
    return {
        "name": line["name"],
        "topology": line["id"],
        "id": line["id"],
        "component": component["id"],
        "task": next(iter(component["tasks"])),
        "slot": slot,
        "worker": slot,
        "host": next(iter(cluster["hosts"])),
        "owner": line["owner"],
        "file": f"{line['id']}/{slot}/worker.log",
        # a capsule names the function that built the topology, which a simulated one has not
        "letter": "0-0" if is_simulated else next(iter(letters), "0-0"),
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


def run(program: str, address: str, more: list[str], known: Mapping[str, Any]) -> int:
    """Run Schemathesis over all routes; return its exit status."""
    there = urlsplit(address)
    [token] = parse_qs(there.query)["token"]
    home = f"{there.scheme}://{there.netloc}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "schemathesis.toml").write_text(config(known))
        words = [program, "run", f"{home}/api/openapi.json", "--header"]
        words += [f"Authorization: Bearer {token}", "--request-timeout", "120"]
        words += ["--phases", "examples,coverage,fuzzing", *more]
        return subprocess.run(words, check=False, cwd=folder).returncode


def main() -> int:
    """Ask with names that nothing has, then with those that are there, but nothing that ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="schemathesis, in an environment of its own")
    parser.add_argument("--at", default="", help="address of a running `sparkstorm web`")
    parser.add_argument("more", nargs="*", help="options of `schemathesis run`, after --")
    given = parser.parse_args()
    with simulated() if not given.at else _there(given.at) as address:
        [token] = parse_qs(urlsplit(address).query)["token"]
        program = str(Path(given.program).absolute())
        # a simulated worker answers no look, and a change is not sampled before the next reading
        ends = r"/kill/|/do/|/stream$" + ("" if given.at else rf"|/rebalance/|/host/|{_LONG}")
        # each also runs when the other has found something
        first = run(program, address, [*given.more, "--exclude-path-regex", _LONG], {})
        known = names(address, token, not given.at)
        second = run(program, address, [*given.more, "--exclude-path-regex", ends], known)
    return first or second


@contextmanager
def _there(address: str) -> Iterator[str]:
    yield address


if __name__ == "__main__":
    sys.exit(main())
