"""Owns what bolts of the tests count across instances: code that travels finds this module again by its name."""

from __future__ import annotations

from collections import Counter

COUNTS: Counter[str] = Counter()


def bump(name: str) -> None:
    """One more."""
    import tests.replay.counting as here

    here.COUNTS[name] += 1


def clear() -> None:
    """Begin anew."""
    COUNTS.clear()
