"""The local twin of a replay: plain lists through the same stages."""

from __future__ import annotations

import pytest

from sparkstorm.replay import replay_locally
from tests.replay.bolts import LINES, WORDS, many_streams, word_count


def test_the_word_count_over_lists_gives_words_and_counts() -> None:
    results = replay_locally(word_count(), {"lines": LINES})
    assert results.states["count"] == WORDS
    assert sorted(results["split"]) == sorted((word,) for (line,) in LINES for word in line.split())
    assert max(count for word, count in results["count"] if word == "c") == 3


def test_every_task_is_prepared_once_even_without_a_row() -> None:
    results = replay_locally(word_count(4, 5), {"lines": []})
    assert results.counts["count"]["prepared"] == 5
    assert results["split"] == [] and results.states["count"] == {}


def test_every_grouping_reaches_whom_it_should() -> None:
    results = replay_locally(many_streams(), {"numbers": [(n,) for n in range(10)]})
    assert results.states["all"] == {
        f"{stream} {task}": n for stream, n in (("even", 20), ("odd", 25)) for task in range(3)
    }
    assert results.states["global"] == {"even 0": 20, "odd 0": 25}
    assert results.states["direct"] == {"to 0": 20, "to 1": 25}
    assert results.counts["all"]["executed"] == 30
    assert results.counts["global"]["executed"] == 10
    assert sorted(results["sort:to"]) == [(n,) for n in range(10)]
    assert results.counts["partial"]["executed"] == 5


def test_a_result_or_state_that_there_is_not_is_named() -> None:
    results = replay_locally(word_count(), {"lines": [("a b",)]})
    with pytest.raises(KeyError, match="there is no state of 'splt', only of count"):
        results.states["splt"]
    with pytest.raises(KeyError, match=r"there is no result 'splt', only .*count"):
        results["splt"]
