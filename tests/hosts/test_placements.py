"""Bytes between hosts, out of two looks at a topology."""

from tests.hosts.placements import crossing

PLACES = {
    "1": ["spout", "w1", "w1:6700"],
    "2": ["bolt", "w1", "w1:6700"],
    "3": ["bolt", "w1", "w1:6701"],
    "4": ["bolt", "w2", "w2:6700"],
}


def test_bytes_for_other_hosts_are_the_part_of_what_receivers_there_took_in() -> None:
    before = {"executed": {"2": 5, "3": 0, "4": 5}, "bytes": [["w1:6700", "bolt", 100]]}
    after = {"executed": {"2": 65, "3": 10, "4": 35}, "bytes": [["w1:6700", "bolt", 500]]}
    assert crossing(before, after | {"places": PLACES}) == (400.0, 300.0)
