"""A user's whole project on executors: what a host lacks is named before the start; archives and
files bring it there.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.system.main_job import MainJob

pytestmark = [pytest.mark.system, pytest.mark.nightly]
MODULE = """
import sys
sys.path.append({packages!r})  # where only the submitter has it
from carried_words import shout
from sparkstorm.api import StatefulBolt, TopologyBuilder
from sparkstorm.connectors import FileLines, find_files

class Count(StatefulBolt):
    def prepare(self, conf, context):
        self.stops = open(context.file("stops.txt")).read().split()

    def execute(self, tup, collector):
        for word in tup["line"].split():
            if word not in self.stops:
                self.state.add(shout(word), 1)

def build(input=()):
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(find_files(input)))
    builder.set_bolt("count", Count(), inputs="lines")
    return builder.build()
"""


def test_a_host_that_lacks_a_package_is_named_and_an_archive_brings_it(tmp_path: Path) -> None:
    # a folder of this name holds what is installed, and does not travel by itself
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "carried_words.py").write_text("def shout(word):\n    return word.upper()\n")
    (tmp_path / "travels.py").write_text(MODULE.format(packages=str(packages)))
    (tmp_path / "travels.yaml").write_text("topology: travels:build\nresults: {component: count}\n")
    (tmp_path / "stops.txt").write_text("the a\n")
    (tmp_path / "lines.txt").write_text("the cat\na dog the cat\n" * 50)
    run = MainJob(
        tmp_path / "run",
        tmp_path / "travels.yaml",
        [tmp_path / "lines.txt"],
        "local-cluster[2,2,1024]",
    )
    files = ["--files", str(tmp_path / "stops.txt")]
    try:
        run.start(*files)
        assert run.wait() == 1
        assert "Invalid topology: the topology cannot run on host " in run.output()
        assert "module 'carried_words' is neither installed on host " in run.output()
        assert "Traceback" not in run.output()
        with zipfile.ZipFile(tmp_path / "words.zip", "w") as archive:
            archive.write(packages / "carried_words.py", "lib/site-packages/carried_words.py")
        run.start(*files, "--archives", str(tmp_path / "words.zip"))
        assert run.wait() == 0, run.output()
    finally:
        run.close()
    [found] = run.folder.glob("results/*/count.jsonl")
    assert dict(map(json.loads, found.read_text().splitlines())) == {"CAT": 100, "DOG": 50}
