"""Spread of slots over executors: a pure function of executors, wanted slots and held slots."""

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from sparkstorm.common.spark_versions import Executor
from sparkstorm.driver.hosting.spread import is_complete, spread

ROOMS = st.dictionaries(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 2)), st.integers(1, 5), max_size=8
)
HELD = st.dictionaries(
    st.integers(0, 15), st.tuples(st.sampled_from("abcd"), st.integers(0, 2)), max_size=12
)


def three(cores: int = 4) -> list[Executor]:
    return [Executor(str(n), f"w{n + 1}", cores) for n in range(3)]


def made(rooms: dict[tuple[str, int], int]) -> list[Executor]:
    return [Executor(f"{host}{number}", host, room) for (host, number), room in rooms.items()]


def fitting(executors: list[Executor], held: dict[int, tuple[str, int]]) -> dict[int, str]:
    """Return held slots, with no more of them on a living executor than it has room for."""
    rooms, taken = {each.id: each.room for each in executors}, Counter[str]()
    found = {}
    for slot, (host, number) in held.items():
        name = f"{host}{number}"
        if taken[name] < rooms.get(name, 16):
            found[slot] = name
            taken[name] += 1
    return found


def by_host(executors: list[Executor], ids: list[str]) -> Counter[str]:
    host_by_id = {each.id: each.host for each in executors}
    return Counter(host_by_id[each] for each in ids)


def test_six_slots_on_three_hosts_are_two_on_each() -> None:
    result = Counter(each.host for each in spread(three(), 6, {}).start)
    assert result == {"w1": 2, "w2": 2, "w3": 2}


def test_first_starts_are_on_different_hosts() -> None:
    assert [each.host for each in spread(three(), 6, {}).start[:3]] == ["w1", "w2", "w3"]


def test_a_lost_host_s_slots_go_to_the_others() -> None:
    held = {0: "0", 1: "0", 2: "1", 3: "1", 4: "2", 5: "2"}
    found = spread(three()[:2], 6, held)
    assert (found.keep, found.release) == ((0, 1, 2, 3), ())
    assert Counter(each.host for each in found.start) == {"w1": 1, "w2": 1}


def test_a_host_that_returns_gets_its_slots() -> None:
    held = {0: "0", 1: "0", 2: "1", 3: "1", 4: "0", 5: "1"}
    found = spread(three(), 6, held)
    assert found.release == (4, 5) and Counter(each.host for each in found.start) == {"w3": 2}


def test_a_host_with_two_executors_counts_once() -> None:
    executors = [Executor("0", "w1", 2), Executor("1", "w1", 2), Executor("2", "w2", 4)]
    assert Counter(each.id for each in spread(executors, 4, {}).start) == {"0": 1, "1": 1, "2": 2}


def test_a_small_host_gets_what_it_has_room_for() -> None:
    executors = [Executor("0", "w1", 1), Executor("1", "w2", 8), Executor("2", "w3", 8)]
    result = Counter(each.host for each in spread(executors, 9, {}).start)
    assert result == {"w1": 1, "w2": 4, "w3": 4}


@given(ROOMS, st.integers(0, 20), HELD)
def test_slots_are_spread_evenly_and_no_executor_gets_more_than_it_has_room_for(
    rooms: dict[tuple[str, int], int], wanted: int, raw: dict[int, tuple[str, int]]
) -> None:
    executors = made(rooms)
    held = fitting(executors, raw)
    found = spread(executors, wanted, held)
    ids = [held[slot] for slot in found.keep] + [each.id for each in found.start]
    counts, hosts = Counter(ids), by_host(executors, ids)
    assert len(ids) == min(wanted, sum(rooms.values()))
    assert all(counts[each.id] <= each.room for each in executors)
    room_by_host = by_host(executors, [each.id for each in executors for _ in range(each.room)])
    for host in room_by_host:  # only a full host may have two less than another
        assert (
            hosts[host] == room_by_host[host] or hosts[host] >= max(hosts.values(), default=0) - 1
        )
        here = [each for each in executors if each.host == host]
        most = max(counts[each.id] for each in here)
        assert all(counts[each.id] == each.room or counts[each.id] >= most - 1 for each in here)


@given(ROOMS, st.integers(0, 20), HELD)
def test_every_slot_of_a_living_executor_is_kept_or_released(
    rooms: dict[tuple[str, int], int], wanted: int, raw: dict[int, tuple[str, int]]
) -> None:
    executors = made(rooms)
    held = fitting(executors, raw)
    found = spread(executors, wanted, held)
    living = {
        slot for slot, executor in held.items() if executor in {each.id for each in executors}
    }
    assert {*found.keep, *found.release} == living
    assert len(found.keep) + len(found.release) == len(living)
    started, released = {each.id for each in found.start}, {held[slot] for slot in found.release}
    assert not started & released


# two hosts with as many slots each, of which one has them on one of its executors
@example({("a", 0): 2, ("b", 0): 3, ("c", 0): 1, ("c", 2): 2}, 7, {0: ("c", 2), 1: ("c", 2)})
@given(ROOMS, st.integers(0, 20), HELD)
def test_starting_one_slot_after_another_ends_at_rest(
    rooms: dict[tuple[str, int], int], wanted: int, raw: dict[int, tuple[str, int]]
) -> None:
    executors = made(rooms)
    held = fitting(executors, raw)
    first = spread(executors, wanted, held)
    held = {slot: held[slot] for slot in first.keep}
    while (found := spread(executors, wanted, held)).start:
        assert not found.release
        held[100 + len(held)] = found.start[0].id
    assert not found.release and set(first.keep) <= set(found.keep)


def test_executors_are_complete_by_hosts_by_number_or_when_no_more_come() -> None:
    assert not is_complete(three(1), 4, 3, 3, 99_000, 3_000)  # too few cores, however long
    assert is_complete(three(), 6, 3, 0, 0, 3_000)
    assert not is_complete(three()[:2], 6, 3, 0, 99_000, 3_000)
    assert is_complete(three(), 6, 0, 3, 0, 3_000)
    assert not is_complete(three()[:2], 6, 0, 3, 0, 3_000)
    assert is_complete(three()[:2], 6, 0, 3, 3_000, 3_000)
    assert not is_complete(three(), 6, 0, 0, 2_999, 3_000)
