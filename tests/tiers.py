"""Tiers of the tests: `make test` runs the tier `commit`, `make test-all` every test.

A test is in the tier `commit` unless it is marked `nightly` (long kill series, clusters of guests,
servers that only some users have, the wheel). Tests marked `sampled` are the many cases of one law,
or a slow file of tests of one subject: the tier takes every fourth of them, or with `sampled(12)`
every twelfth. The hash of the newest commit chooses which, so a commit's run can be repeated, and
commits that follow each other see different ones. Of a property the tier draws a quarter of the
examples (`examples`). Left out: a budget of seconds that is spent in turns, by which a fault was
found by chance some turns later.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
SHARE = 4
_LEAST_EXAMPLES = 10
_tiers = ["all"]  # of the run, and of those that it has within


def is_taken(number: int, commit: int, share: int = SHARE) -> bool:
    """Return whether a run takes the case with this number, in the order of collection."""
    return (number + commit) % share == 0


def examples(number: int) -> int:
    """Return how many examples of a property this run draws, of so many that a run of all does."""
    return max(_LEAST_EXAMPLES, number // SHARE) if _tiers[-1] == "commit" else number


def _newest_commit() -> int:
    words = ("git", "rev-parse", "HEAD")
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0  # a source distribution
    return int(done.stdout, 16)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tier`."""
    parser.addoption(
        "--tier", choices=["commit", "all"], default="all", help="tests to run (tests/tiers.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer examples in the tier `commit`, of properties that say no number too."""
    former = settings.get_current_profile_name()
    _tiers.append(config.getoption("tier"))
    own = f"tier {len(_tiers)}"
    number = examples(settings.get_profile("default").max_examples)
    settings.register_profile(own, settings.get_profile(former), max_examples=number)
    settings.load_profile(own)

    def leave() -> None:
        _tiers.pop()
        settings.load_profile(former)

    config.add_cleanup(leave)


@pytest.hookimpl(trylast=True)  # behind the marks of tests/conftest.py
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the tier does not have."""
    if config.getoption("tier") == "all":
        return
    commit = _newest_commit()
    numbers: Counter[str] = Counter()
    kept_items: list[pytest.Item] = []
    gone: list[pytest.Item] = []
    for item in items:
        is_in = item.get_closest_marker("nightly") is None
        if is_in and (sampled := item.get_closest_marker("sampled")) is not None:
            test, _, case = item.nodeid.partition("[")
            law = test if case else test.partition("::")[0]
            is_in = is_taken(numbers[law], commit, *sampled.args)
            numbers[law] += 1
        (kept_items if is_in else gone).append(item)
    items[:] = kept_items
    config.hook.pytest_deselected(items=gone)
