"""Drivers of a ZooKeeper root: those that share it, those that refuse others in a sentence, dead
ones that are no obstacle.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.common.clock import SimClock
from sparkstorm.common.errors import RootInUseError, StoreInconsistentError
from sparkstorm.common.model.names import driver_of_node, node_of_driver
from sparkstorm.common.model.records import encode_record
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.local import LocalStateStore
from sparkstorm.control_plane.cluster.nimbus_state import DriverInfo, NimbusInfo
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.driver import driver_office
from sparkstorm.driver.driver_office import DriverOffice, folder_id, this_driver
from sparkstorm.extensions.embedded.tether import started_at
from tests.waiting import wait_until

Make = Callable[..., tuple["Office", LocalStateStore, list[str]]]


class Office(DriverOffice):
    """An office of a driver in its own folder."""

    def __init__(self, state: StormState, say: Callable[[str], None], folder: Path) -> None:
        super().__init__(state, say, look_every_s=0.01)
        self.folder = folder

    def come(
        self, session_ms: int = 20_000, is_alone: bool = True, is_embedded: bool = False
    ) -> None:
        self.take(session_ms, self.folder, is_alone, is_embedded)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Drivers with sessions of their own on one tree."""
    tree, offices = LocalStateStore().tree, list[Office]()

    def one(folder: str = "") -> tuple[Office, LocalStateStore, list[str]]:
        store, said = LocalStateStore(tree), list[str]()
        offices.append(
            Office(StormState(store), said.append, tmp_path / (folder or f"folder-{len(offices)}"))
        )
        return offices[-1], store, said

    yield one
    for office in offices:
        office.leave()


def hold(store: LocalStateStore, driver: DriverInfo) -> bool:
    return store.try_ephemeral(paths.DRIVER, encode_record(driver))


def holder(store: LocalStateStore) -> DriverInfo | None:
    return DriverOffice(StormState(store), print).holder()


def test_a_second_driver_is_refused_at_once_with_the_root_the_process_and_the_mend(
    make: Make,
) -> None:
    first, store, _ = make()
    first.come()
    began = time.monotonic()
    with pytest.raises(RootInUseError) as refused:
        make()[0].come()
    assert time.monotonic() - began < 15, "it does not wait for the session's end"
    for part in (
        store.address,
        f"driver process {os.getpid()} on host {os.uname().nodename}",
        "set storm.zookeeper.root to",
    ):
        assert part in str(refused.value)
    assert holder(store) == first.me


def test_a_driver_that_left_is_followed_at_once(make: Make) -> None:
    first, store, _ = make()
    first.come()
    first.leave()
    assert holder(store) is None
    second, _, said = make()
    second.come()
    assert said == [] and holder(store) == second.me


def test_a_killed_driver_of_this_machine_is_replaced_at_once(make: Make) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    _, store, _ = make()
    driver = replace(this_driver(), pid=process.pid, start=started_at(process.pid))
    hold(store, driver)
    second = make()[0]
    with pytest.raises(RootInUseError, match=f"process {process.pid} "):
        second.come()
    process.kill()
    process.communicate()
    second.come()
    assert holder(store) == second.me


@pytest.mark.parametrize(
    ("dead", "is_embedded"),
    [({"start": "1"}, False), ({"host": "elsewhere"}, True)],
    ids=["whose number another process has", "whose ZooKeeper was its own"],
)
def test_a_dead_driver_does_not_hold_the_office(dead: Any, is_embedded: bool, make: Make) -> None:
    _, store, _ = make()
    hold(store, replace(this_driver(), **dead))
    second = make()[0]
    second.come(is_embedded=is_embedded)
    assert holder(store) == second.me


@pytest.mark.parametrize("distant", [{"host": "elsewhere"}, {"place": "another boot"}])
def test_another_machines_driver_has_until_the_end_of_its_session(
    distant: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_office, "_BEYOND_SESSION_S", 0.0)
    _, store, _ = make()
    hold(store, replace(this_driver(), pid=1, **distant))
    second, _, said = make()
    with pytest.raises(RootInUseError, match="driver process 1 on host"):
        second.come(50)
    assert len(said) == 1
    assert "waiting up to 0 s for the end of its session, in case it is dead" in said[0]


def test_another_machines_driver_whose_session_ends_is_followed(make: Make) -> None:
    _, far, _ = make()
    hold(far, replace(this_driver(), host="elsewhere"))
    second, store, said = make()
    second._say = lambda text: (said.append(text), far.close())  # type: ignore[assignment, func-returns-value]
    second.come()
    assert holder(store) == second.me and len(said) == 1


def test_the_node_is_written_again_after_a_lost_session(make: Make) -> None:
    first, store, said = make()
    first.come()
    store.delete(paths.DRIVER)
    wait_until(lambda: holder(store) == first.me)
    assert said == []


def test_a_rival_that_came_in_between_is_said_once_and_left_alone(make: Make) -> None:
    first, _, said = make()
    first.come()
    _, rivals, _ = make()
    rival = replace(this_driver(), host="elsewhere")
    rivals.delete(paths.DRIVER)
    while not hold(rivals, rival):
        rivals.delete(paths.DRIVER)
    wait_until(lambda: said)
    time.sleep(0.1)
    assert len(said) == 1 and "on host elsewhere has taken ZooKeeper root" in said[0]
    first.leave()
    assert holder(rivals) == rival


def test_a_damaged_node_is_named(make: Make) -> None:
    _, store, _ = make()
    store.put(paths.DRIVER, b"{")
    with pytest.raises(StoreInconsistentError, match=r"/nimbus/driver"):
        make()[0].come()


