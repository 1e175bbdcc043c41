"""Configuration keys: defaults.yaml lists those that the code reads, unsupported.yaml the others of
Storm and JStorm.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkstorm.common.config import check, keys, merge, unsupported_among, unsupported_keys
from sparkstorm.common.errors import InvalidConfigError
from tests import key_page
from tests.key_use import read_keys, undeclared


def test_a_key_is_read_by_the_code_or_listed_as_unsupported() -> None:
    assert sorted(set(keys()) - read_keys()) == []
    assert sorted(set(unsupported_keys()) & set(keys())) == []


@pytest.mark.slow
def test_the_code_reads_no_key_that_defaults_yaml_does_not_know() -> None:
    assert undeclared() == []


def test_an_unsupported_key_is_accepted_named_with_its_mend_and_left_out() -> None:
    said = unsupported_among(["topology.workers", "topology.debug", "app.mine"])
    assert said == [f"topology.debug is not supported: {unsupported_keys()['topology.debug']}"]
    assert check({"topology.debug": True}, "a file") == {"topology.debug": True}
    assert "topology.debug" not in merge({"topology.debug": True})


def test_the_page_of_keys_is_that_of_the_defaults() -> None:
    assert key_page.PAGE.read_text(encoding="utf-8") == key_page.page(), (
        "python -m tests.key_page writes it anew"
    )
    assert [key.name for section in key_page.sections().values() for key in section] == [*keys()]


def test_a_key_has_a_default_or_an_example_that_its_check_takes() -> None:
    without = {name for name, key in keys().items() if key.default in (None, [], {})}
    assert {name for name, key in keys().items() if key.example is not None} == without
    result = {name: keys()[name].problem(keys()[name].example) for name in without}
    assert result == dict.fromkeys(without, "")


def test_the_table_of_the_documentation_is_that_of_the_code() -> None:
    page = (Path(__file__).parents[1] / "docs" / "unsupported-keys.md").read_text(encoding="utf-8")
    result = re.findall(r"^\| `([^`]+)` \| (.*) \|$", page, re.MULTILINE)
    assert result == list(unsupported_keys().items())


def test_defect_14_no_key_has_a_blank() -> None:
    assert "storm.machine.resource.reserve.mem" in unsupported_keys()
    assert not [name for name in (*keys(), *unsupported_keys()) if name != "".join(name.split())]
    with pytest.raises(InvalidConfigError, match=r"storm\.machine\.resource\.reserve\.mem"):
        check({" storm.machine.resource.reserve.mem": 1}, "a file")
