"""Places of slots over their life: taken, missed, lost with a host, given back to one that
returns.
"""

from collections import Counter

import pytest

from sparkstorm.common.spark_versions import Executor
from sparkstorm.driver.hosting.slot_executors import TRIES, SlotExecutors

W1, W2, W3 = (Executor(str(number), f"w{number}", 4) for number in (1, 2, 3))


class Bench:
    """Places of six slots on executors that the test sets; Spark puts every slot where it is meant
    to be.
    """

    def __init__(self, *executors: Executor, count: int = 6) -> None:
        self.executors = list(executors)
        self.places = SlotExecutors(lambda: self.executors, count)
        self.runs: dict[int, Executor] = {}
        self.start(range(count))

    def start(self, slots: range | list[int]) -> None:
        for slot in slots:
            place = self.places.take(slot)
            assert place is not None
            self.runs[slot] = place
            assert self.places.landed(slot, place.id)

    def lose(self, executor: Executor) -> list[int]:
        self.executors.remove(executor)
        lost = [slot for slot, each in self.runs.items() if each == executor]
        for slot in lost:
            self.places.leave(slot)
        return lost

    def hosts(self) -> Counter[str]:
        return Counter(each.host for each in self.runs.values())


def test_six_slots_on_three_hosts_are_two_on_each() -> None:
    bench = Bench(W1, W2, W3)
    assert bench.hosts() == {"w1": 2, "w2": 2, "w3": 2}
    assert bench.places.are_settled and bench.places.surplus() == []


def test_a_slot_that_ends_returns_to_its_host() -> None:
    bench = Bench(W1, W2, W3)
    for slot in range(6):
        before = bench.runs[slot]
        bench.places.leave(slot)
        assert bench.places.take(slot) == before
        assert bench.places.landed(slot, before.id)


def test_slots_of_a_lost_host_go_to_the_others_and_one_after_another_to_the_host_that_returns() -> (
    None
):
    bench = Bench(W1, W2, W3)
    lost = bench.lose(W3)
    bench.start(lost)
    assert bench.hosts() == {"w1": 3, "w2": 3} and bench.places.surplus() == []
    back = Executor("4", "w3", 4)  # an executor never has the id of a former one
    bench.executors.append(back)
    moved = []
    while crowded := bench.places.surplus():
        bench.places.leave(crowded[0])
        assert bench.places.surplus() == []  # one at a time
        bench.start([crowded[0]])
        moved.append(bench.runs[crowded[0]])
    assert moved == [back, back] and bench.hosts() == {"w1": 2, "w2": 2, "w3": 2}


def test_without_room_there_is_no_place_until_an_executor_comes() -> None:
    bench = Bench(Executor("1", "w1", 2), Executor("2", "w2", 1), count=3)
    lost = bench.lose(bench.executors[1])
    assert bench.places.take(lost[0]) is None
    bench.executors.append(Executor("3", "w2", 1))
    assert bench.places.take(lost[0]) == bench.executors[1]


def test_a_slot_on_another_executor_of_its_host_stays() -> None:
    places = SlotExecutors(lambda: [Executor("1", "w1", 1), Executor("2", "w1", 1), W3], 1)
    place = places.take(0)
    assert place is not None and place.host == "w1"
    assert places.landed(0, "2") and places.are_settled


def test_a_slot_that_spark_puts_elsewhere_is_placed_again_and_stays_after_a_number_of_tries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    places = SlotExecutors(lambda: [W1, W2], 2)
    assert places.take(0) == W1 and places.landed(0, "1")
    for number in range(TRIES):
        assert places.take(1) == W2 and places.unsure() == [1] and not places.are_settled
        assert places.landed(1, "1") is (number == TRIES - 1)
        if number < TRIES - 1:
            places.leave(1)
    assert places.are_settled and "slot 1 runs on w1 instead of w2" in caplog.text
    assert places.surplus() == []  # or it would be tried without end
    places.leave(1)
    assert places.take(1) == W2 and places.landed(1, "2")


def test_a_slot_that_was_left_elsewhere_is_moved_when_executors_change() -> None:
    executors = [W1, W2]
    places = SlotExecutors(lambda: executors, 2)
    assert places.take(0) == W1 and places.landed(0, "1")
    for _ in range(TRIES):
        places.take(1)
        places.landed(1, "1")
    executors.append(W3)
    assert places.surplus() == [0, 1]
