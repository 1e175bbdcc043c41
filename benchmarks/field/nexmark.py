"""Nexmark (github.com/nexmark/nexmark): its generator, and q0 to q5, q7 and q8 by rows and by
columns, each with its oracle.

Of 50 events 1 is a person, 3 are auctions and 46 are bids, in that order; ids, hot ids and prices
follow the Java generator. Texts are drawn from pools of ready ones of the right lengths. Event time
is in milliseconds and in order. q6 is left out, as in Flink SQL. q4 gives an auction's price when
the auction has expired, and the sums behind each average.
"""

from __future__ import annotations

import functools
import string
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.field.case import (
    RESULT,
    Answer,
    Case,
    Column,
    Part,
    Pool,
    Row,
    Rows,
    SumColumns,
    Sums,
    Text,
    Wire,
    counted,
    over_tasks,
    sums_of,
)
from sparkstorm.api import (
    BasicOutputCollector,
    BatchCollector,
    ColumnBolt,
    Duration,
    FoldingBolt,
    JoinBolt,
    StatefulBolt,
    TimedBolt,
    TopologyBuilder,
    Tuple,
    Window,
    bolt,
)
from sparkstorm.common.model.tuples import Source
from sparkstorm.common.windowing.timers import Timer

KINDS = ("person", "auction", "bid")
EPOCH = 50  # events: one person, three auctions, 46 bids
FIRST_ID = 1000
FIRST_CATEGORY = 10
IN_FLIGHT = 100
ACTIVE = 1000
AHEAD = 10
HOT_GROUP = 100
BASE_MS = 1_700_000_000_000
WINDOW_MS = 10_000
SLIDE_MS = 2_000
SLIDE = Duration.millis(SLIDE_MS)
LAG = Duration.seconds(4)
RATE = Decimal("0.908")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
_FIRST = (
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
    "Walter",
)
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_COLD_CHANNELS = 10_000
_POOL = 512


