"""A topology's code is opened in a fresh process before an upgrade begins."""

import hashlib
import os
import signal
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.client.submission import packed
from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.common.model.topology import Topology
from sparkstorm.data_plane.user_code.local_modules import remove_sources
from sparkstorm.data_plane.user_code.topology_code import (
    check_classes,
    classes_in,
    open_topology,
    pack_topology,
)
from sparkstorm.data_plane.user_code.trial import CodeTrial, try_code
from sparkstorm.testing import FeederSpout


class Helped(BasicBolt):
    def __init__(self, helper: Any) -> None:
        self.helper = helper

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        self.helper()


def plain() -> None:
    """A helper that travels."""


def topology(helper: Any) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("lines", FeederSpout())
    builder.set_bolt("help", Helped(helper), inputs="lines")
    built = builder.build()
    return Topology({"help": built.components["help"]})


@pytest.mark.slow
def test_code_that_does_not_import_in_a_fresh_process_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    try_code("words", pack_topology(topology(plain), ["tests"]))
    here = types.ModuleType("only_here")
    exec("def helper(): pass", here.__dict__)
    here.helper.__module__ = "only_here"
    monkeypatch.setitem(sys.modules, "only_here", here)
    sentence = r"upgrade of words: the code does not open.*only_here"
    with pytest.raises(InvalidTopologyError, match=sentence):
        try_code("words", pack_topology(topology(here.helper), ["tests"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "no_such_module:Order",
            "module 'no_such_module' is neither installed on host .* nor sent along",
        ),
        ("decimal:NoSuch", " cannot be imported: AttributeError"),
    ],
)
def test_classes_that_settings_name_are_tried_too(name: str, words: str) -> None:
    built = topology(plain)
    good = classes_in(
        built, {"topology.serializers": ["decimal:Decimal"], "topology.worker.hooks": "none"}
    )
    assert good == {"decimal:Decimal": "topology.serializers"}
    try_code("words", pack_topology(built, ["tests"], classes=good))
    hooked = Topology(
        {"help": replace(built.components["help"], conf={"topology.auto.task.hooks": [name]})}
    )
    with pytest.raises(InvalidTopologyError, match=f"topology.auto.task.hooks: '{name}'.*{words}"):
        try_code("words", pack_topology(hooked, ["tests"], classes=classes_in(hooked, {})))


def test_the_local_module_of_a_class_that_a_setting_names_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_values.py").write_text("class Order:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code = packed(topology(plain), [], {"topology.serializers": ["shop_values:Order"]})
    monkeypatch.undo()
    file = tmp_path / "modules.zip"
    open_topology(code, hashlib.sha256(code).hexdigest(), file)
    try:
        check_classes(code)
    finally:
        remove_sources(file)


class Hangs:
    """Code that never opens."""

    def __reduce__(self) -> Any:
        return time.sleep, (1000,)


@pytest.mark.slow
def test_code_that_hangs_is_ended_by_its_own_clock_or_by_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    code.write_bytes(pack_topology(topology(Hangs()), ["tests"]))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    quick = "import sys, sparkstorm.data_plane.user_code.trial as t; t._PATIENCE_SECS = 1; t.main(*sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", quick, str(code), str(tmp_path)], timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGALRM
    first, second = (CodeTrial(code, scratch=tmp_path) for _ in range(2))
    assert first.poll() is None
    first.close()
    assert first._process.returncode == -signal.SIGKILL
    os.kill(second._process.pid, signal.SIGALRM)
    second.wait()
    assert second.poll() == "the code did not open within 120 s"
    second.close()
    assert list(tmp_path.iterdir()) == [code]
