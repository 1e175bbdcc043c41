"""LookupBolt: batches, cache, order, failures, metrics, replays by a snapshot, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkstorm.api import Duration, InvalidTopologyError, Topology, TopologyBuilder, key_range
from sparkstorm.common.errors import InvalidConfigError, ReplayFailedError, WorkerFailedError
from sparkstorm.replay import replay_locally
from sparkstorm.streams import LookupBolt, stream
from sparkstorm.testing import (
    CaptureBolt,
    FeederSpout,
    Shared,
    complete_topology,
)
from tests.tiers import examples
from tests.topologies import running

FIELDS = {"user": "string", "n": "bigint"}
COUNTRIES = {"ann": "NL", "bob": "BE", "eve": "FR"}


class Asked:
    """A function that looks countries up and notes what it was asked for."""

    def __init__(self, failing: Sequence[int] = (), bad: Sequence[str] = ()) -> None:
        self.calls: Shared[list[list[Any]]] = Shared([])
        self.countries: Shared[dict[Any, Any]] = Shared(dict(COUNTRIES))
        self._failing = failing
        self._bad = bad

    def __call__(self, keys: Sequence[Any]) -> dict[Any, Any]:
        self.calls.value.append(list(keys))
        if len(self.calls.value) in self._failing:
            raise ConnectionError("away")
        known = self.countries.value
        answers = {key: known[key] for key in keys if key in known}
        return answers | {key: ValueError("no user") for key in keys if key in self._bad}


def located(fetch: Any, **options: Any) -> LookupBolt:
    options = {"key": "user", "keep": FIELDS, "add": {"country": "string"}, **options}
    return LookupBolt(fetch, **options)


def topology(bolt: LookupBolt, capture: CaptureBolt | None = None, tasks: int = 1) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("users", FeederSpout(FIELDS))
    builder.set_bolt("country", bolt, tasks, inputs="users")
    if capture is not None:
        builder.set_bolt("capture", capture, inputs="country")
    return builder.build()


def expected(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    return [(*row, COUNTRIES.get(row[0])) for row in rows]


ROWS = st.lists(
    st.tuples(st.sampled_from(["ann", "bob", "eve", "zoe", None]), st.integers(0, 9)), max_size=30
)


@given(ROWS, st.integers(1, 8), st.integers(1, 4))
@settings(max_examples=examples(40), derandomize=True, deadline=None)
def test_rows_keep_their_order_and_get_their_values_live_and_replayed(
    rows: Any, batch: int, size: int
) -> None:
    made = topology(located(Asked(), batch=batch, size=size, snapshot=COUNTRIES))
    feed = [list(row) for row in rows]
    assert complete_topology(made, {"users": feed})["country"] == expected(rows)
    for partitions in (1, 3):
        replayed = replay_locally(made, {"users": feed}, partitions=partitions)
        assert replayed["country"] == expected(rows)
        # what a live run looks up depends on when
        assert {warning.cause for warning in replayed.warnings} == {"wall clock"}


def test_the_keys_of_a_turn_are_fetched_in_one_call_and_known_ones_in_none() -> None:
    asked = Asked()
    rows = [[user, n] for n, user in enumerate(["ann", "bob", "ann", "zoe"] * 5)]
    capture = CaptureBolt()
    spout = FeederSpout(FIELDS)
    builder = TopologyBuilder()
    builder.set_spout("users", spout)
    builder.set_bolt("country", located(asked), inputs="users")
    builder.set_bolt("capture", capture, inputs="country")
    with running(builder.build()) as cluster:
        for row in rows:
            spout.feed(row)
        cluster.run_until_idle()
        # the thread may take the first rows before the others are there
        calls = [key for call in asked.calls.value for key in call]
        assert sorted(calls) == ["ann", "bob", "zoe"]
        cluster.advance(ms=59_000)
        spout.feed(["ann", 100])
        spout.feed([None, 101])
        cluster.run_until_idle()
        assert len(calls) == sum(map(len, asked.calls.value))
        cluster.advance(ms=2_000)
        asked.countries.value["zoe"] = "ES"
        spout.feed(["zoe", 102])
        cluster.run_until_idle()
        assert len(calls) + 1 == sum(map(len, asked.calls.value))
        counted = cluster.metrics("country")
        assert counted["lookup_missing"].value == 6
        assert counted["lookup_calls"].value == len(asked.calls.value)
    assert capture.values[-1] == ("zoe", 102, "ES")
    assert [row[:2] for row in capture.values[:20]] == [tuple(row) for row in rows]


def test_a_stale_value_is_used_and_fetched_again_behind_the_rows() -> None:
    asked = Asked()
    capture, spout, builder = CaptureBolt(), FeederSpout(FIELDS), TopologyBuilder()
    builder.set_spout("users", spout)
    bolt = located(asked, expire=Duration.seconds(60), refresh=Duration.seconds(10))
    builder.set_bolt("country", bolt, inputs="users")
    builder.set_bolt("capture", capture, inputs="country")
    with running(builder.build()) as cluster:
        for number, wait_ms in enumerate((0, 11_000, 1_000)):
            cluster.advance(ms=wait_ms)
            spout.feed(["ann", number])
            cluster.run_until_idle()
            asked.countries.value["ann"] = "US"
    assert [row[2] for row in capture.values] == ["NL", "NL", "US"]
    assert asked.calls.value == [["ann"], ["ann"]]


def test_the_keys_that_were_used_last_are_kept() -> None:
    asked, spout, builder = Asked(), FeederSpout(FIELDS), TopologyBuilder()
    builder.set_spout("users", spout)
    builder.set_bolt("country", located(asked, size=2), inputs="users")
    with running(builder.build()) as cluster:
        for number, user in enumerate(["ann", "bob", "ann", "eve", "ann", "bob"]):
            spout.feed([user, number])
            cluster.run_until_idle()
    assert asked.calls.value == [["ann"], ["bob"], ["eve"], ["bob"]]


def test_a_system_in_trouble_is_not_asked_for_each_stale_value() -> None:
    asked, spout, builder = Asked(failing=[2]), FeederSpout(FIELDS), TopologyBuilder()
    builder.set_spout("users", spout)
    builder.set_bolt("country", located(asked, refresh=Duration(100)), inputs="users")
    with running(builder.build()) as cluster:
        for number in range(20):
            spout.feed(["ann", number])
            cluster.run_until_idle()
            cluster.advance(ms=120)
        # the second call fails; the third is a second later, and then one for each
        assert 10 <= len(asked.calls.value) <= 14
        assert cluster.dead_letters == []


def test_a_failed_call_fails_its_inputs_alone_and_they_are_tried_again() -> None:
    asked = Asked(failing=(1, 2))
    rows = [["ann", 1], ["bob", 2]]
    done = complete_topology(topology(located(asked)), {"users": rows})
    assert sorted(done["country"]) == expected(rows)
    assert done.dead_letters == [] and done.failed["users"] == []


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
def test_a_call_that_ends_or_is_cancelled_fails_its_inputs(error: type[BaseException]) -> None:
    def fetch(keys: Sequence[Any]) -> Any:
        raise error("away")

    spout, builder = FeederSpout(FIELDS), TopologyBuilder()
    builder.set_spout("users", spout)
    builder.set_bolt("country", located(fetch), inputs="users")
    with running(builder.build(), {"topology.max.retries": 0}) as cluster:
        spout.feed(["ann", 1])
        cluster.run_until(lambda: bool(cluster.dead_letters), 5)
        (letter,) = cluster.dead_letters
        assert letter.failure.text == f"{error.__name__}: away"


class Source:
    """A source that raises some errors one after the other, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors: Shared[list[Exception]] = Shared(list(errors))

    def open(self, fields: Any, context: Any) -> None:
        pass

    def fetch(self, keys: Sequence[Any]) -> Any:
        if self.errors.value:
            raise self.errors.value.pop(0)
        return {key: COUNTRIES[key] for key in keys}

    def close(self) -> None:
        pass


