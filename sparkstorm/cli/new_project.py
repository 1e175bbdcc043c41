"""The verb `init`: a folder with a topology, its job file, tests, a notebook and a CI file, all of
which run as they are.
"""

from __future__ import annotations

import argparse
import json
import keyword
import re
import shlex
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from sparkstorm import __version__
from sparkstorm.cli.common import OK
from sparkstorm.common.errors import InvalidConfigError, show

_PIPELINE = '''"""The topology of this project: counts the words of text files."""

from sparkstorm.api import TopologyBuilder, bolt
from sparkstorm.connectors import FileLines, find_files


@bolt("word")
def split(tup):
    """Emit a tuple for each word; it is anchored to `tup`, which is acked when the function ends."""
    for word in tup["line"].split():
        yield word.strip(".,;:!?").lower()


@bolt(key="word")
def count(tup, state):
    """Count a word; the state is written in the same commit as the ack."""
    if tup["word"]:
        state.add(tup["word"], 1)


def build(input=(__file__,)):
    """Return the topology; `input` are files or folders."""
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(find_files(input)))
    builder.set_bolt("split", split, inputs="lines", parallelism=2)
    builder.set_bolt("count", count, inputs="split", parallelism=2)  # by its key: equal words reach the same task
    return builder.build()
'''

_JOB = """name: NAME
topology: MODULE:build
results: {component: count, top: 10}
topology.workers: 2
# any other key: sparkstorm explain KEY
"""

_TEST = '''"""Tests of the topology: no server, no Spark, simulated time."""

from MODULE import build
from sparkstorm.testing import complete_topology, simulate

LINES = {"lines": [["The fox"], ["the end."]]}


def test_words_are_counted():
    assert complete_topology(build(), LINES).state("count") == {"the": 2, "fox": 1, "end": 1}


def test_nothing_is_lost_or_counted_twice_whatever_is_killed():
    simulate(build(), range(5), sources=LINES)
'''

_CELLS = (
    (
        "markdown",
        "# NAME\n\nThe topology in one thread and simulated time: feed it, look into its state, kill a worker.",
    ),
    (
        "code",
        "from sparkstorm.testing import LocalCluster, complete_topology\n\nfrom MODULE import build",
    ),
    (
        "code",
        'result = complete_topology(build(), {"lines": [["the fox"], ["the end"]]})\nresult.state("count")',
    ),
    (
        "code",
        "with LocalCluster() as cluster:\n"
        '    cluster.submit(build(), name="NAME")\n'
        "    cluster.advance(1)\n"
        "    cluster.kill_worker()  # nothing is lost or doubled\n"
        "    cluster.run_until_idle()\n"
        '    words = cluster.state("count")\n'
        "len(words)",
    ),
)

_MAKEFILE = """.PHONY: run test
# The active environment if it has what is needed, else one made here from requirements.txt
ACTIVE := $(shell python3 -c 'import pytest, sparkstorm' 2>/dev/null && echo yes)
PYTHON := $(if $(ACTIVE),python3,.venv/bin/python)

run: $(if $(ACTIVE),,.venv/installed)
	@$(PYTHON) -m sparkstorm.cli run job.yaml $(ARGS)

test: $(if $(ACTIVE),,.venv/installed)
	@$(PYTHON) -m pytest -q

.venv/installed: requirements.txt
	@python3 -m venv .venv && .venv/bin/python -m pip install --quiet -r requirements.txt
	@touch $@
"""

_CI = """name: test
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {python-version: "3.11"}
      - run: make test
"""

_README = """# NAME

A topology of SparkStorm. `MODULE.py` has its bolts, `job.yaml` its settings.

```console
$ make test                             # without servers and Spark, in simulated time
$ make run                              # on this machine: slots on Spark, an embedded Redis and ZooKeeper
$ make run ARGS='--input some/folder'
```

On a cluster: `sparkstorm submit job.yaml`. Over history: `sparkstorm replay job.yaml --input some/folder`.
"""


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = verbs.add_parser(
        "init",
        description=init.__doc__,
    )
    verb.add_argument(
        "folder",
        metavar="NAME",
        help="the folder to make; its last part names project and topology",
    )
    verb.set_defaults(run=init)


def init(arguments: argparse.Namespace) -> int:
    """Make the folder of a new project: topology, job file, tests, notebook, Makefile and CI file,
    ready for `make test`.
    """
    folder = Path(arguments.folder)
    files = project_files(folder.name)
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        raise InvalidConfigError(
            f"{show(str(folder))} is there already and not an empty folder: choose another name"
        )
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(
        f"{folder}: {', '.join(sorted(files))}\ngo on with: cd {shlex.quote(str(folder))} && make test"
    )
    return OK


def project_files(name: str) -> Mapping[str, str]:
    """Return a project's files, each path with its text; InvalidConfigError for a name that no
    module can have.
    """
    module = name.replace("-", "_")
    if (
        not re.fullmatch(r"[a-zA-Z]\w*", module, re.ASCII)
        or keyword.iskeyword(module)
        or module in ("sparkstorm", "test")
    ):
        raise InvalidConfigError(
            f"{show(name)} cannot name a project: take letters, digits, - and _, a letter first, no word of Python's"
        )

    def filled(text: str) -> str:
        return text.replace("NAME", name).replace("MODULE", module)

    return {
        f"{module}.py": _PIPELINE,
        "job.yaml": filled(_JOB),
        f"test_{module}.py": filled(_TEST),
        f"{module}.ipynb": filled(_notebook()),
        "Makefile": _MAKEFILE,
        # without it pytest takes the settings of a project in a folder above
        "pytest.ini": "[pytest]\n",
        "requirements.txt": f"{_requirement()}\npytest\n",
        "README.md": filled(_README),
        ".gitignore": ".venv/\n__pycache__/\n.pytest_cache/\nresults/\nstorm-local/\n",
        ".github/workflows/test.yml": _CI,
    }


def _requirement() -> str:
    """Return the line by which pip finds this SparkStorm again: the checkout or the wheel that it
    was installed from (PEP 610), else its version.
    """
    origin = distribution("sparkstorm").read_text("direct_url.json")
    if origin is None:
        return f"sparkstorm=={__version__}"
    fields = json.loads(origin)
    is_editable = fields.get("dir_info", {}).get("editable", False)
    return f"-e {fields['url']}" if is_editable else f"sparkstorm @ {fields['url']}"


def _notebook() -> str:
    cells: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(_CELLS):
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": text,
        }
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell)
    return (
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)
        + "\n"
    )
