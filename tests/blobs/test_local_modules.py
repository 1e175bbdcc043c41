"""Modules next to a topology: which of them travel, and that a process without their folder can use
them.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkstorm.client.submission import packed
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.data_plane.user_code import local_modules as modules
from sparkstorm.data_plane.user_code.local_modules import local_spec, pack_sources
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.data_plane.user_code.trial import try_code
from sparkstorm.driver.job_file import make_topology, read_job_file

TOPOLOGY = """
    import json
    import mylib_ops
    from mypack_ops.deep import shout
    from sparkstorm.api import BasicBolt, Spout, TopologyBuilder

    class Words(Spout):
        outputs = ("word",)
        def open(self, conf, context, collector): pass
        def next_tuple(self): pass

    class Shout(BasicBolt):
        outputs = ("word",)
        def prepare(self, conf, context):
            import lazy_ops
            self.lazy = lazy_ops.NAME
        def execute(self, tup, collector):
            return mylib_ops.twice(shout(tup) + self.lazy)

    def build():
        builder = TopologyBuilder()
        builder.set_spout("words", Words())
        builder.set_bolt("shout", Shout()).shuffle_grouping("words")
        builder.set_bolt("theirs", mylib_ops.Theirs()).shuffle_grouping("shout")
        return builder.build()
"""
FUNCTIONS = """
    import mylib_ops
    from sparkstorm.api import TopologyBuilder, bolt
    from sparkstorm.connectors import Rate

    @bolt
    def shout(tup):
        mylib_ops.twice(tup["value"])

    def build():
        builder = TopologyBuilder()
        builder.set_spout("words", Rate(1))
        builder.set_bolt("shout", shout, inputs="words")
        return builder.build()
"""
OPEN = """
    import sys
    from pathlib import Path
    from sparkstorm.data_plane.user_code.topology_code import open_topology
    folder = Path(sys.argv[1])
    topology, make = open_topology((folder / "code").read_bytes(), sys.argv[2], folder / "modules.zip")
    bolt = make("shout")
    bolt.prepare({}, None)
    print(bolt.execute("a", None), type(make("theirs")).__name__)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A topology with a module, a package and a module that is imported late next to it."""
    job = tmp_path / "job"
    (job / "mypack_ops").mkdir(parents=True)
    sources = {
        "topology_ops.py": TOPOLOGY,
        "topology_ops.yaml": "topology: topology_ops:build\n",
        "unrelated_ops.py": "1 / 0\n",
        "lazy_ops.py": "NAME = '!'\n",
        "mypack_ops/__init__.py": "",
        "mypack_ops/deep.py": "from .voice import shout\n",
        "mypack_ops/voice.py": "def shout(text):\n    return text.upper()\n",
        "mylib_ops.py": """
            from sparkstorm.api import BasicBolt
            def twice(text):
                return text * 2
            class Theirs(BasicBolt):
                def execute(self, tup, collector): pass
        """,
    }
    for name, source in sources.items():
        (job / name).write_text(textwrap.dedent(source))
    before = [*sys.path], {*sys.modules}
    yield job
    sys.path[:] = before[0]
    for name in {*sys.modules} - before[1]:
        if "_ops" in name:
            del sys.modules[name]


def pack(folder: Path, has_sources: bool = True) -> bytes:
    topology, by_value = make_topology(read_job_file(str(folder / "topology_ops.yaml")))
    return pack_topology(topology, by_value, pack_sources(by_value) if has_sources else b"")


def open_elsewhere(code: bytes, folder: Path) -> subprocess.CompletedProcess[str]:
    """Open a topology in a process of another folder, as a worker on another host does."""
    folder.mkdir()
    (folder / "code").write_bytes(code)
    arguments = [
        sys.executable,
        "-c",
        textwrap.dedent(OPEN),
        str(folder),
        hashlib.sha256(code).hexdigest(),
    ]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)


def test_what_lies_beside_a_topology_and_is_imported_travels_with_it(
    folder: Path, tmp_path: Path
) -> None:
    found = open_elsewhere(pack(folder), tmp_path / "host")
    assert (found.stdout.split(), found.stderr) == (["A!A!", "Theirs"], "")


@pytest.mark.slow
def test_the_module_of_functions_travels_with_a_topology_that_a_program_submits(
    folder: Path,
) -> None:
    sys.path.append(str(folder))
    (folder / "functions_ops.py").write_text(textwrap.dedent(FUNCTIONS))
    topology = importlib.import_module("functions_ops").build()
    try_code("functions", packed(topology, None, {}))
    with pytest.raises(InvalidTopologyError, match="module 'functions_ops' is neither installed"):
        try_code("functions", pack_topology(topology))


def test_only_what_is_imported_travels_and_the_same_sources_make_the_same_bytes(
    folder: Path,
) -> None:
    pack(folder)  # makes the folder importable
    (folder / "mypack_ops" / "inner").mkdir()
    (folder / "mypack_ops" / "inner" / "most.py").touch()
    (folder / "mypack_ops" / "a_folder.py").mkdir()
    # as Emacs locks a file that it edits: a link to no file
    (folder / "mypack_ops" / ".#voice.py").symlink_to("someone@host.1234")
    os.mkfifo(folder / "mypack_ops" / "a_pipe.py")
    archive = pack_sources(["topology_ops"])
    assert set(zipfile.ZipFile(io.BytesIO(archive)).namelist()) == {
        "topology_ops.py",
        "mylib_ops.py",
        "lazy_ops.py",
        "mypack_ops/__init__.py",
        "mypack_ops/deep.py",
        "mypack_ops/voice.py",
        "mypack_ops/inner/most.py",
    }
    assert archive == pack_sources(["topology_ops"])


def test_a_module_that_a_host_has_not_is_named_with_the_host_in_one_sentence(
    folder: Path, tmp_path: Path
) -> None:
    found = open_elsewhere(pack(folder, has_sources=False), tmp_path / "host")
    last = found.stderr.strip().splitlines()[-1]
    assert (
        "module 'mylib_ops' is neither installed on host" in last
        or "module 'mypack_ops' is neither installed" in last
    )


def test_a_module_that_is_too_large_to_travel_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(folder)
    monkeypatch.setattr(modules, "MAX_SOURCE_BYTES", 60)
    sentence = r"module 'topology_ops' \(.*topology_ops\.py\).* install it on the hosts"
    with pytest.raises(InvalidTopologyError, match=sentence):
        pack_sources(["topology_ops"])


@pytest.mark.parametrize(
    "name", ["json", "redis", "numpy", "sparkstorm", "sys", "__main__", "no_such_module_ops"]
)
def test_what_every_host_has_or_nobody_has_does_not_travel(name: str) -> None:
    assert local_spec(name) is None
    assert pack_sources([name]) == b""


def test_an_archive_takes_the_place_of_a_former_one_and_no_other_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("every archive on the path would be read anew")

    monkeypatch.setattr(importlib, "invalidate_caches", refuse)
    file = tmp_path / "ops.zip"
    for version in (1, 2):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("swapped_ops/__init__.py", "")
            archive.writestr(f"swapped_ops/inner_{version}.py", f"VERSION = {version}\n")
        modules.add_sources(packed.getvalue(), file)
        assert version == importlib.import_module(f"swapped_ops.inner_{version}").VERSION
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"swapped_ops.inner_{3 - version}")
        modules.remove_sources(file)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("swapped_ops")
    assert not file.exists() and str(file) not in sys.path