def test_every_driver_stops_slots_of_its_own() -> None:
    one, other = this_driver(), this_driver()
    assert paths.stop_slots(one.id) != paths.stop_slots(other.id)


# -- drivers that share a root ---------------------------------------------------------------------


def node_names(office: DriverOffice) -> list[str]:
    return [node_of_driver(node, office.me.number) for node in ("node-1", "node-2")]


def test_drivers_that_share_a_root_are_all_listed_and_have_no_node_in_common(make: Make) -> None:
    offices = [make()[0] for _ in range(3)]
    for office in offices:
        office.come(is_alone=False)
    assert StormState(make()[1]).read_drivers() == [office.me for office in offices]
    names = [name for office in offices for name in node_names(office)]
    assert names == ["node-1", "node-2", "node-1@2", "node-2@2", "node-1@3", "node-2@3"]
    assert [driver_of_node(name) for name in names] == [1, 1, 2, 2, 3, 3]
    offices[0].leave()
    assert StormState(make()[1]).read_drivers() == [office.me for office in offices[1:]]


def test_a_driver_that_comes_back_has_its_number_again_and_a_new_folder_has_another(
    make: Make,
) -> None:
    first, second = make("a")[0], make("b")[0]
    first.come(is_alone=False)
    second.come(is_alone=False)
    first.leave()
    second.leave()
    third, again = make("c")[0], make("b")[0]
    third.come(is_alone=False)
    again.come(is_alone=False)
    assert (second.me.number, again.me.number, third.me.number) == (2, 2, 3)
    assert again.me.id != second.me.id


def test_numbers_of_folders_that_never_come_back_are_used_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_office, "_MOST_NUMBERS", 3)
    clock = SimClock(1_000)
    monkeypatch.setattr(driver_office, "SystemClock", lambda: clock)
    stays = make("stays")[0]
    stays.come(is_alone=False)
    numbers = []
    for n in range(5):
        clock.advance(1)
        office = make(f"once-{n}")[0]
        office.come(is_alone=False)
        numbers.append(office.me.number)
        office.leave()
    assert numbers == [2, 3, 2, 3, 2]


def test_a_driver_that_shares_the_root_refuses_one_that_does_not(make: Make) -> None:
    make_one, store, _ = make()
    make_one.come(is_alone=False)
    sentence = r"standing cluster of driver process \d+ on host .*: submit to it with --cluster"
    with pytest.raises(RootInUseError, match=sentence):
        make()[0].come()
    assert holder(store) is None
    make()[0].come(is_alone=False)


def test_a_driver_that_is_alone_refuses_one_that_would_share(make: Make) -> None:
    make()[0].come()
    with pytest.raises(RootInUseError, match="shares it with no other driver"):
        make()[0].come(is_alone=False)


def test_two_drivers_cannot_share_a_folder(make: Make) -> None:
    make("same")[0].come(is_alone=False)
    with pytest.raises(
        RootInUseError,
        match=r"storm\.local\.dir .*same is used by .*give each driver a storm\.local\.dir of its own",
    ):
        make("same")[0].come(is_alone=False)


def test_a_killed_driver_of_this_machine_is_unregistered_by_the_next(make: Make) -> None:
    _, store, _ = make()
    dead = replace(this_driver(), start="1", is_alone=False, number=2)
    StormState(store).register_driver(dead)
    office = make()[0]
    office.come(is_alone=False)
    assert StormState(store).read_drivers() == [office.me]


def test_a_shared_drivers_node_is_written_again_after_a_lost_session(make: Make) -> None:
    office, store, said = make()
    office.come(is_alone=False)
    store.expire_session()
    wait_until(lambda: StormState(store).read_drivers() == [office.me])
    assert holder(store) is None and said == []


def test_a_driver_that_was_taken_for_dead_while_it_came_in_tries_again(make: Make) -> None:
    office, store, _ = make()
    registered = office._state.register_driver

    def lose_the_entrance(driver: DriverInfo) -> None:
        registered(driver)
        office._state.register_driver = registered  # type: ignore[method-assign]
        store.delete(paths.DRIVER)
        hold(make()[1], replace(this_driver(), start="1", is_alone=False))

    office._state.register_driver = lose_the_entrance  # type: ignore[method-assign]
    office.come(is_alone=False)
    assert StormState(store).read_drivers() == [office.me] and holder(store) is None


def test_the_leadership_of_a_dead_driver_of_this_machine_is_ended_at_once(make: Make) -> None:
    office, _, _ = make()
    for leader, is_ended in (
        (NimbusInfo("me", 1, office.me), False),
        (NimbusInfo("alive", 1, this_driver()), False),
        (NimbusInfo("elsewhere", 1, replace(this_driver(), start="1", host="elsewhere")), False),
        (NimbusInfo("unknown", 1), False),
        (NimbusInfo("dead", 1, replace(this_driver(), start="1")), True),
    ):
        candidate = LocalStateStore(make()[1].tree)
        assert StormState(candidate).try_lead(leader)
        assert office.depose(leader) is is_ended
        assert (StormState(candidate).read_leader() is None) is is_ended
        candidate.close()


@pytest.mark.parametrize("damage", [b"", b"no id", b"\xff" * 32, b"g" * 32])
def test_a_damaged_folder_id_is_replaced(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "driver-id").write_bytes(damage)
    assert len(bytes.fromhex(folder_id(tmp_path))) == 16
    assert folder_id(tmp_path) == folder_id(tmp_path)
