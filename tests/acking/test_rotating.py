"""Owns what a rotating map promises."""

from __future__ import annotations

import pytest

from sparkstorm.acking import RotatingMap


def test_an_entry_is_handed_over_by_the_third_rotation_after_its_put() -> None:
    pending: RotatingMap[str, int] = RotatingMap(3)
    pending.put("a", 1)
    assert [pending.rotate(), pending.rotate()] == [{}, {}]
    assert "a" in pending
    assert pending.rotate() == {"a": 1}
    assert "a" not in pending


@pytest.mark.parametrize("buckets", [2, 3, 5])
def test_the_number_of_buckets_is_the_number_of_rotations_survived(buckets: int) -> None:
    pending: RotatingMap[str, int] = RotatingMap(buckets)
    pending.put("a", 1)
    assert [len(pending.rotate()) for _ in range(buckets)] == [0] * (buckets - 1) + [1]


def test_a_second_put_moves_the_key_to_the_newest_bucket_even_when_its_value_is_none() -> None:
    pending: RotatingMap[str, int | None] = RotatingMap(2)
    pending.put("a", None)
    pending.rotate()
    pending.put("a", 2)
    assert len(pending) == 1
    assert pending.rotate() == {}
    assert pending.get("a") == 2


def test_get_does_not_make_younger_and_pop_takes_from_any_bucket() -> None:
    pending: RotatingMap[str, int] = RotatingMap(3)
    pending.put("old", 1)
    pending.rotate()
    pending.put("new", 2)
    assert pending.get("old") == 1
    assert pending.get("unknown") is None
    assert list(pending) == ["new", "old"]
    assert pending.pop("old") == 1
    assert pending.pop("old") is None
    assert len(pending) == 1


def test_a_map_of_one_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="2 buckets"):
        RotatingMap(1)
