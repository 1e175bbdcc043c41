"""Search and insertion of the acker's table, at its end too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparkstorm.common.model import compiled
from sparkstorm.data_plane.acking.batch import Longs
from sparkstorm.data_plane.acking.table_ledger import BURIED

core: Any = compiled.core
pytestmark = pytest.mark.skipif(core is None, reason=compiled.description)
PLACES = 500


def random_roots(count: int, seed: int = 3) -> Longs:
    return np.random.default_rng(seed).integers(1, (1 << 63) - 1, count, dtype=np.int64)


def insert(ids: Longs, roots: Longs) -> Longs:
    at = np.empty(len(roots), np.int64)
    core.insert_roots(ids, roots, at)
    return at


def find(ids: Longs, roots: Longs) -> list[int]:
    at = np.empty(len(roots), np.int64)
    core.find_roots(ids, roots, at)
    return at.tolist()


def homes_of(roots: Longs, places: int) -> Longs:
    """Return the first place that each root would take in an empty table."""
    return np.concatenate(
        [insert(np.zeros(places, np.int64), roots[n : n + 1]) for n in range(len(roots))]
    )


def roots_of_the_last_places(count: int) -> Longs:
    """Roots whose search begins in the last hundredth of the table, so that most run over its
    end.
    """
    roots = random_roots(count * 200)
    return roots[homes_of(roots, PLACES) >= PLACES - 5][:count]


@pytest.mark.parametrize("roots", [
    random_roots(350), random_roots(475), np.repeat(random_roots(90), 3), None,
], ids=["random", "full", "repeats", "end"])  # fmt: skip
def test_a_table_finds_all_its_roots_and_no_others(roots: Longs | None) -> None:
    given = roots_of_the_last_places(60) if roots is None else roots
    ids = np.zeros(PLACES, np.int64)
    at = insert(ids, given)
    assert ids[at].tolist() == given.tolist()
    assert np.count_nonzero(ids) == len(np.unique(given)) == len(np.unique(at))
    assert find(ids, given) == at.tolist()
    assert find(ids, random_roots(200, seed=9)) == [-1] * 200


def test_what_is_buried_ends_no_search() -> None:
    given = roots_of_the_last_places(60)
    ids = np.zeros(PLACES, np.int64)
    at = insert(ids, given)
    ids[at[:30]] = BURIED
    assert find(ids, given[30:]) == at[30:].tolist()
    assert find(ids, given[:30]) == [-1] * 30


def test_roots_in_a_row_share_a_home_hardly_more_often_than_random_ones() -> None:
    homes = homes_of(np.arange(1, 4_001, dtype=np.int64), 5_600)
    assert len(np.unique(homes)) > 2_600  # random ones: 2,859
