"""Session windows against a reference that scans every session, and what a tuple of one session
costs next to many others.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkstorm.api import Duration, Window
from sparkstorm.common.errors import InvalidTopologyError, StoreInconsistentError
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.windowing.due_queue import DueQueue
from sparkstorm.common.windowing.settings import LATENESS_MS
from sparkstorm.common.windowing.store import rank
from sparkstorm.common.windowing.watermarks import END, SourceClock
from tests.windowing.driving import Driver, Listing, Merging, timed

POISON = 9
STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 80), st.integers(0, POISON), st.integers(0, 7)),
    max_size=60,
)


class Values(Merging):
    """Emits the values of each session in their order; an update with a poisonous value fails and
    is to leave no trace.
    """

    def initial(self) -> Any:
        return []

    def fold(self, accumulator: Any, tup: Any) -> Any:
        return [*accumulator, tup["value"]]

    def merge(self, one: Any, other: Any) -> Any:
        return [*one, *other]

    def execute(self, window: Window, collector: Any) -> None:
        self._fail_on_poison(window, window.value)
        collector.emit(
            ([window.key[0], window.start, window.end, window.is_update, sorted(window.value)],)
        )

    def _fail_on_poison(self, window: Window, values: Any) -> None:
        if window.is_update and POISON in values:
            raise ValueError("poison")


class Tuples(Listing):
    """The same of collected tuples."""

    def execute(self, window: Window, collector: Any) -> None:
        values = [tup["value"] for tup in window.get()]
        Values._fail_on_poison(self, window, values)  # type: ignore[arg-type]
        collector.emit(
            ([window.key[0], window.start, window.end, window.is_update, sorted(values)],)
        )


@dataclass
class Span:
    """A session of the reference."""

    key: str
    times: list[int]
    values: list[int]
    fired: int = 0


@dataclass
class Reference:
    """Sessions by the definition: every step looks at all of them."""

    gap: int
    lateness: int
    spans: list[Span] = field(default_factory=list)
    fired_to: int = -1
    emitted: list[Any] = field(default_factory=list)

    def add(self, key: str, at: int, value: int) -> None:
        near = [
            s
            for s in self.spans
            if s.key == key and any(abs(at - each) < self.gap for each in s.times)
        ]
        span = Span(
            key,
            [at, *(t for s in near for t in s.times)],
            [value, *(v for s in near for v in s.values)],
            max((s.fired for s in near), default=0),
        )
        end = max(span.times) + self.gap
        if end <= self.fired_to or end == span.fired:
            if span.fired and POISON in span.values:
                return
            self._fire(span)
        self.spans = [s for s in self.spans if s not in near] + [span]

    def advance(self, watermark: int) -> None:
        self.fired_to = max(self.fired_to, watermark)
        for span in sorted(self.spans, key=lambda s: (max(s.times), s.key)):
            end = max(span.times) + self.gap
            if (
                end <= watermark
                and end != span.fired
                and not (span.fired and POISON in span.values)
            ):
                self._fire(span)
        self.spans = [
            s for s in self.spans if max(s.times) + self.gap + self.lateness > self.fired_to
        ]

    def _fire(self, span: Span) -> None:
        self.emitted.append(
            [
                span.key,
                min(span.times),
                max(span.times) + self.gap,
                bool(span.fired),
                sorted(span.values),
            ]
        )
        span.fired = max(span.times) + self.gap


class Journaled:
    """A driver that is begun anew, now and then, from the changes that its commits wrote."""

    def __init__(self, bolt: Any) -> None:
        self._bolt, self._kept, self._codec = bolt, dict[Any, Any](), Codec()
        self.emitted: list[Any] = []
        self.driver = Driver(copy.copy(bolt))

    def commit(self) -> None:
        changed, deleted = self._codec.unpack(
            self._codec.pack(list(self.driver.times.take_changes()))
        )
        self._kept |= {tuple(key): value for key, value in changed}
        for key in deleted:
            self._kept.pop(tuple(key), None)
        self.emitted += self.driver.emitted()
        self.driver._targets["default"].rows.clear()

    def restart(self) -> None:
        self.commit()
        self.driver = Driver(
            copy.copy(self._bolt), [[list(key), value] for key, value in self._kept.items()]
        )


def check_against_reference(bolt: Any, gap: int, lag: int, lateness: int, steps: list[Any]) -> None:
    bolt = timed(
        bolt.with_session_window(Duration.millis(gap)).with_key("key"), **{LATENESS_MS: lateness}
    )
    tried, reference, clock = Journaled(bolt), Reference(gap, lateness), SourceClock(lag, lateness)
    watermark = -1
    for key, at, value, what in steps:
        if not clock.is_late(at) and at + gap + lateness > watermark:
            tried.driver.rows([(key, at, value)])
            reference.add(key, at, value)
        if what in (0, 1):
            watermark = max(watermark, clock.mark_ms())
            while (
                tried.driver.runner.advance(watermark, 0, most=2 if what else 100)
                or tried.driver.runner.is_waiting
            ):
                tried.commit()
            reference.advance(watermark)
        if what == 2:
            tried.restart()
            tried.driver.advance(watermark)
    tried.driver.end()
    reference.advance(END)
    tried.commit()
    assert tried.emitted == reference.emitted
    tried.driver.runner._windows.settle(END)  # type: ignore[union-attr]
    tried.commit()
    assert [place for place in tried._kept if place[0] in "sat"] == []


@pytest.mark.parametrize("bolt", [Values(), Tuples()])
# a window that is given up before another one
@example(2, 4, 5, [("a", 49, 0, 0), ("a", 55, 0, 0), ("a", 50, POISON, 0)])
@given(st.integers(1, 12), st.integers(0, 25), st.sampled_from([0, 0, 5, 30]), STEPS)
def test_sessions_are_those_of_the_definition_after_failures_late_rows_and_restarts(
    bolt: Any, gap: int, lag: int, lateness: int, steps: list[Any]
) -> None:
    check_against_reference(bolt, gap, lag, lateness, steps)


@pytest.mark.slow
def test_hundreds_of_sessions_of_one_key_in_any_order_are_those_of_the_definition() -> None:
    for seed in range(6):
        chance = Random(seed)
        times = [*range(0, 1200, 3)]
        chance.shuffle(times)
        steps = [("a", at // 2, at % 9, chance.choice([2, 3, 3, 3, 3, 4])) for at in times]
        check_against_reference(Values() if seed % 2 else Tuples(), 1 + seed % 4, 2000, 0, steps)


class CountingCodec(Codec):
    """Counts the values that are copied."""

    copied = 0

    def normalise(self, value: Any, depth: int = 0) -> Any:
        self.copied += 1
        return super().normalise(value, depth)


def cost_of_last(bolt: Any, order: list[int]) -> tuple[int, int, int]:
    """(values copied, bytes for the journal, of firing) for one more tuple next to so many sessions
    of its key.
    """
    codec = CountingCodec()
    driver = Driver(timed(bolt.with_session_window(Duration.millis(10)).with_key("key")))
    driver.times._codec = codec
    *former, last = [("a", at, 1) for at in order]
    driver.rows(former)
    driver.times.take_changes()
    codec.copied = 0
    driver.rows([last])
    copied, written = codec.copied, len(codec.pack(driver.times.take_changes()))
    driver.advance(order[0] + 10)
    return copied, written, len(codec.pack(driver.times.take_changes()))


@pytest.mark.parametrize("bolt", [Merging(), Listing()])
@pytest.mark.parametrize("new", ["last", "inside", "extending"])
def test_what_a_tuple_costs_does_not_depend_on_how_many_sessions_its_key_has(
    bolt: Any, new: str
) -> None:
    def order(count: int) -> list[int]:
        return [
            *range(1000, 1000 + 20 * count, 20),
            {"last": 9000, "inside": 1501, "extending": 1995}[new],
        ]

    few, many = (cost_of_last(copy.copy(bolt), order(count)) for count in (60, 300))
    # larger numbers take more bytes
    assert all(one <= other <= one + 4 for one, other in zip(few, many, strict=True))
    copied, written, fired = many
    assert copied < 60
    assert written < 120
    assert fired < 120


def test_a_session_that_has_fired_is_not_kept_in_memory() -> None:
    driver = Driver(timed(Merging().with_session_window(Duration.millis(10)).with_key("key")))
    for at in range(0, 4000, 20):
        driver.rows([("a", at, 1), ("b", at, 1)])
        driver.advance(at)
    driver.end()
    windows: Any = driver.runner._windows
    assert (windows._firsts, windows._ends.first_at()) == ({}, None)
    assert [place[0] for place, _ in driver.times.items() if place[0] in "sa"] == []


def test_sessions_in_the_form_of_an_older_version_are_refused() -> None:
    bolt = timed(Merging().with_session_window(Duration.millis(10)).with_key("key"))
    former = [
        [["shape"], ["session", 10, 10, True]],
        [["s", "a"], [[1, 5, 0, [2, 3]], [40, 41, 0, [2, 3]]]],
    ]
    sentence = r"session windows in the form of an older version.*kill the topology"
    with pytest.raises(InvalidTopologyError, match=sentence):
        Driver(copy.copy(bolt), former)


@pytest.mark.parametrize(
    ("place", "entry"),
    [
        (["s"], [1, 0]),
        (["s", "a"], [1, 0]),
        (["s", 1, "a"], 5),
        (["s", 1, "a"], [1]),
        (["s", 1, "a"], [1, None]),
        (["s", 1, "a"], [1, 0, 0]),
        (["s", True, "a"], [1, 0]),
    ],
)
def test_a_stored_session_of_another_form_is_named(place: Any, entry: Any) -> None:
    with pytest.raises(StoreInconsistentError, match=r"\('s'.* is no session of this version"):
        Driver(
            timed(Merging().with_session_window(Duration.millis(10)).with_key("key")),
            [[place, entry]],
        )


KEYS = st.tuples(
    st.one_of(
        st.integers(-3, 3),
        st.sampled_from(["", "a", "b", None, b"a", 1.5, True, Decimal("-1.5"), Decimal(5)]),
    )
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "add", "drop", "first"]), st.integers(0, 4), KEYS),
        max_size=60,
    )
)
def test_an_agenda_hands_out_the_least_key_of_the_earliest_time(steps: list[Any]) -> None:
    queue, reference = DueQueue(), dict[Any, None]()
    for what, at, key in steps:
        if what == "add":
            queue.add(at, key)
            reference[at, key] = None
        elif what == "drop":
            queue.drop(at, key)
            reference.pop((at, key), None)
        elif reference:
            least = min(reference, key=lambda each: (each[0], rank(each[1])))
            assert (queue.first_at(), queue.first_key()) == least
            queue.drop_first()
            del reference[least]
        else:
            queue.sweep(lambda at, key: (at, key) in reference)
    assert queue.first_at() == min((at for at, _ in reference), default=None)


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: Any) -> bool:
        Counted.compared += 1
        return int(self) < int(other)

    __hash__ = int.__hash__


def test_keys_that_are_added_while_those_of_their_time_are_handed_out_are_not_sorted_with_them_again() -> (
    None
):
    queue, Counted.compared = DueQueue(), 0
    for number in range(1000):
        queue.add(5, (Counted(number),))
    for number in range(1000):
        queue.first_key()
        queue.drop_first()
        queue.add(5, (Counted(5000 - number),))
        queue.add(9, (Counted(number),))
        queue.drop(9, (Counted(number),))
    assert Counted.compared < 40_000  # with each key sorted again with all of them a million


class Reminding(Listing):
    """Sets as many timers as its first window has tuples, all due before the next window."""

    def execute(self, window: Window, collector: Any) -> None:
        super().execute(window, collector)
        for number in range(60 if window.end == 10 else 0):
            self.timers.set_event_timer(number, 11 + number % 7)

    def on_timer(self, timer: Any, collector: Any) -> None:
        collector.emit(([timer.name, timer.at_ms],))


def test_the_tuples_of_a_window_are_not_read_for_each_timer_before_it() -> None:
    codec = CountingCodec()
    driver = Driver(timed(Reminding().with_tumbling_window(Duration.millis(10))))
    driver.times._codec = codec
    driver.rows([("a", 5, 1), *(("a", 15, number) for number in range(300))])
    codec.copied = 0
    driver.end()
    assert [len(driver.emitted()), driver.emitted()[-1][2]] == [62, 20]
    # each tuple, of seven values, once; 60 times as much when each timer looks at the window
    assert codec.copied < 300 * 10
