"""The field's benchmarks in small: live (simulated cluster, two workers), replayed, and the oracle
give the same answers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.field import nexmark, storm_perf, yahoo
from benchmarks.field.__main__ import Rounds, run_all
from benchmarks.field.case import TASKS, Case, Feed, Generator, chunks_of, difference, rows_of
from benchmarks.field.plan import events_of
from benchmarks.field.results import BARE, Measured, Results, cells_of, short_table, table
from benchmarks.field.served import PeerFailedError, Served
from benchmarks.field.systems import (
    CASES,
    System,
    Took,
    Work,
    Works,
    bare_loop,
    storm_names,
)
from sparkstorm.replay import EventTime, replay_locally
from sparkstorm.testing import LocalCluster, complete_topology

SMALL: dict[str, tuple[Case, Generator]] = {
    **{case.name: (case, nexmark.Nexmark(600, per_second=15, chunk=50)) for case in nexmark.CASES},
    "nexmark q2": (
        next(case for case in nexmark.CASES if case.name == "nexmark q2"),
        nexmark.Nexmark(2_400, chunk=100),
    ),
    **{case.name: (case, yahoo.Yahoo(300, per_second=10, chunk=20)) for case in yahoo.CASES},
    storm_perf.ID.name: (storm_perf.ID, storm_perf.constants(300, chunk=20)),
    storm_perf.WORDS.name: (storm_perf.WORDS, storm_perf.sentences(100, chunk=20)),
}
FORMS = [
    pytest.param(*each, by, id=f"{name} by {by}")
    for name, each in SMALL.items()
    for by in ("rows", "columns")
]


@pytest.mark.sampled
@pytest.mark.parametrize(("case", "generator", "by"), FORMS)
def test_live_and_replayed_answers_are_those_of_the_oracle(
    case: Case, generator: Generator, by: str
) -> None:
    rows = rows_of(generator)
    expected = case.answer(rows)
    assert expected, "a benchmark without an answer would compare nothing"
    done = complete_topology(case.topology(generator, by), conf={"topology.workers": TASKS})
    assert difference(case.read(done.state("result")), expected) == ""
    assert not done.dead_letters
    more: dict[str, Any] = {} if case.time is None else {"event_time": EventTime(case.time)}
    replayed = replay_locally(case.topology(generator, by), case.inputs(rows), partitions=3, **more)
    assert difference(case.read(replayed.states["result"]), expected) == ""


def test_bids_that_come_before_their_auction_in_the_same_millisecond_count() -> None:
    crowded = nexmark.Nexmark(1_000, per_second=50_000, chunk=50)  # 50 events a millisecond
    test_live_and_replayed_answers_are_those_of_the_oracle(SMALL["nexmark q4"][0], crowded, "rows")


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_equal_bids_are_all_highest(by: str) -> None:
    case, generator = SMALL["nexmark q7"]
    bids = [
        (1_000 + n, 7, price, "Apple", "url", nexmark.BASE_MS + n, "x")
        for n, price in enumerate((5, 9, 3, 9, 9, 1))
    ]
    done = complete_topology(
        case.topology(generator, by), {"events": {"bid": bids}}, conf={"topology.workers": TASKS}
    )
    assert sorted(row[0] for row in done["top"]) == [1_001, 1_003, 1_004]
    assert difference(case.read(done.state("result")), case.answer({"bid": bids})) == ""


@pytest.mark.parametrize("name", ["nexmark q4", "nexmark q5", "nexmark q7", "nexmark q8", "yahoo"])
def test_the_answer_is_exact_though_a_worker_dies(name: str) -> None:
    case, generator = SMALL[name]
    with LocalCluster(seed=3) as cluster:
        cluster.submit(case.topology(generator, "rows"), {"topology.workers": TASKS})
        cluster.advance(ms=3)
        cluster.kill_worker("result")
        cluster.run_until_idle()
        assert difference(case.read(cluster.state("result")), case.answer(rows_of(generator))) == ""


def test_a_generator_gives_the_same_events_in_any_order_of_chunks() -> None:
    generator = nexmark.Nexmark(170, chunk=50)
    backwards = [generator.part(number)["bid"].rows() for number in reversed(chunks_of(generator))]
    assert [row for rows in reversed(backwards) for row in rows] == rows_of(generator)["bid"]
    assert rows_of(nexmark.Nexmark(170, seed=2, chunk=50)) != rows_of(generator)


def test_a_chunk_of_wanted_streams_has_the_rows_that_the_whole_chunk_has() -> None:
    generator = nexmark.Nexmark(170, chunk=50)
    whole = generator.part(1)
    for wanted, made in ((("auction",), 2), (("bid", "person"), 3), (("person",), 1)):
        some = generator.part(1, wanted)
        assert len(some) == made
        assert [some[name].rows() for name in wanted] == [whole[name].rows() for name in wanted]


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_are_bids() -> None:
    rows = rows_of(nexmark.Nexmark(5_000))
    result = {stream: len(each) for stream, each in rows.items()}
    assert result == {"person": 100, "auction": 300, "bid": 4_600}
    assert [row[0] for row in rows["person"]] == list(range(1_000, 1_100))
    assert [row[0] for row in rows["auction"]] == list(range(1_000, 1_300))
    assert all(row[5] < row[6] for row in rows["auction"])
    known = {row[0] for row in rows["auction"]}
    assert sum(row[0] in known for row in rows["bid"]) > 4_400  # the others are a few ids ahead
    hot = sum((row[0] - nexmark.FIRST_ID) % nexmark.HOT_GROUP == 0 for row in rows["bid"])
    assert 0.48 < hot / 4_600 < 0.56


def test_a_difference_names_the_first_key() -> None:
    assert difference({"a": 1}, {"a": 1}) == ""
    assert difference({"b": 3}, {"a": 1, "b": 2}) == "2 of 2 keys differ; 'a' is None, not 1"


def test_a_position_of_the_spout_is_a_chunk_and_a_place() -> None:
    class Kept:
        def __init__(self) -> None:
            self.rows: list[Any] = []

        def emit(self, values: Any, message_id: Any, stream: str) -> None:
            self.rows.append((stream, values, message_id))

        emit_batch = emit

    class Context:
        task_index = 1
        peers = (3, 4)
        column_streams: frozenset[str] = frozenset()

    def opened() -> tuple[Feed, Kept]:
        spout, kept = Feed(nexmark.Nexmark(170, chunk=50), ("auction", "bid")), Kept()
        spout.open({}, Context(), kept)  # type: ignore[arg-type]
        return spout, kept

    whole, all_rows = opened()
    while not whole.is_exhausted():
        whole.next_tuple()
    assert [id for _, _, id in all_rows.rows] == [*range(51, 100), *range(151, 170)]
    for calls in range(4):
        first, before = opened()
        for _ in range(calls):
            first.next_tuple()
        second, after = opened()
        second.restore(first.snapshot())
        while not second.is_exhausted():
            second.next_tuple()
        assert before.rows + after.rows == all_rows.rows


@pytest.mark.parametrize("name", ["nexmark q0", "yahoo", "word count"])
def test_files_for_peers_have_the_events_in_two_halves_and_as_a_whole(
    name: str, tmp_path: Path
) -> None:
    work = Works(tmp_path).of(name, 12_000)
    stream = "bid" if name.startswith("nexmark") else "text"
    halves = [file.read_text().splitlines() for file in sorted((work.folder / stream).iterdir())]
    whole = next((work.folder / "whole" / stream).iterdir()).read_text().splitlines()
    rows = [",".join(map(str, row)) for row in work.rows[work.case.streams[0]]]
    assert whole == rows
    assert sorted(halves[0] + halves[1]) == sorted(rows)
    assert halves[0][:10] == rows[:10]
    assert (work.folder / "campaign").exists() is (name == "yahoo")


def _runs() -> list[Measured]:
    return [
        Measured("yahoo", BARE, 1, 8_000, 1.0, 1.0),
        Measured("yahoo", BARE, 2, 8_000, 2.0, 2.0),
        Measured("yahoo", "ours", 2, 4_000, 2.0, 3.0, 5.0, 9.0),
        Measured("yahoo", "ours", 1, 4_000, 1.0, 3.2, 6.0, 9.0),
        Measured("yahoo", "ours", 3, 4_000, 8.0, 2.0, 7.0, 9.0),
    ]


def test_the_table_has_medians_ranges_and_the_ratio_to_the_bare_loop_of_the_same_round() -> None:
    lines = table(["yahoo"], [BARE, "ours", "absent"], cells_of(_runs())).splitlines()
    assert lines[2:] == [
        "| yahoo | bare Python loop | 6.00 | 4.00-8.00 | 2 | 1.000 | 187.50 | - | - |",
        "| yahoo | ours | 2.00 | 0.50-4.00 | 3 | 0.500 | 750.00 | 6.0 | 9.0 |",
    ]


def test_the_short_table_has_a_column_for_each_system_that_ran() -> None:
    runs = [*_runs(), Measured("yahoo", "Storm, 2 JVMs", 1, 1, 1.0, 1.0)]
    lines = short_table(
        ["yahoo", "id bolt"], ["absent", BARE, "ours", "Storm, 2 JVMs"], cells_of(runs)
    )
    assert lines.splitlines() == [
        "| k units/s (us CPU a unit) | bare Python loop | ours |",
        "|---|---|---|",
        "| yahoo | 6.00 (187.50) | 2.00 (750.00) |",
        "| id bolt |  |  |",
    ]


def test_results_are_resumed_after_a_cut_line_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "more" / "field.jsonl"
    first = Results(path, is_resumed=False)
    for run in _runs():
        first.add(run)
    with path.open("a") as file:
        file.write('{"case": "yah')
    again = Results(path, is_resumed=True)
    assert again.runs == _runs()
    assert again.has("yahoo", "ours", 3, 0)
    assert not again.has("yahoo", "ours", 4, 0)
    sentence = "round 3 of yahoo, ours has 0 events, not 7: give another"
    with pytest.raises(SystemExit, match=sentence):
        again.has("yahoo", "ours", 3, 7)
    again.add(Measured("yahoo", "ours", 4, 1, 1.0, 1.0))
    assert len(Results(path, is_resumed=True).runs) == len(_runs()) + 1
    assert path.read_text().count('"commit"') == 2
    assert Results(path, is_resumed=False).runs == []
    (kept,) = path.parent.glob("field-*.jsonl")
    assert Results(kept, is_resumed=True).runs[0] == _runs()[0]


def _rounds(folder: Path, *systems: System) -> Rounds:
    results = Results(folder / "field.jsonl", is_resumed=True)
    events = Path(tempfile.mkdtemp(dir=folder))
    return Rounds(Works(events), ["id bolt"], systems, results)


def test_a_wrong_answer_of_any_system_is_no_figure_and_makes_the_command_fail(
    tmp_path: Path,
) -> None:
    wrong = System("Storm", bool, lambda _: Took(1.0, 1.0, {"tuples": 99}))
    rounds = _rounds(tmp_path, wrong, System("right", bool, bare_loop))
    rounds.measure(1, 100)
    said = "wrong answer: 1 of 1 keys differ; 'tuples' is 99, not 100"
    assert rounds.lines == [f"id bolt, Storm: {said}"]
    assert rounds.is_bad
    (kept,) = Results(tmp_path / "field.jsonl", is_resumed=True).runs
    assert kept.system == "right"


@pytest.mark.parametrize("name", ["Storm", "SparkStorm"])
def test_a_system_that_fails_is_left_out_with_a_line(name: str, tmp_path: Path) -> None:
    def fail(_: Work) -> Took:
        raise PeerFailedError("no JVM")

    rounds = _rounds(tmp_path, System(name, bool, fail), System("after", bool, bare_loop))
    rounds.measure(1, 100)
    rounds.measure(2, 100)
    assert rounds.lines == [f"id bolt, {name}: no JVM"]
    assert rounds.is_bad is (name == "SparkStorm")
    assert len(Results(tmp_path / "field.jsonl", is_resumed=True).runs) == 2


def test_a_resumed_round_runs_what_is_missing_in_the_order_of_the_round(tmp_path: Path) -> None:
    ran: list[str] = []

    def noted(name: str) -> System:
        def run(work: Work) -> Took:
            ran.append(name)
            return bare_loop(work)

        return System(name, bool, run)

    _rounds(tmp_path, noted("a")).measure(1, 100)
    rounds = _rounds(tmp_path, noted("a"), noted("b"), noted("c"))
    rounds.measure(1, 100)
    rounds.measure(2, 100)
    assert ran == ["a", "b", "c", "c", "b", "a"]


def test_a_round_that_would_not_fit_into_the_minutes_is_not_begun(tmp_path: Path) -> None:
    def slow(work: Work) -> Took:
        time.sleep(0.1)
        return bare_loop(work)

    rounds = _rounds(tmp_path, System("slow", bool, slow))
    run_all(rounds, Namespace(runs=50, minutes=0.4 / 60, events=100))
    found = Results(tmp_path / "field.jsonl", is_resumed=True).runs
    assert 1 <= len(found) <= 4
    assert rounds.lines == [f"0.00666667 minutes: round {len(found) + 1} was not begun"]


def test_cases_of_one_generator_share_rows_and_files(tmp_path: Path) -> None:
    works = Works(tmp_path)
    first, second = works.of("nexmark q2", 500), works.of("nexmark q7", 500)
    assert first.rows is second.rows
    assert first.folder == second.folder
    assert works.of("nexmark q2", 500) is first
    assert works.of("nexmark q2", 600).folder != first.folder


_SERVED = """
import gc, os, sys
from benchmarks.peers.clock import serve
seen = []
def run(kind, case, folder):
    seen.append(case)
    if case == "dies":
        sys.exit("no memory")
    print("noise")
    return {(kind, folder): len(seen)} if case == "good" else {}[case]