def test_a_source_that_is_away_is_waited_for_and_parks_nothing() -> None:
    away = Source(ConnectionError("away"), TimeoutError("away"))
    conf = {"topology.max.retries": 0}
    done = complete_topology(topology(located(away)), {"users": [["ann", 1]]}, conf=conf)
    assert done["country"] == [("ann", 1, "NL")]
    assert done.dead_letters == []


def test_a_source_may_be_away_for_more_tries_than_a_float_has_powers_of_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparkstorm.streams.lookup._LONGEST_PAUSE_S", 0.0)
    away = Source(*[ConnectionError("away")] * 1100)
    conf = {"topology.max.retries": 0, "topology.sink.patience.secs": 86_400}
    done = complete_topology(topology(located(away)), {"users": [["ann", 1]]}, conf=conf)
    assert done["country"] == [("ann", 1, "NL")]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            ConnectionError("away"),
            r"component 'country' waits for its look-up: away; given up after 0 s "
            r"\(topology.sink.patience.secs\)",
        ),
        (InvalidConfigError("no table users"), "component 'country': no table users"),
    ],
)
def test_a_source_that_stays_away_or_refuses_ends_the_worker(
    error: Exception, sentence: str
) -> None:
    conf = {"topology.sink.patience.secs": 0}
    with pytest.raises(WorkerFailedError, match=sentence):
        complete_topology(topology(located(Source(error))), {"users": [["ann", 1]]}, conf=conf)


