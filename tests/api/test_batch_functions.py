"""`@bolt(batch=)`: functions of a list of tuples, of an Arrow batch, or of a pandas frame."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from sparkstorm.api import InvalidTopologyError, Topology, TopologyBuilder, bolt
from sparkstorm.replay import replay_locally
from sparkstorm.testing import FeederSpout, Shared, complete_topology

ROWS = [[n, f"text {n}"] for n in range(100)]
SCORED = [(n, n * 2.0) for n in range(100)]
sizes: Shared[list[int]] = Shared([])


def topology(made: Any) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("texts", FeederSpout({"id": "bigint", "text": "string"}))
    builder.set_bolt("score", made, inputs="texts")
    return builder.build()


@bolt({"id": "bigint", "score": "double"}, batch=16)
def of_tuples(batch: Any) -> Any:
    sizes.value.append(len(batch))
    for tup in batch:
        if tup["text"] == "bad":
            raise ValueError("no score")
        yield tup["id"], tup["id"] * 2.0


@bolt({"id": "bigint", "score": "double"}, batch=16, frame="arrow")
def of_arrow(batch: Any) -> Any:
    assert batch.num_rows <= 16
    scores = pa.array([n * 2.0 for n in batch["id"].to_pylist()])
    yield pa.table({"score": scores, "unused": batch["text"], "id": batch["id"]})


@bolt({"id": "bigint", "score": "double"}, batch=16, frame="pandas")
def of_pandas(frame: Any) -> Any:
    assert len(frame) <= 16
    yield frame.assign(score=frame["id"] * 2.0)


@pytest.mark.parametrize("made", [of_tuples, of_arrow, of_pandas])
def test_batches_are_scored_live_and_replayed(made: Any) -> None:
    if made is of_pandas:
        pytest.importorskip("pandas")
    completed = complete_topology(topology(made), {"texts": ROWS})
    assert completed["score"] == SCORED
    assert replay_locally(topology(made), {"texts": ROWS})["score"] == SCORED


def test_frames_of_a_pandas_that_is_not_there_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidTopologyError, match='frame="pandas" needs pandas on the hosts'):
        complete_topology(topology(of_pandas), {"texts": ROWS})


def test_no_batch_has_more_tuples_than_asked_for() -> None:
    sizes.value.clear()
    complete_topology(topology(of_tuples), {"texts": ROWS})
    assert max(sizes.value) == 16
    assert sum(sizes.value) == 100


@bolt({"id": "bigint", "score": "double"}, batch=None, capacity=None, timeout=None)
def one_by_one(tup: Any) -> Any:
    yield tup["id"], tup["id"] * 2.0


def test_an_option_that_is_none_is_not_given() -> None:
    assert complete_topology(topology(one_by_one), {"texts": ROWS})["score"] == SCORED


def test_a_faulty_row_fails_alone() -> None:
    rows = [*ROWS[:50], [1000, "bad"], *ROWS[50:]]
    completed = complete_topology(topology(of_tuples), {"texts": rows})
    assert sorted(completed["score"]) == SCORED
    assert [letter.values for letter in completed.dead_letters] == [(1000, "bad")]


@bolt("id", "score", batch=16, frame="arrow")
def without_score(batch: Any) -> Any:
    yield batch


@bolt("id", "score", batch=16, frame="arrow")
def no_frame(batch: Any) -> Any:
    yield [1, 2]


@bolt({"id": "bigint", "score": "bigint"}, batch=16, frame="arrow")
def of_text(batch: Any) -> Any:
    yield pa.record_batch({"id": batch.column("id"), "score": batch.column("text")})


@bolt({"id": "bigint", "score": "bigint"}, batch=16, frame="arrow")
def of_floats(batch: Any) -> Any:
    score = [None if n == 0 else float(n) for n in batch.column("id").to_pylist()]
    yield pa.table({"id": batch.column("id"), "score": score})


@bolt({"id": "bigint", "score": "bigint"}, batch=16, frame="arrow")
def of_halves(batch: Any) -> Any:
    yield pa.table({"id": batch.column("id"), "score": [0.5] * batch.num_rows})


@bolt({"id": "bigint", "score": "tinyint"}, batch=16, frame="arrow")
def of_bytes(batch: Any) -> Any:
    yield pa.table({"id": batch.column("id"), "score": [300] * batch.num_rows})


def test_floats_of_a_frame_are_the_whole_numbers_that_are_declared() -> None:
    done = complete_topology(topology(of_floats), {"texts": ROWS[:3]})["score"]
    assert repr(sorted(done)) == "[(0, None), (1, 1), (2, 2)]"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (of_text, "component 'score', stream 'default', field 'score': 'text 0' is no bigint"),
        (of_halves, "component 'score', stream 'default', field 'score': 0.5 is no bigint"),
        (of_bytes, "component 'score', stream 'default', field 'score': 300 is no tinyint"),
        (without_score, "yields a frame without the field 'score'; it has id, text"),
        (no_frame, "yields [1, 2]; yield a RecordBatch or Table"),
    ],
)
def test_a_wrong_frame_fails_its_rows_with_what_to_yield(made: Any, words: str) -> None:
    (letter,) = complete_topology(topology(made), {"texts": ROWS[:1]}).dead_letters
    assert words in letter.failure.text


@bolt({"id": "bigint", "text": "string"}, batch=16, frame="pandas")
def in_pandas(frame: Any) -> Any:
    yield frame.assign(text=[str(value + 0) for value in frame["id"]])


@bolt({"id": "bigint", "text": "string"}, batch=1, frame="pandas")
def one_in_pandas(frame: Any) -> Any:
    yield frame.assign(text=str(frame["id"].dtype))


@pytest.mark.parametrize("kind", ["double", "bigint"])
def test_a_frame_has_the_types_that_its_input_declares(kind: str) -> None:
    pytest.importorskip("pandas")
    builder = TopologyBuilder()
    builder.set_spout("texts", FeederSpout({"id": kind, "text": "string"}))
    builder.set_bolt("score", one_in_pandas, inputs="texts")
    rows: list[list[Any]] = [[None, "a"], [1, "a"]]
    dtypes = [(None, "float64"), (1, "float64" if kind == "double" else "int64")]
    assert complete_topology(builder.build(), {"texts": rows})["score"] == dtypes
    assert replay_locally(builder.build(), {"texts": rows})["score"] == dtypes


def test_whole_numbers_next_to_none_are_exact_in_pandas() -> None:
    pytest.importorskip("pandas")
    rows: list[list[Any]] = [[2**53 + 1, None], [None, None], [-(2**63), None]]
    few: list[list[Any]] = [[None, None], [3, None]]
    for some, nothing in ((rows, "<NA>"), (few, "nan")):
        done = complete_topology(topology(in_pandas), {"texts": some})["score"]
        assert {number for number, _ in done} == {number for number, _ in some}
        assert (None, nothing) in done


@bolt("id", "text", batch=16, frame="pandas")
def a_column(frame: Any) -> Any:
    yield frame["text"]


def test_a_column_of_pandas_is_no_frame() -> None:
    pytest.importorskip("pandas")
    (letter,) = complete_topology(topology(a_column), {"texts": ROWS[:1]}).dead_letters
    assert "yield a pandas.DataFrame" in letter.failure.text


@bolt("id", "text", batch=16, frame="pandas")
def shown(frame: Any) -> Any:
    yield frame.assign(text=[repr(value) for value in frame["text"]])


@pytest.mark.parametrize("value", [2**70, UUID(int=1), {1, 2}, {1: 2}, [1, "a"], Decimal("NaN")])
def test_values_that_arrow_has_no_type_for_are_themselves_in_pandas(value: Any) -> None:
    pytest.importorskip("pandas")
    builder = TopologyBuilder()
    builder.set_spout("texts", FeederSpout(["id", "text"]))
    builder.set_bolt("score", shown, inputs="texts")
    rows = [[1, value], [2, None], [3, value]]
    done = complete_topology(builder.build(), {"texts": rows})
    assert sorted(done["score"]) == [(1, repr(value)), (2, "None"), (3, repr(value))]


@bolt("n", batch=0)
def without_rows(batch: Any) -> Any:
    yield 1


@bolt("n", batch=2, frame="polars")  # type: ignore[call-overload, untyped-decorator]
def of_polars(batch: Any) -> Any:
    yield 1


@bolt("n", frame="arrow")
def without_batch(tup: Any) -> Any:
    yield 1


@bolt("n", batch=2)
def with_state(batch: Any, state: Any) -> Any:
    yield 1


@bolt("n", batch=2, blocking=True)
def with_thread(batch: Any) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (without_rows, "batch is 0; write a whole number of at least 1"),
        (of_polars, "frame is 'polars'; it is 'rows', 'arrow' or 'pandas'"),
        (without_batch, "takes one tuple, so 'frame' has no meaning; give batch, or drop it"),
        (with_state, "takes batches, which have no state, its second parameter; drop batch"),
        (with_thread, "takes batches, which have no thread; drop batch"),
    ],
)
def test_what_cannot_run_is_refused_with_its_remedy(made: Any, words: str) -> None:
    with pytest.raises(InvalidTopologyError) as raised:
        topology(made)
    assert words in str(raised.value)
