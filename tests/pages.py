"""Examples of the documents: the Python blocks of a page, run in order in one module, in a folder
with README's example.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType

import pytest

from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.extensions.recording.capsule_files import write_capsule
from sparkstorm.testing import LocalCluster

ROOT = Path(__file__).parents[1]


def blocks(document: Path) -> list[tuple[int, str]]:
    """Return line and text of every Python example."""
    text = document.read_text(encoding="utf-8")
    matches = re.finditer(r"```python\n(.*?)```", text, re.DOTALL)
    return [(text[: block.start(1)].count("\n") + 1, block.group(1)) for block in matches]


def first_bolt() -> dict[str, str]:
    """Return the files of README's example by name."""
    names = ("shout.py", "shout.yaml", "test_shout.py")
    return {name: (ROOT / "examples" / name).read_text(encoding="utf-8") for name in names}


@contextmanager
def folder_of_examples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make a folder with README's example the working one, from which its module is imported."""
    for name, block in first_bolt().items():
        (folder / name).write_text(block, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    try:
        yield
    finally:
        sys.modules.pop("shout", None)


def write_flux_document(path: Path) -> None:
    """Write a Flux document of classes that are installed."""
    spouts = "spouts: [{id: words, className: sparkstorm.connectors.FileLines, constructorArgs: [[shout.py]]}]\n"
    bolts = "bolts: [{id: log, className: org.apache.storm.flux.wrappers.bolts.LogInfoBolt}]\n"
    streams = "streams: [{from: words, to: log, grouping: {type: SHUFFLE}}]\n"
    path.write_text(f"name: words\n{spouts}{bolts}{streams}", encoding="utf-8")


def write_capsule_of_count(path: Path) -> None:
    """Write the capsule of an input of the example's `count`."""
    failure = Failure(
        FailureKind.RAISED, "KeyError: 'x' (shout.py, line 14)", "count", 3, traceback="in count"
    )
    write_capsule(
        path,
        DeadLetter(failure, "shout", 2, "default", ("word",), ("STORM",), 4, state=(("STORM", 1),)),
    )


def record_count(path: Path) -> None:
    """Write a recording of the example's `count`, over its own file, to a folder."""
    shout = import_module("shout")
    conf = {
        "topology.record.components": ["count"],
        "topology.record.directory": str(path.parents[4]),
    }
    with LocalCluster() as cluster:
        cluster.submit(shout.build(), conf)
        cluster.run_until_idle()
    newest = max(path.parents[4].glob("recorded/*/count/task-*"))
    path.parent.mkdir(parents=True, exist_ok=True)
    newest.rename(path)


def run(
    page: Path, monkeypatch: pytest.MonkeyPatch, replaced: Mapping[str, str] = MappingProxyType({})
) -> tuple[ModuleType, list[str]]:
    """Run every block and the tests that it defines; return the module and the names of these
    tests.

    `replaced` has what else a text of the page is to be, such as a path that a JVM would take from
    the folder it began in.
    """
    module = ModuleType(f"{page.stem}_page")
    # where what is pickled by its name is found
    monkeypatch.setitem(sys.modules, module.__name__, module)
    passed = []
    for line, block in blocks(page):
        for text, other in replaced.items():
            block = block.replace(text, other)
        before = set(vars(module))
        exec(compile("\n" * (line - 1) + block, str(page), "exec"), vars(module))
        for name in [
            name for name in vars(module) if name.startswith("test_") and name not in before
        ]:
            vars(module)[name]()
            passed.append(name)
    return module, passed
