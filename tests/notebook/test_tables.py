"""Tells how tables look: as HTML that nothing in them can break, and as text."""

from sparkstorm.notebook.tables import Table, shown


def test_a_table_is_html_with_its_rows_escaped() -> None:
    html = Table(
        [{"node_id": "<b>n1</b>", "used": 2}, {"node_id": "n2", "share": 0.25}], "nodes & <co>"
    )._repr_html_()
    assert html.count("<tr>") == 3 and "<b>" not in html and "&lt;b&gt;n1" in html
    assert "nodes &amp; &lt;co&gt;" in html
    assert "<th" in html
    assert ">node id<" in html
    assert ">0.25<" in html


def test_a_table_is_text_in_columns() -> None:
    table = Table([{"a": 1, "b": "x"}, {"a": 20, "b": None}], "title")
    assert repr(table) == "title\na   b\n1   x\n20"
    assert len(table) == 2 and table.column("a") == [1, 20] and repr(Table([])) == ""


def test_values_are_shown_briefly() -> None:
    found = [shown(value) for value in (None, True, False, 67000, 1234.5678, 0.5, "text")]
    assert found == ["", "yes", "no", "67000", "1,235", "0.5", "text"]


def test_floats_are_plain_figures_however_large_or_small() -> None:
    values = (
        65536.0,
        0.41666,
        12.5,
        3_200.0,
        1e15,
        -0.25,
        0.0,
        0.00012345,
        1e-7,
        99.96,
        float("inf"),
    )
    found = [shown(value) for value in values]
    plain = [
        "65,536",
        "0.417",
        "12.5",
        "3,200",
        "1,000,000,000,000,000",
        "-0.25",
        "0",
        "0.000123",
        "0.0000001",
        "100",
        "inf",
    ]
    assert found == plain


def test_a_long_table_says_what_it_leaves_out() -> None:
    html = Table([{"n": number} for number in range(250)])._repr_html_()
    assert html.count("<tr>") == 201 and "… and 50 rows more" in html


def test_a_sentence_in_a_cell_is_folded_and_a_short_text_is_not() -> None:
    html = Table([{"name": "words", "health": "words does not run well, " * 3}])._repr_html_()
    name, health = html.split("<td ")[1:]
    assert "white-space:nowrap" in name
    assert "white-space:normal" in health and "nowrap" not in health
