from shout import build

from sparkstorm.testing import complete_topology


def test_equal_words_are_counted_together():
    result = complete_topology(build(), {"lines": [["to be or not to be"]]})
    assert result.state("count") == {"TO": 2, "BE": 2, "OR": 1, "NOT": 1}