def test_a_value_that_is_an_error_parks_the_inputs_of_its_key_alone() -> None:
    asked = Asked(bad=["mallory"])
    rows = [[user, n] for n, user in enumerate(["ann", "mallory", "bob"])]
    done = complete_topology(
        topology(located(asked)), {"users": rows}, conf={"topology.max.retries": 1}
    )
    assert sorted(done["country"]) == expected([rows[0], rows[2]])
    assert [letter.failure.text for letter in done.dead_letters] == ["ValueError: no user"]


def test_calls_and_keys_that_fail_are_counted() -> None:
    spout, builder = FeederSpout(FIELDS), TopologyBuilder()
    builder.set_spout("users", spout)
    builder.set_bolt("country", located(Asked(bad=["mallory"], failing=[1])), inputs="users")
    with running(builder.build(), {"topology.max.retries": 2}) as cluster:
        spout.feed(["mallory", 1])
        cluster.run_until(lambda: bool(cluster.dead_letters))
        counted = cluster.metrics("country")
        assert (counted["lookup_calls"].value, counted["lookup_errors"].value) == (3, 3)


def test_a_value_that_a_grouping_refuses_parks_its_own_input_alone() -> None:
    builder, capture = TopologyBuilder(), CaptureBolt()
    builder.set_spout("users", FeederSpout(FIELDS))
    ages: dict[str, Any] = {"ann": 30, "bob": "old", "eve": 7}
    bolt = located(lambda keys: {key: ages[key] for key in keys}, add=["age"])
    builder.set_bolt("age", bolt, inputs="users")
    builder.set_bolt("capture", capture, inputs={"age": key_range("age", [10])})
    rows = [[user, n] for n, user in enumerate(ages)]
    done = complete_topology(builder.build(), {"users": rows}, conf={"topology.max.retries": 1})
    assert sorted(done["age"]) == [("ann", 0, 30), ("eve", 2, 7)]
    assert [letter.values for letter in done.dead_letters] == [("bob", 1)]


def test_missing_keys_may_be_dropped_and_keys_may_have_several_fields() -> None:
    def fetch(keys: Sequence[Any]) -> dict[Any, Any]:
        return {key: {"square": key[1] ** 2, "name": key[0].upper()} for key in keys if key[1] % 2}

    bolt = LookupBolt(fetch, ["user", "n"], keep=["n"], add=["name", "square"], kind="inner")
    done = complete_topology(topology(bolt), {"users": [["ann", 3], ["ann", 4], ["bob", 5]]})
    assert done["country"] == [(3, "ANN", 9), (5, "BOB", 25)]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (["NL"], "the look-up's fetch returned ['NL']; return a mapping of keys to values"),
        ({"ann": ("NL", 1)}, "the look-up has found ('NL', 1); wanted are country, as a mapping"),
    ],
)
def test_an_answer_of_a_wrong_form_is_named_in_the_dead_letter(answer: Any, sentence: str) -> None:
    done = complete_topology(
        topology(located(lambda keys: answer)),
        {"users": [["ann", 1]]},
        conf={"topology.max.retries": 0},
    )
    assert sentence in done.dead_letters[0].failure.text


@pytest.mark.parametrize("at_ms", range(0, 40, 8))
def test_no_row_is_lost_or_doubled_when_workers_die(at_ms: int) -> None:
    rows = [[["ann", "bob", "zoe"][n % 3], n] for n in range(60)]
    capture, spout, builder = CaptureBolt(), FeederSpout(FIELDS), TopologyBuilder()
    builder.set_spout("users", spout)
    builder.set_bolt("country", located(Asked(failing=(2, 5))), 2, inputs="users")
    builder.set_bolt("capture", capture, inputs="country")
    with running(builder.build(), {"topology.workers": 3}, seed=at_ms) as cluster:
        for row in rows:
            spout.feed(row)
        cluster.advance(ms=at_ms)
        cluster.kill_worker("country")
        cluster.run_until_idle()
    assert Counter(capture.values) == Counter(expected(rows))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_snapshot_may_be_a_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"users.{kind}"
    rows = [{"user": user, "country": country} for user, country in COUNTRIES.items()]
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for conf, name in (({}, str(path)), ({"topology.files": [str(path)]}, path.name)):
        made = topology(located(Asked(), snapshot=name))
        done = replay_locally(made, {"users": [["ann", 1], ["zoe", 2]]}, conf=conf)
        assert done["country"] == [("ann", 1, "NL"), ("zoe", 2, None)]


def test_a_key_of_none_has_no_value_live_or_in_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "users.jsonl"
    path.write_text('{"user": null, "country": "XX"}\n{"user": "ann", "country": "NL"}\n')
    whole = {None: "XX", "ann": "NL"}
    made = topology(located(lambda keys: whole, snapshot=str(path)))
    rows: dict[str, list[list[Any]]] = {"users": [[None, 1], ["ann", 2]]}
    wanted = [(None, 1, None), ("ann", 2, "NL")]
    assert complete_topology(made, rows)["country"] == wanted
    assert replay_locally(made, rows)["country"] == wanted


