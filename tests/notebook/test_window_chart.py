"""The chart of windows: a box per window, a dot per row, the watermark before it."""

from xml.etree import ElementTree

from sparkstorm.notebook.window_chart import window_chart


def test_each_row_has_a_dot_in_its_window_and_late_rows_are_named() -> None:
    picture = window_chart([1_000, 12_000, 3_000, 25_000], {2}, 10_000, 2_000, ["<a>", "b"]).text
    ElementTree.fromstring(picture)
    assert picture.count('r="5"') == 4 + 2, "and two of the legend"
    result = [f"{n * 10} to {n * 10 + 10} s" in picture for n in range(4)]
    assert result == [True, True, True, False]
    assert "<title>&lt;a&gt;</title>" in picture and "<title>3000 ms, late</title>" in picture
    assert 'cx="37.3"' in picture, "1 s of 30 s in 640 points, behind a margin of 16"
    assert 'x="229.3" y="75"' in picture, "the watermark before the third row: 12 s less 2 s"


def test_no_rows_are_one_empty_window() -> None:
    ElementTree.fromstring(window_chart([], (), 10_000, 0).text)
