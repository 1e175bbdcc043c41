"""Checks texts for a terminal: folded tables, colours, pages in place, groups of verbs, lines of
rates.
"""

from __future__ import annotations

import io
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.cli.__main__ import main, parser
from sparkstorm.cli.monitor import CountsAt, look, rates, rates_text, titles_text
from sparkstorm.cli.terminal import coloured, escape_unknown, page, show, table
from tests.insight.watched import watched


class Terminal(io.StringIO):
    """A stdout that is a terminal."""

    def isatty(self) -> bool:
        return True


ROWS = [("words", 12_000, "word counts of every line that was read"), ("b", 7, "short")]


def test_a_table_without_a_width_has_a_line_for_each_row() -> None:
    assert table(("name", "count", "about"), ROWS).splitlines() == [
        "name    count  about",
        "words  12,000  word counts of every line that was read",
        "b           7  short",
    ]


def test_texts_are_folded_in_their_column() -> None:
    assert table(("name", "count", "about"), ROWS, 36).splitlines() == [
        "name    count  about",
        "words  12,000  word counts of every",
        "               line that was read",
        "b           7  short",
    ]


@given(
    st.lists(
        st.tuples(st.text("ab ", max_size=60), st.integers(0, 10**6), st.text("xy-", max_size=60)),
        max_size=5,
    ),
    st.integers(24, 120),
)
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(
    rows: list[tuple[str, int, str]], width: int
) -> None:
    found = table(("one", "number", "two"), rows, width)
    assert max(map(len, found.splitlines())) <= width
    for letter in "abxy":
        titles = "number" * (len(rows) if "number: " in found else 1)
        assert found.count(letter) == "".join(str(cell) for row in rows for cell in row).count(
            letter
        ) + titles.count(letter)


def test_columns_that_find_no_room_go_below_their_row() -> None:
    titles = ("task", "sent", "host", "why", "size")
    rows = [
        ("split#1", 1_000, "node-1", "it was in a call of its own for a while", 7),
        ("count#22", 2, "node-2:6700", "-", 8),
    ]
    assert table(titles, rows, 34).splitlines() == [
        "task       sent  host         size",
        "split#1   1,000  node-1          7",
        "  why: it was in a call of its own",
        "    for a while",
        "count#22      2  node-2:6700     8",
    ]
    assert table(titles, rows, 16).splitlines()[-4:] == [
        "count#22      2",
        "  host:",
        "    node-2:6700",
        "  size: 8",
    ]


