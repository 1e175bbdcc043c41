"""Search and insertion in columns equal those row by row, at the table's end too."""

from __future__ import annotations

import numpy as np
import pytest

from sparkstorm.acking.batch import Longs
from sparkstorm.acking.columns import find_roots, homes_of, insert_roots, lay_out
from sparkstorm.acking.kernels import home_of, place_of

PLACES = 500


def random_roots(count: int, seed: int = 3) -> Longs:
    return np.random.default_rng(seed).integers(1, (1 << 63) - 1, count, dtype=np.int64)


def roots_of_the_last_places(count: int) -> Longs:
    """Roots whose probing begins in the last hundredth of the table, so that most run over its end."""
    roots = random_roots(count * 200)
    return roots[homes_of(roots, PLACES) >= PLACES - 5][:count]


def places_row_by_row(ids: Longs, roots: Longs) -> list[int]:
    return [max(-1, place_of(ids.data, root)) for root in roots.tolist()]


def test_homes_agree_with_the_rule_for_one_root_and_lie_in_the_table() -> None:
    roots = np.concatenate((random_roots(300), np.array([1, 2, (1 << 63) - 1, 1 << 62, 0xFFFFFFFF])))
    for places in (64, PLACES, 1_428_572):
        homes = homes_of(roots, places).tolist()
        assert homes == [home_of(root, places) for root in roots.tolist()]
        assert 0 <= min(homes) <= max(homes) < places


def test_roots_in_a_row_share_a_home_hardly_more_often_than_random_ones() -> None:
    homes = homes_of(np.arange(1, 100_001, dtype=np.int64), 140_000)
    assert len(np.unique(homes)) > 65_000  # random ones: 71,464


@pytest.mark.parametrize("roots", [random_roots(350), random_roots(475), roots_of_the_last_places(200)])
def test_a_layout_finds_all_its_roots_and_no_others(roots: Longs) -> None:
    ids, at = lay_out(roots, PLACES)
    assert ids[at].tolist() == roots.tolist()
    assert len(np.unique(at)) == len(roots)
    assert places_row_by_row(ids, roots) == at.tolist()
    assert find_roots(ids, roots).tolist() == at.tolist()
    strangers = random_roots(200, seed=9)
    assert find_roots(ids, strangers).tolist() == [-1] * 200


@pytest.mark.parametrize("roots", [random_roots(400), roots_of_the_last_places(200), np.repeat(random_roots(90), 3)])
def test_inserted_roots_repeats_too_are_found_row_by_row(roots: Longs) -> None:
    ids, _ = lay_out(random_roots(40, seed=8), PLACES)
    at = insert_roots(ids, roots)
    assert places_row_by_row(ids, roots) == at.tolist()
    assert np.count_nonzero(ids) == 40 + len(np.unique(roots))