serve(run, gc.collect)
"""


def test_a_peers_process_is_warmed_once_a_case_and_begun_anew_when_it_has_ended() -> None:
    served = Served([sys.executable, "-c", _SERVED])
    try:
        found = [served.run("sql", "good", Path("f")) for _ in range(2)]
        assert [each["answer"] for each in found] == [[[["sql", "f"], 2]], [[["sql", "f"], 3]]]
        assert found[0]["seconds"] >= 0
        with pytest.raises(PeerFailedError, match="KeyError: 'bad'"):
            served.run("sql", "bad", Path("f"))
        with pytest.raises(PeerFailedError, match="ended with 1: no memory"):
            served.run("sql", "dies", Path("f"))
        assert served.run("sql", "good", Path("f"))["answer"] == [[["sql", "f"], 2]]
    finally:
        served.close()


def test_a_peers_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.field.served._PATIENCE_S", 0.2)
    served = Served([sys.executable, "-c", "import time; time.sleep(600)"])
    with pytest.raises(PeerFailedError, match="ended with -9"):
        served.run("sql", "good", Path("f"))


def test_every_case_and_system_has_a_number_of_events() -> None:
    for case in CASES:
        for system in ("SparkStorm, 2 workers, rows", BARE, "Bytewax 0.21.1"):
            assert 10_000 <= events_of(case, system) <= 5_000_000


def test_a_word_chooses_one_way_of_storm_by_its_name() -> None:
    found = [name for name in storm_names([1]) if name.startswith("Storm 2.8.3")]
    assert found == [
        "Storm 2.8.3, tuned, 1 JVM",
        "Storm 2.8.3, tuned, 1 JVM, BaseBasicBolt",
        "Storm 2.8.3, as shipped, 1 JVM",
    ]