def test_states_are_coloured_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "node-1:6700  DEAD  not RUNNING-like"
    for terminal, variables, is_coloured in (
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ):
        monkeypatch.delenv("NO_COLOR", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdout", terminal)
        show(line)
        assert terminal.getvalue() == f"{coloured(line) if is_coloured else line}\n"
    assert coloured(line) == "node-1:6700  \x1b[31mDEAD\x1b[0m  not RUNNING-like"


FOLDED = [
    # text, columns, lines
    ("short", 20, ["short"]),
    ("words does not run well", 12, ["words does", "  not run", "  well"]),
    ("    in a traceback of a user", 16, ["    in a", "      traceback", "      of a user"]),
    ("one\n\nthree is longer", 11, ["one", "", "three is", "  longer"]),
    ("worker node-1:6700: it died", 14, ["worker", "  node-1:6700:", "  it died"]),
    ("/tmp/of/jobs/here.py is gone", 12, ["/tmp/of/", "  jobs/here.", "  py is gone"]),
    ("x" * 25, 10, ["x" * 10, "  " + "x" * 8, "  " + "x" * 7]),
    ("", 10, [""]),
]


@pytest.mark.parametrize(("text", "width", "lines"), FOLDED)
def test_a_long_line_goes_on_below_its_beginning_on_a_terminal_alone(
    text: str, width: int, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for stream, found in ((Terminal(), "\n".join(lines)), (io.StringIO(), text)):
        monkeypatch.setattr(sys, "stderr", stream)
        show(text, sys.stderr)
        assert stream.getvalue() == f"{found}\n"


@pytest.mark.parametrize(
    ("cell", "lines"),
    [
        ("break_the_numbers_up#3", ["break_the_", "numbers_up#3"]),
        ("node-2.example:6700", ["node-2.", "example:6700"]),
        ("two words of it", ["two words of", "it"]),
        ("nothingtobreakthereat", ["nothingtobre", "akthereat"]),
    ],
)
def test_a_name_is_broken_between_its_parts(cell: str, lines: list[str]) -> None:
    result = table(("name", "n"), [(cell, 1)], 15).splitlines()[1:]
    assert result == [f"{lines[0]:12}  1", *lines[1:]]


@pytest.mark.parametrize("width", [80, 120, None])
def test_every_line_of_rates_fits_the_terminal(width: int | None) -> None:
    rates = dict.fromkeys(("emitted", "executed", "acked", "failed"), 1234567.0)
    record = {"time_ms": 0, **rates, "pending": 999_999, "p50_ms": 12_345, "p99_ms": 123_456}
    lines = [titles_text(width), rates_text(record, width)]
    assert all(len(line) <= (width or 101) for line in lines)
    assert [len(line.split()) for line in lines] == [10, 8]
    assert rates_text(record, width).split()[1:6] == [*["1,234,567"] * 4, "999,999"]


def test_a_page_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with page():
        print("one")
        print("two")
        assert terminal.getvalue() == ""
    assert terminal.getvalue() == "\x1b[H\x1b[2J\x1b[3Jone\ntwo\n"


def test_a_page_without_a_terminal_is_written_below_the_one_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(2):
        with page():
            print("one")
    assert capsys.readouterr().out == "one\none\n"


def test_the_help_has_every_verb_once_under_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    verbs = [
        line.split()[0]
        for line in lines
        if line.startswith("  ") and line[2] != " " and not line.startswith("  -")
    ]
    known = next(action.choices for action in parser()._actions if action.metavar == "VERB")
    assert known is not None
    assert verbs[0] == "VERB" and sorted(verbs[1:]) == sorted(known)
    result = [line for line in lines if line.endswith(":") and line[0] != " "][2:]
    assert result == ["run:", "look:", "change:", "repair:", "without a cluster:"]


def test_rates_are_those_between_two_looks() -> None:
    before = CountsAt(
        1_000, {"emitted": 10, "executed": 5, "acked": 4, "failed": 0, "pending": 1}, {8: 100}
    )
    now = CountsAt(
        3_000,
        {"emitted": 2_010, "executed": 5, "acked": 3, "failed": 2, "pending": 7},
        {8: 100, 40: 9, 48: 1},
    )
    record = rates(before, now)
    assert record == {
        "time_ms": 3_000,
        "emitted": 1_000.0,
        "executed": 0.0,
        "acked": 0.0,  # a count that went back is another run's
        "failed": 1.0,
        "pending": 7,
        "p50_ms": pytest.approx(2 ** (41 / 8) - 1),
        "p99_ms": pytest.approx(2 ** (49 / 8) - 1),
    }
    assert rates_text(record).split()[1:] == ["1,000", "0", "0", "1", "7", "34", "69"]


def test_an_interval_without_trees_has_no_latency() -> None:
    look = CountsAt(
        1_000, dict.fromkeys(("emitted", "executed", "acked", "failed", "pending"), 0), {8: 100}
    )
    assert rates(look, look)["p50_ms"] is None
    result = rates_text(rates(look, look)).split()[-2:]
    assert result == ["-", "-"]


def test_a_look_has_the_counts_of_the_read_model() -> None:
    with watched() as run:
        run.feed(10)
        view = run.sampler.topology("words")
    whole, count = look(view, None), look(view, "count")
    assert (whole.counts["emitted"], whole.counts["executed"], whole.counts["acked"]) == (
        30,
        30,
        10,
    ), "acked are trees"
    assert (count.counts["executed"], count.counts["acked"]) == (20, 20)
    assert sum(whole.buckets.values()) == sum(count.buckets.values()) == 10


def test_characters_that_the_terminal_lacks_are_escaped_as_in_json() -> None:
    words = "größe → 🌩 \ud800"
    bytes_ = io.BytesIO()
    stream = io.TextIOWrapper(bytes_, encoding="ascii")
    escape_unknown(stream)
    print(json.dumps(words, ensure_ascii=False), file=stream, flush=True)
    assert bytes_.getvalue().isascii() and json.loads(bytes_.getvalue()) == words