def test_a_replay_without_a_snapshot_is_refused_unless_it_is_told_to_look_up() -> None:
    asked = Asked()
    rows = {"users": [["ann", 1], ["ann", 2]]}
    with pytest.raises(ReplayFailedError, match="a replay cannot look up what was there then"):
        replay_locally(topology(located(asked)), rows)
    assert asked.calls.value == []
    done = replay_locally(topology(located(asked, snapshot="now")), rows)
    assert done["country"] == expected(rows["users"])
    assert asked.calls.value == [["ann"]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"usr": "ann", "country": "NL"}', "'user', which is no field of 'users.jsonl': did you"),
        ("{", "cannot be read: JSONDecodeError"),
        ("[1]", "cannot be read: ValueError: a row is [1], no object with fields"),
        ('{"user": [1], "country": "NL"}', "ValueError: key field 'user' holds a list"),
        (None, "cannot be read: FileNotFoundError"),
    ],
)
def test_a_bad_snapshot_is_refused_in_a_sentence(
    text: str | None, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "users.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ReplayFailedError) as error:
        replay_locally(topology(located(Asked(), snapshot=str(path))), {"users": [["ann", 1]]})
    assert sentence in str(error.value)


def users() -> Any:
    return stream(FeederSpout(FIELDS), name="users")


def test_a_chain_keeps_all_fields() -> None:
    made = users().look_up(Asked(), key="user", add=["country"], name="country", parallelism=2)
    rows = [["ann", 1], ["zoe", 2]]
    done = complete_topology(made.build(), {"users": rows})
    assert sorted(done["country"]) == expected(rows)
    made = users().key_by("user").look_up(Asked(), add=["country"], parallelism=2)
    topology_of_keys = made.build()
    assert topology_of_keys.components["look_up"].inputs[0].grouping.fields == ("user",)
    done = complete_topology(topology_of_keys, {"users": rows})
    assert sorted(done["look_up"]) == expected(rows)


WRONG: dict[str, tuple[Any, str]] = {
    "no function": (
        lambda: located("users"),
        "fetch is 'users'; give a function (keys) -> mapping, or a source such as SqlLookup(...)",
    ),
    "a class": (lambda: located(Asked), "test_lookup.Asked'>; give a function (keys) -> mapping"),
    "half a source": (
        lambda: located(SimpleNamespace(fetch=dict)),
        "give a function (keys) -> mapping, or a source such as SqlLookup(...)",
    ),
    "a key twice in a chain": (
        lambda: users().key_by("user").look_up(Asked(), key="user", add=["country"]),
        "component 'look_up': a look-up has its key of key_by and keeps all fields; drop key",
    ),
    "fields to keep in a chain": (
        lambda: users().look_up(Asked(), key="user", add=["country"], keep=["user"]),
        "keeps all fields; drop keep",
    ),
    "nothing to add": (lambda: located(Asked(), add=[]), "add names no field"),
    "no key": (lambda: located(Asked(), key=[]), "key names no field"),
    "a text for fields": (
        lambda: located(Asked(), keep="user"),
        "keep is 'user'; write a list of field names, or types by name",
    ),
    "a field twice": (
        lambda: located(Asked(), add=["n"]),
        "the field 'n' is kept and added; drop it from keep",
    ),
    "a number for a duration": (
        lambda: located(Asked(), expire=60),
        "expire is 60; write a Duration of 1 ms or more",
    ),
    "a refresh after the end": (
        lambda: located(Asked(), refresh=Duration.hours(1)),
        "refresh is 3600000 ms, after values have expired (60000 ms); make it shorter",
    ),
    "no room": (lambda: located(Asked(), size=0), "size is 0; write a whole number of at least 1"),
    "a number for a key": (
        lambda: located(Asked(), key=5),
        "LookupBolt: key is 5; write a name, or a list of names",
    ),
    "a number for a snapshot": (
        lambda: located(Asked(), snapshot=5),
        'snapshot is 5; write a mapping by key, the path of a file, or "now"',
    ),
    "a kind that it has not": (
        lambda: located(Asked(), kind="outer"),
        "LookupBolt has no kind 'outer'; it has inner",
    ),
    "an unknown key": (
        lambda: topology(located(Asked(), key="usr")),
        "component 'country' reads the field 'usr', which stream 'default' of 'users' does not have",
    ),
    "an unknown key in a chain": (
        lambda: users().look_up(Asked(), key="usr", add=["country"]),
        "component 'look_up': the key has 'usr', which is no field of 'users': did you mean 'user'?",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_look_up_is_refused_in_a_sentence(case: str) -> None:
    make, sentence = WRONG[case]
    with pytest.raises(InvalidTopologyError) as error:
        make()
    assert sentence in str(error.value)
