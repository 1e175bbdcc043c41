"""The Yahoo streaming benchmark (github.com/yahoo/streaming-benchmarks): views of ads per campaign
and 10 seconds.

100 campaigns of 10 ads; an event is a JSON text of about 250 bytes. deserialize -> filter ->
projection -> join -> count, as the original's topology. The join looks into a table in memory
instead of Redis, and the counts are windows of event time. Hops before the windows are local where
the original shuffles: shuffled rows of two sources would be out of order, and late, by chance.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from benchmarks.field.case import RESULT, Answer, Case, Part, Pool, Row, Rows, counted
from sparkstorm.api import (
    BasicBolt,
    BasicOutputCollector,
    BatchCollector,
    ColumnBolt,
    Duration,
    FoldingBolt,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    Window,
    bolt,
)
from sparkstorm.common.model.tuples import Source

CAMPAIGNS = 100
ADS_EACH = 10
USERS = 100
WINDOW_MS = 10_000
BASE_MS = 1_700_000_000_000
TYPES = ("banner", "modal", "sponsored-search", "mail", "mobile")
KINDS = ("view", "click", "purchase")
FIELDS = ("user_id", "page_id", "ad_id", "ad_type", "event_type", "event_time", "ip_address")


@dataclass(frozen=True, slots=True)
class Yahoo:
    """Generator of so many events in the order of their time, as JSON texts."""

    events: int
    seed: int = 1
    per_second: int = 10_000
    chunk: int = 5_000
    streams: ClassVar[Mapping[str, Sequence[str]]] = {"ad": ("line",)}

    def part(self, number: int, wanted: Sequence[str] = ()) -> Mapping[str, Part]:
        """Return a chunk's rows by stream."""
        first = number * self.chunk
        offsets = np.arange(min(self.chunk, self.events - first))
        random = np.random.default_rng([self.seed, number])
        pools = _pools(self.seed)
        pieces: list[Any] = []
        for field in FIELDS[:5]:
            pieces += [
                f'"{field}": "',
                pools[field].array.take(
                    pa.array(random.integers(0, len(pools[field].objects), len(offsets)))
                ),
                '", ',
            ]
        times = pa.array(BASE_MS + (first + offsets) * 1000 // self.per_second).cast(pa.string())
        line = pc.binary_join_element_wise(
            "{", *pieces, '"event_time": "', times, '", "ip_address": "1.2.3.4"}', ""
        )
        return {"ad": Part(offsets, [line])}


def campaign_by_ad(seed: int) -> dict[str, str]:
    """Return the campaign of each ad."""
    pools = _pools(seed)
    campaigns = pools["campaign"].objects.tolist()
    ads = pools["ad_id"].objects.tolist()
    return {ad: campaigns[index // ADS_EACH] for index, ad in enumerate(ads)}


@functools.cache
def _pools(seed: int) -> Mapping[str, Pool]:
    random = Random(seed)

    def ids(count: int) -> Pool:
        return Pool([str(UUID(int=random.getrandbits(128), version=4)) for _ in range(count)])

    names = {
        "campaign": CAMPAIGNS,
        "ad_id": CAMPAIGNS * ADS_EACH,
        "user_id": USERS,
        "page_id": USERS,
    }
    return {name: ids(count) for name, count in names.items()} | {
        "ad_type": Pool(TYPES),
        "event_type": Pool(KINDS),
    }


@bolt(*FIELDS)
def deserialize(tup: Tuple) -> Any:
    """Parse a text."""
    event = json.loads(tup.values[0])
    yield tuple([event[field] for field in FIELDS])


@bolt(*FIELDS)
def views(tup: Tuple) -> Any:
    """Keep views."""
    if tup.values[4] == "view":
        yield tup.values


@bolt("ad_id", "time")
def projection(tup: Tuple) -> Any:
    """Keep the ad and the time."""
    values = tup.values
    yield values[2], int(values[5])


class JoinCampaign(BasicBolt):
    """The campaign of an ad; `n` is the number of views."""

    outputs = ("campaign", "time", "n")

    def __init__(self, seed: int = 1) -> None:
        self._seed = seed

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Read the table."""
        self._campaigns = campaign_by_ad(self._seed)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Look an ad up."""
        ad, time = tup.values
        collector.emit((self._campaigns[ad], time, 1))


class DeserializeColumns(ColumnBolt):
    """The texts of a batch as columns."""

    outputs = FIELDS

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Parse them at once."""
        lines = "\n".join(batch.column(0).to_pylist()).encode()
        schema = pa.schema([(field, pa.string()) for field in FIELDS])
        parsed = pyarrow.json.read_json(
            io.BytesIO(lines),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            pyarrow.json.ParseOptions(explicit_schema=schema),
        )
        for parsed_batch in parsed.select(list(FIELDS)).to_batches():
            collector.emit_batch(parsed_batch)


class ViewColumns(ColumnBolt):
    """Views of a batch."""

    outputs = FIELDS

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Filter."""
        collector.emit_batch(batch.filter(pc.equal(batch["event_type"], "view")))


class ProjectionColumns(ColumnBolt):
    """Ads and times of a batch."""

    outputs = ("ad_id", "time")

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Choose columns."""
        columns = [batch["ad_id"], batch["event_time"].cast(pa.int64())]
        collector.emit_batch(pa.RecordBatch.from_arrays(columns, list(self.outputs)))


class JoinCampaignColumns(ColumnBolt):
    """Views of a batch by campaign and window; a count has the time at which its window begins."""

    outputs = ("campaign", "time", "n")

    def __init__(self, seed: int = 1) -> None:
        self._seed = seed

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        """Read the table."""
        table = campaign_by_ad(self._seed)
        self._ads, self._campaigns = pa.array(list(table)), pa.array(list(table.values()))

    def execute_batch(
        self, batch: pa.RecordBatch, source: Source, collector: BatchCollector
    ) -> None:
        """Look ads up, count, and emit in the order of time."""
        if not batch.num_rows:
            return
        campaign = self._campaigns.take(pc.index_in(batch["ad_id"], value_set=self._ads))
        window = pc.multiply(pc.divide(batch["time"], WINDOW_MS), WINDOW_MS)
        table = pa.table([campaign, window], ["campaign", "time"]).group_by(["campaign", "time"])
        counts = table.aggregate([([], "count_all")]).sort_by("time").combine_chunks()
        columns = [counts[name].combine_chunks() for name in ("campaign", "time", "count_all")]
        collector.emit_batch(pa.RecordBatch.from_arrays(columns, list(self.outputs)))


class Views(FoldingBolt):
    """Number of views per campaign and window."""

    outputs = ("campaign", "views", "last_ms")
    key_fields = ("campaign",)

    def initial(self) -> Any:
        """No view."""
        return 0

    def fold(self, accumulator: Any, tup: Tuple) -> Any:
        """Add views."""
        return accumulator + tup["n"]

    def execute(self, window: Window, collector: BasicOutputCollector) -> None:
        """Give the number."""
        collector.emit((window.key[0], window.value, window.last_ms))


def _chain(builder: TopologyBuilder, tasks: int, parts: Sequence[Any], stream: str = "ad") -> None:
    before = "events"
    for name, part in zip(("deserialize", "filter", "projection", "join"), parts, strict=True):
        builder.set_bolt(
            name, part() if isinstance(part, type) else part, tasks
        ).local_or_shuffle_grouping(before, stream)
        before = name
        stream = "default"
    views = (
        Views()
        .with_tumbling_window(Duration.millis(WINDOW_MS))
        .with_timestamp_field("time")
        .with_lag(Duration.seconds(4))
    )
    builder.set_bolt("count", views, tasks).fields_grouping("join", "campaign")
    builder.set_bolt(RESULT, Rows()).global_grouping("count")


def by_rows(builder: TopologyBuilder, tasks: int, stream: str = "ad") -> None:
    """Add the bolts behind a spout `events` of texts."""
    _chain(builder, tasks, (deserialize, views, projection, JoinCampaign), stream)


def by_columns(builder: TopologyBuilder, tasks: int, stream: str = "ad") -> None:
    """Add the bolts of columns behind a spout `events` of texts."""
    _chain(
        builder,
        tasks,
        (DeserializeColumns, ViewColumns, ProjectionColumns, JoinCampaignColumns),
        stream,
    )


def answer(rows: Mapping[str, Sequence[Row]], seed: int = 1) -> Answer:
    """Return the exact counts of all windows."""
    campaigns = campaign_by_ad(seed)
    counts: dict[tuple[str, int], int] = {}
    for (line,) in rows["ad"]:
        event = json.loads(line)
        if event["event_type"] == "view":
            key = (campaigns[event["ad_id"]], int(event["event_time"]) // WINDOW_MS)
            counts[key] = counts.get(key, 0) + 1
    return counted(
        [(campaign, n, (window + 1) * WINDOW_MS - 1) for (campaign, window), n in counts.items()]
    )


# The replay sorts by a field of the spout's stream, and here the time is within the text:
# partitions in their order serve
CASES = (Case("yahoo", "views of ads per campaign and 10 s", ("ad",), by_rows, by_columns, answer),)