@dataclass(frozen=True, slots=True)
class Nexmark:
    """Generator of so many events of all kinds, at a number per second of event time; chunks are
    whole epochs.
    """

    events: int
    seed: int = 1
    per_second: int = 10_000
    chunk: int = 5_000
    streams: ClassVar[Mapping[str, Sequence[str]]] = {
        "person": ("id", "name", "email", "card", "city", "state", "time", "extra"),
        "auction": (
            "id",
            "item",
            "description",
            "initial",
            "reserve",
            "time",
            "expires",
            "seller",
            "category",
            "extra",
        ),
        "bid": ("auction", "bidder", "price", "channel", "url", "time", "extra"),
    }

    def part(self, number: int, wanted: Sequence[str] = KINDS) -> Mapping[str, Part]:
        """Return a chunk's rows by stream. Kinds behind the last wanted one are not made: they
        come last out of the chunk's chance, so those before them stay the same.
        """
        first = number * self.chunk
        offsets = np.arange(min(self.chunk, self.events - first))
        rest = offsets % EPOCH
        random = np.random.default_rng([self.seed, number])
        chosen = {"person": rest < 1, "auction": (rest >= 1) & (rest < 4), "bid": rest >= 4}
        makers = {"person": self._persons, "auction": self._auctions, "bid": self._bids}
        part_by_kind: dict[str, Part] = {}
        for kind in KINDS[: 1 + max(map(KINDS.index, wanted))]:
            places = offsets[chosen[kind]]
            part_by_kind[kind] = Part(places, makers[kind](first + places, random))
        return part_by_kind

    def _time(self, n: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        time: np.ndarray[Any, Any] = BASE_MS + n * 1000 // self.per_second
        return time

    def _persons(self, n: np.ndarray[Any, Any], random: np.random.Generator) -> list[Column]:
        pools = _pools(self.seed)
        texts = [pools[name] for name in ("name", "email", "card", "city", "state")]
        columns: list[Column] = [
            Text(pool, random.integers(0, len(pool.objects), len(n))) for pool in texts
        ]
        extra = Text(pools["person extra"], random.integers(0, _POOL, len(n)))
        return [n // EPOCH + FIRST_ID, *columns, self._time(n), extra]

    def _auctions(self, n: np.ndarray[Any, Any], random: np.random.Generator) -> list[Column]:
        pools = _pools(self.seed)
        size = len(n)
        time = self._time(n)
        initial = _prices(random, size)
        horizon = self._time(n + IN_FLIGHT * EPOCH // 3) - time
        expires = time + 1 + (random.random(size) * np.maximum(2 * horizon, 1)).astype(np.int64)
        seller = (
            np.where(
                random.integers(0, 4, size) > 0,
                n // EPOCH // HOT_GROUP * HOT_GROUP,
                _active(n, random),
            )
            + FIRST_ID
        )
        return [
            n // EPOCH * 3 + n % EPOCH - 1 + FIRST_ID,
            Text(pools["item"], random.integers(0, _POOL, size)),
            Text(pools["description"], random.integers(0, _POOL, size)),
            initial,
            initial + _prices(random, size),
            time,
            expires,
            seller,
            FIRST_CATEGORY + random.integers(0, 5, size),
            Text(pools["auction extra"], random.integers(0, _POOL, size)),
        ]

    def _bids(self, n: np.ndarray[Any, Any], random: np.random.Generator) -> list[Column]:
        pools = _pools(self.seed)
        size = len(n)
        newest = n // EPOCH * 3 + 2  # the last auction before a bid
        least = np.maximum(newest - IN_FLIGHT, 0)
        cold = least + (random.random(size) * (newest - least + 1 + AHEAD)).astype(np.int64)
        auction = (
            np.where(random.integers(0, 2, size) > 0, newest // HOT_GROUP * HOT_GROUP, cold)
            + FIRST_ID
        )
        hot_bidder = n // EPOCH // HOT_GROUP * HOT_GROUP + 1
        bidder = (
            np.where(random.integers(0, 4, size) > 0, hot_bidder, _active(n, random)) + FIRST_ID
        )
        hot = random.integers(0, 4, size)
        cold_channel = 4 + random.integers(0, _COLD_CHANNELS, size)
        channel = np.where(random.integers(0, 2, size) > 0, hot, cold_channel)
        extra = Text(pools["bid extra"], random.integers(0, _POOL, size))
        texts = (Text(pools["channel"], channel), Text(pools["url"], channel))
        return [auction, bidder, _prices(random, size), *texts, self._time(n), extra]


def _prices(random: np.random.Generator, size: int) -> np.ndarray[Any, Any]:
    prices: np.ndarray[Any, Any] = np.rint(10 ** (6 * random.random(size)) * 100).astype(np.int64)
    return prices


def _active(n: np.ndarray[Any, Any], random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return persons among the last that came, or a few ahead of them."""
    people = n // EPOCH + 1
    active = np.minimum(people, ACTIVE)
    numbers: np.ndarray[Any, Any] = (
        people - active + (random.random(len(n)) * (active + AHEAD)).astype(np.int64)
    )
    return numbers


@functools.cache
def _pools(seed: int) -> Mapping[str, Pool]:
    """Return the ready texts: lengths as in Nexmark, so that events have 200, 500 and 100 bytes on
    average.
    """
    random = Random(seed)

    def word(size: int, letters: str = string.ascii_lowercase) -> str:
        return "".join(random.choices(letters, k=size))

    def words(least: int, most: int) -> Pool:
        return Pool([word(random.randint(least, most)) for _ in range(_POOL)])

    colds = [f"channel-{n}" for n in range(_COLD_CHANNELS)]
    paths = [f"{word(5)}/{word(5)}/{word(5)}" for _ in range(_POOL)]
    urls = [f"https://www.nexmark.com/{paths[n % _POOL]}/item.htm?query=1" for n in range(4)]
    urls += [
        f"https://www.nexmark.com/{paths[n % _POOL]}/item.htm?query=1&channel_id={n}"
        for n in range(_COLD_CHANNELS)
    ]
    return {
        "name": Pool([f"{first} {last}" for first in _FIRST for last in _LAST]),
        "email": Pool([f"{word(7)}@{word(5)}.com" for _ in range(_POOL)]),
        "card": Pool([" ".join(word(4, string.digits) for _ in range(4)) for _ in range(_POOL)]),
        "city": Pool(_CITIES),
        "state": Pool(STATES),
        "item": words(3, 20),
        "description": words(3, 100),
        "channel": Pool([*_HOT_CHANNELS, *colds]),
        "url": Pool(urls),
        "person extra": words(80, 120),
        "auction extra": words(300, 450),
        "bid extra": words(8, 12),
    }


# -- q0 pass through, q1 currency, q2 selection ----------------------------------------------------

_BID = ("auction", "bidder", "price", "time", "extra")


@bolt(*_BID)
def pass_through(tup: Tuple) -> Any:
    """q0: a bid without its channel."""
    auction, bidder, price, _, _, time, extra = tup.values
    yield auction, bidder, price, time, extra


@bolt(*_BID)
def currency(tup: Tuple) -> Any:
    """q1: the price in another currency."""
    auction, bidder, price, _, _, time, extra = tup.values
    yield auction, bidder, price * RATE, time, extra


@bolt("auction", "price")
def selection(tup: Tuple) -> Any:
    """q2: bids on some auctions."""
    auction, _, price, *_ = tup.values
    if auction % 123 == 0:
        yield auction, price


class PassColumns(ColumnBolt):
    """q0 of a batch."""

    outputs = _BID

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Choose columns."""
        collector.emit_batch(batch.select(_BID))


class CurrencyColumns(ColumnBolt):
    """q1 of a batch."""

    outputs = _BID

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Multiply a column."""
        prices = pc.multiply(
            batch["price"].cast(pa.decimal128(19, 0)), pa.scalar(RATE, pa.decimal128(3, 3))
        )
        columns = [prices if name == "price" else batch[name] for name in _BID]
        collector.emit_batch(pa.RecordBatch.from_arrays(columns, list(_BID)))


class SelectionColumns(ColumnBolt):
    """q2 of a batch."""

    outputs = ("auction", "price")

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Filter; Arrow has no remainder."""
        chosen = batch["auction"].to_numpy() % 123 == 0
        if chosen.any():
            collector.emit_batch(batch.select(["auction", "price"]).filter(pa.array(chosen)))


def _made(kind: Any) -> Any:
    """Return a class's instance, or a function as it is."""
    return kind() if isinstance(kind, type) else kind


def _over_bids(query: Any, answer: Any) -> Wire:
    def wire(builder: TopologyBuilder, tasks: int) -> None:
        builder.set_bolt("query", _made(query), tasks).local_or_shuffle_grouping("events", "bid")
        declared = builder.set_bolt(RESULT, answer(), 1 if answer is Rows else tasks)
        if answer is Rows:
            declared.global_grouping("query")
        else:
            declared.local_or_shuffle_grouping("query")

    return wire


# -- q3 local items --------------------------------------------------------------------------------

_LOCAL = ("OR", "ID", "CA")


@bolt("id", "name", "city", "state")
def local_persons(tup: Tuple) -> Any:
    """Persons of three states."""
    if tup["state"] in _LOCAL:
        yield tup["id"], tup["name"], tup["city"], tup["state"]


@bolt("seller", "auction")
def tenth_category(tup: Tuple) -> Any:
    """Auctions of category 10."""
    if tup["category"] == FIRST_CATEGORY:
        yield tup["seller"], tup["id"]


class LocalPersonColumns(ColumnBolt):
    """The same of a batch."""

    outputs = ("id", "name", "city", "state")

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Filter."""
        chosen = pc.is_in(batch["state"], value_set=pa.array(_LOCAL))
        collector.emit_batch(batch.select(list(self.outputs)).filter(chosen))


class TenthCategoryColumns(ColumnBolt):
    """The same of a batch."""

    outputs = ("seller", "auction")

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Filter."""
        matching = batch.filter(pc.equal(batch["category"], FIRST_CATEGORY))
        collector.emit_batch(
            pa.RecordBatch.from_arrays([matching["seller"], matching["id"]], list(self.outputs))
        )


class LocalItems(StatefulBolt):
    """Join of persons and their auctions, whichever comes first; both are kept for ever."""

    outputs = ("name", "city", "state", "auction")
    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Join one row with what is there of the other side."""
        if tup.component == "persons":
            id, *person = tup.values
            _, waiting = self.state.get(id, (None, ()))
            self.state.put(id, [person, []])
            for auction in waiting:
                collector.emit((*person, auction))
        else:
            id, auction = tup.values
            stored, waiting = self.state.get(id, (None, ()))
            if stored is None:
                self.state.put(id, [None, [*waiting, auction]])
            else:
                collector.emit((*stored, auction))


def _local_items(persons: Any, auctions: Any) -> Wire:
    def wire(builder: TopologyBuilder, tasks: int) -> None:
        builder.set_bolt("persons", _made(persons), tasks).local_or_shuffle_grouping(
            "events", "person"
        )
        builder.set_bolt("auctions", _made(auctions), tasks).local_or_shuffle_grouping(
            "events", "auction"
        )
        join = builder.set_bolt("join", LocalItems(), tasks)
        join.fields_grouping("persons", "id").fields_grouping("auctions", "seller")
        builder.set_bolt(RESULT, Rows()).global_grouping("join")

    return wire


def _local_items_answer(rows: Mapping[str, Sequence[Row]]) -> Answer:
    persons = {row[0]: (row[1], row[4], row[5]) for row in rows["person"] if row[5] in _LOCAL}
    return counted(
        [
            (*persons[row[7]], row[0])
            for row in rows["auction"]
            if row[8] == FIRST_CATEGORY and row[7] in persons
        ]
    )


# -- q4 average price by category ------------------------------------------------------------------


@bolt("auction", "time", "expires", "category")
def openings(tup: Tuple) -> Any:
    """Fields of an auction that its closing needs."""
    yield tup["id"], tup["time"], tup["expires"], tup["category"]


@bolt("auction", "time", "price")
def offers(tup: Tuple) -> Any:
    """Fields of a bid that an auction's closing needs."""
    auction, _, price, _, _, time, _ = tup.values
    yield auction, time, price


class OpeningColumns(ColumnBolt):
    """Openings of a batch."""

    outputs = ("auction", "time", "expires", "category")

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Choose columns."""
        collector.emit_batch(batch.select(["id", "time", "expires", "category"]))


class OfferColumns(ColumnBolt):
    """Offers of a batch."""

    outputs = ("auction", "time", "price")

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Choose columns."""
        collector.emit_batch(batch.select(list(self.outputs)))


class Closing(TimedBolt):
    """Gives the price of an auction when it has expired: its best bid from its opening to its last
    millisecond.

    A bid may come before its auction: it may have the same millisecond. Such bids wait under the
    negative id. Closed auctions keep a 0, lest their later bids wait for ever.
    """

    outputs = ("category", "price")

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Open an auction, or note a better bid."""
        if tup.component == "openings":
            auction, time, expires, category = tup.values
            early = self.state.get(-auction, ())
            best = max(
                (price for bid_time, price in early if time <= bid_time <= expires), default=None
            )
            self.state.put(auction, [time, expires, category, best])
            self.timers.set_event_timer(auction, expires + 1)
            if early:
                self.state.delete(-auction)
            return
        auction, time, price = tup.values
        stored = self.state.get(auction)
        if stored is None:
            self.state.put(-auction, [*self.state.get(-auction, ()), [time, price]])
        elif stored and stored[0] <= time <= stored[1] and (stored[3] is None or price > stored[3]):
            self.state.put(auction, [*stored[:3], price])

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        """Close an auction."""
        _, _, category, best = self.state.get(timer.name)
        self.state.put(timer.name, 0)
        if best is not None:
            collector.emit((category, best))


class Averages(StatefulBolt):
    """Sum and number of prices by category: their quotient is the average."""

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Add one price."""
        category, price = tup.values
        self.state.add((category, "sum"), price)
        self.state.add((category, "n"))


def _averages(auctions: Any, bids: Any) -> Wire:
    def wire(builder: TopologyBuilder, tasks: int) -> None:
        builder.set_bolt("openings", _made(auctions), tasks).local_or_shuffle_grouping(
            "events", "auction"
        )
        builder.set_bolt("offers", _made(bids), tasks).local_or_shuffle_grouping("events", "bid")
        closing = builder.set_bolt(
            "closing", Closing().with_timestamp_field("time").with_lag(LAG), tasks
        )
        closing.fields_grouping("openings", "auction").fields_grouping("offers", "auction")
        builder.set_bolt(RESULT, Averages()).global_grouping("closing")

    return wire


def _averages_answer(rows: Mapping[str, Sequence[Row]]) -> Answer:
    auctions = {row[0]: row for row in rows["auction"]}
    best: dict[int, int] = {}
    for auction, _, price, _, _, time, _ in rows["bid"]:
        opened = auctions.get(auction)
        if opened is not None and opened[5] <= time <= opened[6]:
            best[auction] = max(price, best.get(auction, 0))
    answer: Answer = {}
    for auction, price in best.items():
        category = auctions[auction][8]
        answer[category, "sum"] = answer.get((category, "sum"), 0) + price
        answer[category, "n"] = answer.get((category, "n"), 0) + 1
    return answer


# -- q5 hot items ----------------------------------------------------------------------------------


@bolt("auction", "time", "n")
def single_bids(tup: Tuple) -> Any:
    """One bid of an auction."""
    auction, _, _, _, _, time, _ = tup.values
    yield auction, time, 1


class BidsByPane(ColumnBolt):
    """Bids of a batch by auction and slide of the window: a count has the time at which its slide
    begins.
    """

    outputs = ("auction", "time", "n")

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Count; rows leave in the order of time."""
        pane = pc.multiply(pc.divide(batch["time"], SLIDE_MS), SLIDE_MS)
        table = pa.table([batch["auction"], pane], ["auction", "time"]).group_by(
            ["auction", "time"]
        )
        counts = table.aggregate([([], "count_all")]).sort_by("time").combine_chunks()
        columns = [counts[name].combine_chunks() for name in ("auction", "time", "count_all")]
        collector.emit_batch(pa.RecordBatch.from_arrays(columns, list(self.outputs)))


class BidsOfWindow(FoldingBolt):
    """Number of bids per auction and window."""

    outputs = ("auction", "num", "last_ms")
    key_fields = ("auction",)

    def initial(self) -> Any:
        """No bid."""
        return 0

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        """Add bids."""
        return accumulator + tup["n"]

    def merge(self, one: Any, other: Any) -> Any:
        """Add the slides of a window."""
        return one + other

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Give the number."""
        collector.emit((window.key[0], window.value, window.last_ms))


class Hottest(FoldingBolt):
    """Auctions with the most bids of each window."""

    outputs = ("auction", "num", "last_ms")

    def initial(self) -> Any:
        """No auction."""
        return [0, []]

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        """Keep the auctions with the greatest number."""
        auction, num, _ = tup.values
        most, auctions = accumulator
        if num > most:
            return [num, [auction]]
        return [most, [*auctions, auction]] if num == most else accumulator

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Give each of them."""
        most, auctions = window.value
        for auction in auctions:
            collector.emit((auction, most, window.last_ms))


def _hot_items(bids: Any) -> Wire:
    def wire(builder: TopologyBuilder, tasks: int) -> None:
        builder.set_bolt("bids", _made(bids), tasks).local_or_shuffle_grouping("events", "bid")
        counts = (
            BidsOfWindow()
            .with_window(Duration.millis(WINDOW_MS), SLIDE)
            .with_timestamp_field("time")
            .with_lag(LAG)
        )
        builder.set_bolt("counts", counts, tasks).fields_grouping("bids", "auction")
        hottest = Hottest().with_tumbling_window(SLIDE).with_timestamp_field("last_ms")
        builder.set_bolt("hottest", hottest).global_grouping("counts")
        builder.set_bolt(RESULT, Rows()).global_grouping("hottest")

    return wire


def _hot_items_answer(rows: Mapping[str, Sequence[Row]]) -> Answer:
    counts: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for auction, _, _, _, _, time, _ in rows["bid"]:
        first_end = time // SLIDE_MS * SLIDE_MS + SLIDE_MS
        for end in range(first_end, first_end + WINDOW_MS, SLIDE_MS):
            counts[end][auction] += 1
    hot_items = []
    for end, by_auction in counts.items():
        most = max(by_auction.values())
        hot_items += [
            (auction, most, end - 1) for auction, num in by_auction.items() if num == most
        ]
    return counted(hot_items)


# -- q7 highest bid --------------------------------------------------------------------------------

_TIMED_BID = (*_BID, "last_ms")


def _last_ms(time: int) -> int:
    return time // WINDOW_MS * WINDOW_MS + WINDOW_MS - 1


class Highest(FoldingBolt):
    """Bids of the greatest price of each window; the last millisecond of the window is their time
    for the next one.
    """

    outputs = _TIMED_BID

    def initial(self) -> Any:
        """No bid."""
        return [0, []]

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        """Keep the bids with the greatest price."""
        most, bids = accumulator
        price = tup["price"]
        if price < most:
            return accumulator
        return [price, [*(bids if price == most else ()), list(tup.values[:5])]]

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Give each of them."""
        for bid in window.value[1]:
            collector.emit((*bid, window.last_ms))


class HighestColumns(ColumnBolt):
    """Bids of the greatest price of a batch, by window."""

    outputs = _TIMED_BID

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Compare each price with the greatest of its window; rows stay in the order of time."""
        price = batch["price"].to_numpy()
        window = batch["time"].to_numpy() // WINDOW_MS
        first = int(window.min())
        greatest = np.zeros(int(window.max()) - first + 1, np.int64)
        np.maximum.at(greatest, window - first, price)
        chosen = pa.array(price == greatest[window - first])
        bids = batch.select(list(_BID)).filter(chosen)
        last = pa.array(window * WINDOW_MS + WINDOW_MS - 1).filter(chosen)
        collector.emit_batch(pa.RecordBatch.from_arrays([*bids.columns, last], list(_TIMED_BID)))


def _tumbling(folding: Any, field: str, lag: Duration | None = None) -> Any:
    timed = folding.with_tumbling_window(Duration.millis(WINDOW_MS)).with_timestamp_field(field)
    return timed if lag is None else timed.with_lag(lag)


def _highest_by_rows(builder: TopologyBuilder, tasks: int) -> None:
    builder.set_bolt("bids", pass_through, tasks).local_or_shuffle_grouping("events", "bid")
    builder.set_bolt("highest", _tumbling(Highest(), "time", LAG), tasks).local_or_shuffle_grouping(
        "bids"
    )
    _top(builder)


def _highest_by_columns(builder: TopologyBuilder, tasks: int) -> None:
    builder.set_bolt("highest", HighestColumns(), tasks).local_or_shuffle_grouping("events", "bid")
    _top(builder)


def _top(builder: TopologyBuilder) -> None:
    builder.set_bolt("top", _tumbling(Highest(), "last_ms")).global_grouping("highest")
    builder.set_bolt(RESULT, Rows()).global_grouping("top")


def _highest_answer(rows: Mapping[str, Sequence[Row]]) -> Answer:
    most: dict[int, int] = {}
    for row in rows["bid"]:
        last = _last_ms(row[5])
        most[last] = max(row[2], most.get(last, 0))
    return counted(
        [
            (*row[:3], *row[5:], _last_ms(row[5]))
            for row in rows["bid"]
            if row[2] == most[_last_ms(row[5])]
        ]
    )


# -- q8 new users ----------------------------------------------------------------------------------


@bolt("id", "name", "time")
def named_persons(tup: Tuple) -> Any:
    """A person's name and time."""
    yield tup["id"], tup["name"], tup["time"]


@bolt("seller", "time")
def sellers(tup: Tuple) -> Any:
    """An auction's seller and time."""
    yield tup["seller"], tup["time"]


class NamedPersonColumns(ColumnBolt):
    """Persons of a batch."""

    outputs = ("id", "name", "time")

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Choose columns."""
        collector.emit_batch(batch.select(list(self.outputs)))


class SellerColumns(ColumnBolt):
    """Sellers of a batch."""

    outputs = ("seller", "time")

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Choose columns."""
        collector.emit_batch(batch.select(list(self.outputs)))


class NewUsers(StatefulBolt):
    """Each person once, with the begin of the window; a person with several auctions comes several
    times.
    """

    order_insensitive = True

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Note a person."""
        id, name, time = tup.values
        self.state.put((id, name, time // WINDOW_MS * WINDOW_MS), 1)


def _new_users(persons: Any, auctions: Any) -> Wire:
    def wire(builder: TopologyBuilder, tasks: int) -> None:
        builder.set_bolt("persons", _made(persons), tasks).local_or_shuffle_grouping(
            "events", "person"
        )
        builder.set_bolt("auctions", _made(auctions), tasks).local_or_shuffle_grouping(
            "events", "auction"
        )
        join = (
            JoinBolt("persons", key="id")
            .join("auctions", key="seller")
            .select("id", "name", "persons:time")
        )
        builder.set_bolt(
            "join", _tumbling(join, "time", LAG), tasks, inputs=["persons", "auctions"]
        )
        builder.set_bolt(RESULT, NewUsers()).global_grouping("join")

    return wire


def _new_users_answer(rows: Mapping[str, Sequence[Row]]) -> Answer:
    sold = {(row[7], row[5] // WINDOW_MS) for row in rows["auction"]}
    return {
        (id, name, time // WINDOW_MS * WINDOW_MS): 1
        for id, name, _, _, _, _, time, _ in rows["person"]
        if (id, time // WINDOW_MS) in sold
    }


def _of_bids(answer: Any) -> Any:
    return lambda rows: answer(rows["bid"])


def _passed(bids: Sequence[Row]) -> Answer:
    return sums_of([(*row[:3], *row[5:]) for row in bids])


def _converted(bids: Sequence[Row]) -> Answer:
    return sums_of([(row[0], row[1], row[2] * RATE, *row[5:]) for row in bids])


def _selected(bids: Sequence[Row]) -> Answer:
    return counted([(row[0], row[2]) for row in bids if row[0] % 123 == 0])


def _case(
    name: str,
    text: str,
    streams: Sequence[str],
    rows: Wire,
    columns: Wire,
    answer: Any,
    **more: Any,
) -> Case:
    return Case(f"nexmark {name}", text, streams, rows, columns, answer, **more)


_BIDS = ("bid",)
_SALES = ("person", "auction")
_ALL = ("auction", "bid")
CASES = (
    _case(
        "q0", "pass through", _BIDS, _over_bids(pass_through, Sums), _over_bids(PassColumns, SumColumns),
        _of_bids(_passed), read=over_tasks,
    ),
    _case(
        "q1", "currency", _BIDS, _over_bids(currency, Sums), _over_bids(CurrencyColumns, SumColumns),
        _of_bids(_converted), read=over_tasks,
    ),
    _case("q2", "selection", _BIDS, _over_bids(selection, Rows), _over_bids(SelectionColumns, Rows), _of_bids(_selected)),
    _case(
        "q3", "local items", _SALES, _local_items(local_persons, tenth_category),
        _local_items(LocalPersonColumns, TenthCategoryColumns), _local_items_answer,
    ),
    _case(
        "q4", "average price", _ALL, _averages(openings, offers), _averages(OpeningColumns, OfferColumns),
        _averages_answer, time="time",
    ),
    _case("q5", "hot items", _BIDS, _hot_items(single_bids), _hot_items(BidsByPane), _hot_items_answer, time="time"),
    _case("q7", "highest bid", _BIDS, _highest_by_rows, _highest_by_columns, _highest_answer, time="time"),
    _case(
        "q8", "new users", _SALES, _new_users(named_persons, sellers), _new_users(NamedPersonColumns, SellerColumns),
        _new_users_answer, time="time",
    ),
)  # fmt: skip
