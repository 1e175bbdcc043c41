"""Owns the test that defaults.yaml and the code speak of the same keys."""

from __future__ import annotations

import pytest

from sparkstorm.config import check, inert_among, keys
from sparkstorm.errors import InvalidConfigError
from tests.key_use import read_keys, undeclared

_MEND = "run `python -m tests.key_use`"


@pytest.mark.slow
def test_a_key_is_read_by_the_code_or_marked_inert() -> None:
    read = read_keys()
    assert not [key.name for key in keys().values() if not key.inert and key.name not in read], _MEND
    assert not [key.name for key in keys().values() if key.inert and key.name in read], _MEND


@pytest.mark.slow
def test_the_code_reads_no_key_that_defaults_yaml_does_not_know() -> None:
    assert undeclared() == []


def test_inert_keys_can_be_told_from_those_that_work() -> None:
    inert = [name for name, key in keys().items() if key.inert]
    assert inert_among(["topology.workers", *inert, "app.mine"]) == inert


def test_defect_14_no_key_has_a_blank() -> None:
    assert "storm.machine.resource.reserve.mem" in keys()
    assert not [name for name in keys() if name != "".join(name.split())]
    with pytest.raises(InvalidConfigError, match=r"storm\.machine\.resource\.reserve\.mem"):
        check({" storm.machine.resource.reserve.mem": 1}, "a file")
