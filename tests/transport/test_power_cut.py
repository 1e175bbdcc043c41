"""Power cuts of real stores under a topology in three cells: with durability `disk` every tuple is
counted once; with `process` over stores that sync once a second some are not, and the loss is said.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sparkstorm.data_plane.transport.durability import ON_DISK, SyncedCursors
from sparkstorm.data_plane.transport.reader import RedisReader
from sparkstorm.data_plane.transport.redis import RedisTransport
from sparkstorm.extensions.cells.cells import STAY_MS, TELL_EVERY_MS, CellsTransport
from sparkstorm.extensions.cells.foreign import RedisForeign
from tests.sim.watched_redis import until
from tests.transport.power import server_without_a_battery
from tests.transport.test_cells_model import CELLS, OWNERS, Owner

pytestmark = [pytest.mark.system, pytest.mark.nightly]
TOPOLOGY = "power-1-1"
ENDLESS = 1 << 62
CUTS = ([0], [1], [2], range(CELLS))  # the last takes all stores at once
# Between two cuts. Half leaves cells little time to read what is lost with the next; with double a
# store that syncs once a second has synced nearly all of it.
_WORK_S = 0.6


class Powered:
    """Owners over real stores that lose power in turn."""

    def __init__(self, folder: Path, appendfsync: str, durability: str) -> None:
        self.chance = random.Random(1)
        self.alarms = 0
        self.durability = durability
        self.opened: list[CellsTransport] = []
        self.servers = [
            server_without_a_battery(folder / str(cell), appendfsync) for cell in range(CELLS)
        ]
        self.owners = [
            Owner(self, cell, n, ENDLESS) for cell in range(CELLS) for n in range(OWNERS)
        ]

    def open(self, cell: int) -> CellsTransport:
        """Return the way of a new owner in a cell to all stores."""
        places = [server.address for server in self.servers]
        foreign = {
            each: RedisForeign(place, TOPOLOGY, each, self.durability)
            for each, place in enumerate(places)
            if each != cell
        }
        own = RedisTransport(places[cell], TOPOLOGY)
        stored = SyncedCursors(places[cell], TOPOLOGY) if self.durability == ON_DISK else None
        made = CellsTransport(TOPOLOGY, own, foreign, lambda: 1000 * time.monotonic(), stored)
        self.opened.append(made)
        return made

    def work(self) -> None:
        """Let each owner read, consume and commit once."""
        for owner in self.owners:
            owner.step()

    def cut_power(self, cells: Sequence[int]) -> None:
        """Take the power of some stores while owners commit; it is back a moment later."""
        began_s = time.monotonic()
        while time.monotonic() < began_s + _WORK_S:
            self.work()
        servers = [self.servers[cell] for cell in cells]

        def strike() -> None:
            time.sleep(self.chance.uniform(0, 0.01))
            for server in servers:
                server.kill()
            for server in servers:
                server.start()

        thread = threading.Thread(target=strike, daemon=True)
        thread.start()
        while thread.is_alive():
            self.work()

    def counted(self) -> Counter[str]:
        """Return how often each tuple was counted."""
        found = Counter[str]()
        for cell, server in enumerate(self.servers):
            with contextlib.closing(RedisReader(server.address, TOPOLOGY)) as reader:
                for owner in self.owners:
                    journal = reader.record(owner.task).journal if owner.cell == cell else ()
                    found.update(each[1:].decode() for each in journal if each.startswith(b"c"))
        return found

    def finish(self) -> tuple[int, int]:
        """Work until nothing comes any more; return how many tuples are lost and doubled."""
        for owner in self.owners:
            owner.tuples = owner.position
        counts = [-1, 0]

        def is_quiet() -> bool:
            time.sleep((STAY_MS + TELL_EVERY_MS) / 1000)
            for _ in range(10):
                self.work()
            counts[:] = [counts[1], self.counted().total()]
            return counts[0] == counts[1]

        until(is_quiet, "tuples go on for ever")
        wanted = Counter(f"{each.task}.{n}" for each in self.owners for n in range(each.tuples))
        found = self.counted()
        return (wanted - found).total(), (found - wanted).total()

    def close(self) -> None:
        """End all servers."""
        for transport in self.opened:
            transport.close()
        for server in self.servers:
            server.kill()


@pytest.fixture
def after_power_cuts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Powered]:
    with contextlib.closing(Powered(tmp_path, *request.param)) as made:
        for cells in CUTS:
            made.cut_power(cells)
        yield made


@pytest.mark.parametrize("after_power_cuts", [("always", "disk")], indirect=True)
def test_power_cuts_lose_and_double_nothing_with_disk(after_power_cuts: Powered) -> None:
    assert after_power_cuts.finish() == (0, 0)
    assert not after_power_cuts.alarms


@pytest.mark.parametrize("after_power_cuts", [("everysec", "process")], indirect=True)
def test_power_cuts_of_stores_that_sync_once_a_second_are_said(after_power_cuts: Powered) -> None:
    for _ in range(10):  # all was synced just then, on a machine that stood still
        if not after_power_cuts.alarms:
            after_power_cuts.cut_power([0])
    assert after_power_cuts.alarms
    assert sum(after_power_cuts.finish()), "the power cuts take nothing, and show nothing"
