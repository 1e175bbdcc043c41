"""One driver per ZooKeeper root: a living one refuses the next in a sentence, a dead one is replaced without waiting."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sparkstorm.app import driver_office
from sparkstorm.app.driver_office import DriverInfo, DriverOffice, this_driver
from sparkstorm.cluster import paths
from sparkstorm.cluster.local import LocalStateStore
from sparkstorm.embedded.tether import started_at
from sparkstorm.errors import RootInUseError, StoreInconsistentError
from sparkstorm.model.records import encode_record

Make = Callable[[], tuple[DriverOffice, LocalStateStore, list[str]]]


@pytest.fixture
def make() -> Iterator[Make]:
    """Drivers with sessions of their own on one tree."""
    tree, offices = LocalStateStore().tree, []

    def one() -> tuple[DriverOffice, LocalStateStore, list[str]]:
        store, said = LocalStateStore(tree), list[str]()
        offices.append(DriverOffice(store, said.append, look_every_s=0.01))
        return offices[-1], store, said

    yield one
    for office in offices:
        office.leave()


def hold(store: LocalStateStore, driver: DriverInfo) -> bool:
    return store.try_ephemeral(paths.DRIVER, encode_record(driver))


def holder(store: LocalStateStore) -> DriverInfo | None:
    return DriverOffice(store, print).holder()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_driver_is_refused_at_once_with_the_root_the_process_and_the_mend(make: Make) -> None:
    first, store, _ = make()
    first.take(20_000)
    began = time.monotonic()
    with pytest.raises(RootInUseError) as refused:
        make()[0].take(20_000)
    assert time.monotonic() - began < 1
    for part in (store.address, f"driver process {os.getpid()} on host {os.uname().nodename}", "set storm.zookeeper.root to"):
        assert part in str(refused.value)
    assert holder(store) == first.me


def test_a_driver_that_left_is_followed_at_once(make: Make) -> None:
    first, store, _ = make()
    first.take(20_000)
    first.leave()
    assert holder(store) is None
    second, _, said = make()
    second.take(20_000)
    assert said == [] and holder(store) == second.me


def test_a_killed_driver_of_this_machine_is_replaced_at_once(make: Make) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    _, store, _ = make()
    driver = replace(this_driver(), pid=process.pid, start=started_at(process.pid))
    hold(store, driver)
    second = make()[0]
    with pytest.raises(RootInUseError, match=f"process {process.pid} "):
        second.take(20_000)
    process.kill()
    process.communicate()
    second.take(20_000)
    assert holder(store) == second.me


def test_a_later_process_with_the_dead_drivers_number_does_not_hold_the_office(make: Make) -> None:
    _, store, _ = make()
    hold(store, replace(this_driver(), start="1"))
    second = make()[0]
    second.take(20_000)
    assert holder(store) == second.me


@pytest.mark.parametrize("distant", [{"host": "elsewhere"}, {"place": "another boot"}])
def test_another_machines_driver_has_until_the_end_of_its_session(
    distant: dict[str, str], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_office, "_BEYOND_SESSION_S", 0.0)
    _, store, _ = make()
    hold(store, replace(this_driver(), pid=1, **distant))
    second, _, said = make()
    with pytest.raises(RootInUseError, match="driver process 1 on host"):
        second.take(50)
    assert len(said) == 1 and "waiting up to 0 s for the end of its session, in case it is dead" in said[0]


def test_another_machines_driver_whose_session_ends_is_followed(make: Make) -> None:
    _, far, _ = make()
    hold(far, replace(this_driver(), host="elsewhere"))
    second, store, said = make()
    second._say = lambda text: (said.append(text), far.close())  # type: ignore[assignment, func-returns-value]
    second.take(20_000)
    assert holder(store) == second.me and len(said) == 1


def test_whoever_held_an_embedded_zookeeper_is_dead(make: Make) -> None:
    _, store, _ = make()
    hold(store, replace(this_driver(), host="elsewhere"))
    second = make()[0]
    second.take(20_000, is_embedded=True)
    assert holder(store) == second.me


def test_the_node_is_written_again_after_a_lost_session(make: Make) -> None:
    first, store, said = make()
    first.take(20_000)
    store.delete(paths.DRIVER)
    wait_until(lambda: holder(store) == first.me)
    assert said == []


def test_a_rival_that_came_in_between_is_said_once_and_left_alone(make: Make) -> None:
    first, _, said = make()
    first.take(20_000)
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
        make()[0].take(20_000)


def test_every_driver_stops_slots_of_its_own() -> None:
    one, other = this_driver(), this_driver()
    assert paths.stop_slots(one.id) != paths.stop_slots(other.id)
