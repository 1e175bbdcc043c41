"""A topology's code is opened in a fresh process before an upgrade begins."""

import sys
import types
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, Tuple
from sparkstorm.blobs.topology_code import pack_topology
from sparkstorm.blobs.trial import try_code
from sparkstorm.errors import InvalidTopologyError
from sparkstorm.model.topology import Topology
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
def test_code_that_does_not_import_in_a_fresh_process_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    try_code("words", pack_topology(topology(plain), ["tests"]))
    here = types.ModuleType("only_here")
    exec("def helper(): pass", here.__dict__)
    here.helper.__module__ = "only_here"
    monkeypatch.setitem(sys.modules, "only_here", here)
    with pytest.raises(InvalidTopologyError, match=r"upgrade of words: the code does not open.*only_here"):
        try_code("words", pack_topology(topology(here.helper), ["tests"]))
