"""Checks of the answers of a cluster's nodes about slots, and the slot of a key."""

from __future__ import annotations

from typing import Any

import pytest
from redis.crc import key_slot

from sparkstorm.data_plane.transport.servers.slots import (
    SLOTS,
    Range,
    is_working,
    primaries,
    primary_of,
    read_slots,
    slot_of,
)

NODE = [b"10.0.0.1", 7000, b"id", []]


@pytest.mark.parametrize(
    "tag",
    ["{words}-2-1795", "sparkstorm:{blob}", "words", "{}x", "{wörter}-1-1", "{a}{b}", "}a{b}"],
)
def test_a_tag_has_the_slot_that_redis_py_gives_it(tag: str) -> None:
    assert slot_of(tag) == key_slot(tag.encode())


def test_ranges_are_read_with_their_primaries() -> None:
    other = [b"", 7001, b"id"]
    ranges = read_slots([[0, 99, NODE, other], [100, 16383, other]], "asked")
    assert ranges == [Range(0, 99, "10.0.0.1", 7000), Range(100, 16383, "asked", 7001)]
    assert primary_of(ranges, 99) == ("10.0.0.1", 7000)
    assert primary_of(ranges[:1], 100) is None
    assert primaries([*ranges, *ranges]) == [("10.0.0.1", 7000), ("asked", 7001)]
    assert read_slots([[0, 1, [None, 7000]]], "asked") == [Range(0, 1, "asked", 7000)]


@pytest.mark.parametrize(
    "answer",
    [
        b"OK",
        None,
        {},
        [b"x"],
        [[0, 99]],
        [[0, 99, []]],
        [[0, 99, [b"h"]]],
        [[0, SLOTS, NODE]],
        [[-1, 5, NODE]],
        [[5, 4, NODE]],
        [[0, 5, [b"h", 0]]],
        [[0, 5, [b"h", 1 << 16]]],
        [[0, 5, [b"\xff", 7000]]],
        [[0, 5, [7, 7000]]],
        [[0, 5, [b"?", 7000]]],
        [["a", 5, NODE]],
    ],
)
def test_what_is_no_answer_of_a_node_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"it (answers CLUSTER SLOTS|does not say)"):
        read_slots(answer, "asked")


def test_a_node_that_was_cut_off_does_not_take_the_cluster_for_whole() -> None:
    assert is_working(b"cluster_state:ok\r\ncluster_slots_assigned:16384\r\n")
    for said in (b"cluster_state:fail\r\n", b"", None, 7, [b"cluster_state:ok"]):
        assert not is_working(said)
