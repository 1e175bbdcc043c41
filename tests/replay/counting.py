"""Counters that bolts of the tests share across instances: pickled code finds this module again by
its name.
"""

from __future__ import annotations

from collections import Counter

COUNTS: Counter[str] = Counter()


def bump(name: str) -> None:
    """One more."""
    import tests.replay.counting as here

    here.COUNTS[name] += 1


def note_first(name: str, other: str) -> None:
    """Keep what the other counter is at the first call."""
    import tests.replay.counting as here

    here.COUNTS.setdefault(name, here.COUNTS[other])


def clear() -> None:
    """Begin anew."""
    COUNTS.clear()
