"""Checks what a verb imports before it does its work: heavy libraries are slow to import, and a
verb that only looks needs none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparkstorm.cli.__main__ as cli

_HEAVY = ("numpy", "pyarrow", "pandas", "pyspark", "starlette", "uvicorn", "cloudpickle", "textual")
_STORES = ("redis", "kazoo")
_SUBMITTING = (
    "sparkstorm.api",
    "sparkstorm.client.submission",
    "sparkstorm.control_plane.scheduling.catalogue",
)
_SHOUT = """
from sparkstorm.api import BasicBolt, Spout, TopologyBuilder


class Words(Spout):
    outputs = ("word",)


class Shout(BasicBolt):
    def execute(self, tup, collector):
        print(tup["word"])


def build():
    builder = TopologyBuilder()
    builder.set_spout("words", Words())
    builder.set_bolt("shout", Shout(), inputs="words")
    return builder.build()
"""
_REFUSING = """
import sys

class Refused:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in {names!r}:
            raise AssertionError(f"a verb imports {{name}} before it needs it")

sys.meta_path.insert(0, Refused)
from sparkstorm.cli.__main__ import parser
for verb in {verbs!r}:
    parser(verb)
"""


def ended(
    names: tuple[str, ...], verbs: list[str], more: str = ""
) -> subprocess.CompletedProcess[str]:
    """Return the end of an interpreter that imports the verbs' modules, and dies at the first
    import of a name.
    """
    program = _REFUSING.format(names=names, verbs=verbs) + more
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )


def test_the_list_of_verbs_imports_none_of_them() -> None:
    # or `sparkstorm --help` and a mistyped verb take a second
    found = ended((*_HEAVY, *_STORES, *_SUBMITTING), [""])
    assert (found.returncode, found.stderr) == (0, "")


def test_a_verb_that_looks_imports_clients_of_stores_and_neither_arrays_nor_what_submits() -> None:
    look = (
        "from sparkstorm.cli.cluster_verbs import connect\n"
        "try:\n    connect('/nowhere/connection.json')\nexcept Exception as error: print(error)\n"
        "import sparkstorm.cli.topologies\n"
        "from sparkstorm.control_plane.insight.sampler import Sampler\n"
        "assert 'kazoo.client' in sys.modules and 'redis' in sys.modules\n"
        "print(len(sys.modules))\n"
    )
    found = ended((*_HEAVY, *_SUBMITTING), [], look)
    assert (found.returncode, found.stderr) == (0, "")
    assert "/nowhere/connection.json" in found.stdout
    # a twentieth above what it was when this was set
    assert int(found.stdout.split()[-1]) <= 550


_COUNTED = """
import os, sys
from sparkstorm.cli import main
try:
    main({words!r})
except SystemExit:
    pass
print(len(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (["--help"], 280),
        (["completion", "bash"], 200),
        (["context", "list"], 190),
        (["explain", "topology.workers"], 345),
        (["show", "job.yaml"], 370),
    ],
)
def test_a_verb_without_a_cluster_imports_few_modules_and_no_client_of_a_store(
    words: list[str], most: int, tmp_path: Path
) -> None:
    # a count is the same on every machine; 100 modules of ours or Python's are some 30 ms. Each
    # bound is a tenth above what it was when it was set.
    (tmp_path / "shout.py").write_text(_SHOUT)
    (tmp_path / "job.yaml").write_text("name: shout\ntopology: shout:build\n")
    refusing = _REFUSING.format(names=(*_HEAVY[:4], *_STORES), verbs=[])
    done = subprocess.run(
        [sys.executable, "-c", refusing + _COUNTED.format(words=words)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
    )
    assert done.returncode == 0 and done.stdout, done.stderr
    assert int(done.stderr.split()[-1]) <= most


def test_a_refused_import_is_seen() -> None:
    found = ended(("redis",), [], "import redis")
    assert found.returncode == 1 and "a verb imports redis before" in found.stderr


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("explain '*' | head -1", 0),
        ("explain '*' | true", 0),
        ("explain '*' >&-", 0),
        ("explain no.such.key 2>&-", 1),
        ("explain no.such.key >&- 2>&-", 1),
        ("list --cluster /nowhere >&-", 1),
        ("--version | true", 0),
        ("completion bash >/dev/full", 1),
        ("init /proc/new", 1),
    ],
)
def test_a_stream_that_nobody_reads_ends_a_verb_without_a_traceback(
    words: str, status: int
) -> None:
    command = f"{sys.executable} -m sparkstorm.cli {words}"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == status and "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) <= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("list --watch inf", "must be at most a year, got inf seconds"),
        ("list --cluster=", "the value is empty"),
        ("submit job.yaml --name=", "the value is empty"),
    ],
)
def test_an_argument_that_means_nothing_is_refused(words: str, said: str) -> None:
    command = [sys.executable, "-m", "sparkstorm.cli", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2 and said in done.stderr


def test_ctrl_c_while_arguments_are_read_ends_a_verb_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "parser", interrupted)
    assert cli.main(["list"]) == 130
