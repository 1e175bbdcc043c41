"""streamparse's classes: a project runs after a change of its imports."""

# ruff: noqa: RUF012  (streamparse projects declare their outputs so)

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidTopologyError
from sparkstorm.streamparse import (
    BatchingBolt,
    Bolt,
    Grouping,
    ReliableSpout,
    Spout,
    Stream,
    TicklessBatchingBolt,
    Topology,
)
from sparkstorm.testing import LocalCluster, Shared, complete_topology


class WordSpout(Spout):
    outputs = ["word"]

    def initialize(self, stormconf: Any, context: Any) -> None:
        self.words = itertools.cycle(stormconf["own.words"])
        self.left = 6

    def next_tuple(self) -> None:
        if self.left:
            self.left -= 1
            self.emit([next(self.words)], tup_id=self.left)

    def is_exhausted(self) -> bool:
        return not self.left


class WordCountBolt(Bolt):
    outputs = ["word", "count"]

    def initialize(self, storm_conf: Any, context: Any) -> None:
        assert (
            context["task->component"][str(context["taskid"])]
            == self.component_name
            == "count_bolt"
        )
        self.counts: Counter[str] = Counter()

    def process(self, tup: Any) -> None:
        (word,) = tup.values
        self.counts[word] += 1
        self.log(f"{word} {self.counts[word]}")
        self.emit([word, self.counts[word]])


class WordCount(Topology):
    word_spout = WordSpout.spec()
    count_bolt = WordCountBolt.spec(
        inputs={word_spout: Grouping.fields("word")}, par={"prod": 4, "beta": 2}
    )
    config = {"own.words": ["dog", "cat"]}


def test_the_word_count_of_the_quickstart_runs() -> None:
    topology = WordCount()
    assert topology.components["count_bolt"].parallelism == 2  # type: ignore[attr-defined]
    done = complete_topology(topology)  # type: ignore[arg-type]
    result = Counter(done["count_bolt"])
    assert result == Counter((word, n) for word in ("dog", "cat") for n in (1, 2, 3))


class Sorting(Bolt):
    outputs = [Stream(fields=["n"], name="odd"), Stream(fields=["n"])]

    def process(self, tup: Any) -> None:
        if tup.values[0] < 0:
            raise ValueError("negative")
        self.emit(tup.values, stream="odd" if tup.values[0] % 2 else None)


class Numbers(Spout):
    outputs = ["n"]


class Seen(Bolt):
    outputs = ["n"]

    def process(self, tup: Any) -> None:
        self.emit(tup.values)


class Sorted(Topology):
    numbers = Numbers.spec()
    sorting = Sorting.spec(inputs=[numbers])
    odd = Seen.spec(name="odd-ones", inputs=[sorting["odd"]])
    even = Seen.spec(inputs={sorting: Grouping.GLOBAL})


def test_streams_names_and_groupings_lead_where_the_class_says() -> None:
    done = complete_topology(
        Sorted(),  # type: ignore[arg-type]
        {"numbers": [[n] for n in (1, 2, 3, -1)]},
        conf={"topology.max.retries": 0},
    )
    assert sorted(done["odd-ones"]) == [(1,), (3,)] and done["even"] == [(2,)]
    assert ["ValueError: negative" in letter.failure.text for letter in done.dead_letters] == [True]
    assert len(done.acked["numbers"]) == 3


class Named(Bolt):
    outputs = ["n", "of"]
    auto_ack = False

    def process(self, tup: Any) -> None:
        first, second = tup.values
        assert (tup.values.word, tup.values._1) == (first, second) == (tup["word"], tup["class"])
        self.emit([tup.values.word, list(tup.values)], anchors=[tup])
        if first == "bad":
            self.fail(tup)
        else:
            self.ack(tup)


class Words(Spout):
    outputs = ["word", "class"]


class ByName(Topology):
    words = Words.spec()
    named = Named.spec(inputs=[words])


def test_values_are_read_by_name_and_a_failed_tuple_keeps_plain_ones() -> None:
    done = complete_topology(
        ByName(),  # type: ignore[arg-type]
        {"words": [["dog", 1], ["bad", 2]]},
        conf={"topology.max.retries": 0},
    )
    assert done["named"] == [("dog", ["dog", 1])] and len(done.acked["words"]) == 1
    (letter,) = done.dead_letters
    assert type(letter.values) is tuple and letter.values == ("bad", 2)


class Batches(BatchingBolt):
    outputs = ["key", "sum"]
    ticks_between_batches = 2

    def group_key(self, tup: Any) -> Any:
        return tup.values[0] % 2

    def process_batch(self, key: Any, tups: list[Any]) -> None:
        self.emit([key, sum(tup.values.n for tup in tups)])


class Tickless(TicklessBatchingBolt):
    outputs = ["n"]
    secs_between_batches = 0.5

    def process_batch(self, key: Any, tups: list[Any]) -> None:
        assert key is None
        if len(tups) == 4:
            raise ValueError("too many")
        self.emit([len(tups)])


class Batched(Topology):
    numbers = Numbers.spec()
    batches = Batches.spec(inputs=[numbers])
    tickless = Tickless.spec(inputs=[numbers])


def test_batches_are_processed_at_ticks_and_acked_or_failed_whole() -> None:
    topology = Batched()
    assert topology.components["tickless"].conf == {"topology.tick.tuple.freq.secs": 0.5}  # type: ignore[attr-defined]
    done = complete_topology(topology, {"numbers": [[1], [2], [3]]})  # type: ignore[arg-type]
    assert sorted(done["batches"]) == [(0, 2), (1, 4)] and done["tickless"] == [(3,)]
    assert len(done.acked["numbers"]) == 3
    done = complete_topology(
        topology,  # type: ignore[arg-type]
        {"numbers": [[1], [2], [3], [4]]},
        conf={"topology.max.retries": 0},
    )
    assert len(done.dead_letters) == 4
    assert "its batch failed: ValueError: too many" in done.dead_letters[0].failure.text


FAILS: Shared[list[Any]] = Shared([])


class Again(ReliableSpout):
    outputs = ["n"]
    max_fails = 2

    def initialize(self, stormconf: Any, context: Any) -> None:
        self.is_sent = False

    def next_tuple(self) -> None:
        if not self.is_sent:
            self.is_sent = True
            self.emit([7], tup_id="seven")


class Refusing(Bolt):
    auto_ack = False

    def process(self, tup: Any) -> None:
        FAILS.value.append(tup.values)
        self.fail(tup)


class Retried(Topology):
    again = Again.spec()
    refusing = Refusing.spec(inputs=again)


def test_a_reliable_spout_emits_a_failed_tuple_again_up_to_its_limit() -> None:
    FAILS.value.clear()
    with LocalCluster() as cluster:
        cluster.submit(Retried(), {"topology.delivery.guarantee": "at-least-once"})  # type: ignore[arg-type]
        cluster.run_until(lambda: len(FAILS.value) == 3)
        cluster.advance(10)
    assert len(FAILS.value) == 3


def test_what_only_java_has_and_what_no_emit_knows_is_refused() -> None:
    with pytest.raises(InvalidTopologyError, match="names a Java class"):
        Grouping.custom_object("org.example.Grouping", [])
    with pytest.raises(NotImplementedError, match="chosen at the commit"):
        Seen().emit([1], need_task_ids=True)

    class Wrong(Topology):
        seen = Seen.spec(inputs="words")

    with pytest.raises(InvalidTopologyError, match="component 'seen': inputs is 'words'"):
        Wrong()
