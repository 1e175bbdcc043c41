"""Checks that topologies are packed alike from several threads."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from sparkstorm.api import Spout
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from tests.topologies import word_count

MODULES = ("tests.topologies",)


class Silent(Spout):
    """Emits nothing."""

    outputs = ("line",)

    def next_tuple(self) -> None:
        pass


def test_threads_that_pack_at_once_do_not_take_each_others_modules_away() -> None:
    topology = word_count(Silent())
    expected, switch = pack_topology(topology, MODULES), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # a thread is interrupted between any two lines
    try:
        with ThreadPoolExecutor(4) as pool:
            packed = list(pool.map(lambda _: pack_topology(topology, MODULES), range(40)))
    finally:
        sys.setswitchinterval(switch)
    assert all(each == expected for each in packed)
