"""The tier `commit`: without nightly tests, and a share of the cases of a sampled law."""

from __future__ import annotations

import pytest

from tests.tiers import SHARE, is_taken

pytest_plugins = ("pytester",)

TESTS = """
import pytest

@pytest.mark.nightly
def test_night(): pass

@pytest.mark.sampled
@pytest.mark.parametrize("number", range(9))
def test_law(number): pass

@pytest.mark.sampled(9)
@pytest.mark.parametrize("number", range(9))
def test_costly_law(number): pass

def test_day(): pass
"""
SLOW = "import pytest\npytestmark = pytest.mark.sampled\n" + "\n".join(
    f"def test_{number}(): pass" for number in range(9)
)
MARKERS = "[pytest]\nmarkers =\n  nightly: .\n  sampled: .\n"


@pytest.fixture
def tests(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini(MARKERS)
    pytester.makepyfile(TESTS)
    return pytester


def test_a_commit_run_leaves_nightly_tests_and_most_cases_of_a_law_out(
    tests: pytest.Pytester,
) -> None:
    done = tests.inline_run("-p", "tests.tiers", "--tier", "commit")
    passed, _, failed = done.countoutcomes()
    assert failed == 0 and passed - 2 in (9 // SHARE, 9 // SHARE + 1)


def test_of_a_slow_file_a_commit_run_takes_every_fourth_test(pytester: pytest.Pytester) -> None:
    pytester.makeini(MARKERS)
    pytester.makepyfile(SLOW)
    done = pytester.inline_run("-p", "tests.tiers", "--tier", "commit")
    assert done.countoutcomes()[0] in (9 // SHARE, 9 // SHARE + 1)


def test_without_a_tier_every_test_runs(tests: pytest.Pytester) -> None:
    assert tests.inline_run("-p", "tests.tiers").countoutcomes() == [20, 0, 0]


PROPERTY = """
from hypothesis import given, settings, strategies as st
from tests.tiers import examples

seen = {"own": [], "default": []}

@settings(max_examples=examples(80))
@given(number=st.integers())
def test_own(number): seen["own"].append(number)

@given(number=st.integers())
def test_default(number): seen["default"].append(number)

def test_numbers(): assert [len(each) for each in seen.values()] == WANTED
"""


@pytest.mark.parametrize(("tier", "wanted"), [("commit", [20, 25]), ("all", [80, 100])])
def test_of_a_property_a_commit_run_draws_a_quarter_of_the_examples(
    pytester: pytest.Pytester, tier: str, wanted: list[int]
) -> None:
    pytester.makepyfile(PROPERTY.replace("WANTED", str(wanted)))
    done = pytester.runpytest_inprocess("-p", "tests.tiers", "--tier", tier)
    done.assert_outcomes(passed=3)


def test_every_case_is_taken_by_one_of_four_commits() -> None:
    for number in range(10):
        assert sum(is_taken(number, commit) for commit in range(SHARE)) == 1
        assert sum(is_taken(number, commit, 12) for commit in range(12)) == 1
