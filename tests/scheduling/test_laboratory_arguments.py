"""Wrong arguments of the laboratory: each is refused in one sentence."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.extensions.laboratory import (
    Scene,
    Sweep,
    compare,
    costs,
    from_alibaba,
    from_google,
    generate,
    latex,
    moved,
    play,
    predict,
)
from sparkstorm.extensions.laboratory.scene import frame

SCENE = generate(2, 1, 3, 1)
NAME = SCENE.topologies[0].id
SWEEP = Sweep(({"scheduler": "default", "seed": 1, "bytes": 1.0},), ())
CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "text": (Scene.from_text, "text is to be a problem's text, such as .*, not None"),
    "supervisors": (
        lambda value: Scene.from_records(value, [], {}),
        "supervisors is to have a list of SupervisorView, not None",
    ),
    "topologies": (
        lambda value: Scene.from_records([], value, {}),
        "topologies is to have a list of TopologyView, not None",
    ),
    "assignments": (
        lambda value: Scene.from_records([], [], value),
        "assignments is to be a mapping by topology, not None",
    ),
    "compare": (lambda value: compare(value, ["even"]), "scene is to be a Scene, not None"),
    "names": (lambda value: compare(SCENE, value), "schedulers is to have a list of names or"),
    "costs": (costs, "scene is to be a Scene, not None"),
    "predict": (predict, "scene is to be a Scene, not None"),
    "play": (lambda value: play(value, "even", {}, 10), "scene is to be a Scene, not None"),
    "before": (lambda value: moved(value, SCENE), "before is to be a Scene, not None"),
    "after": (lambda value: moved(SCENE, value), "after is to be a Scene, not None"),
    "scheduler": (SCENE.to_text, "scheduler is to be a name, not None"),
    "latex": (latex, "rows is to have a list of mappings by column, not None"),
    "frame": (frame, "rows is to have a list of mappings by column, not None"),
    "digits": (lambda value: latex([], "", value), "digits: expected an integer from 0 to"),
    "values": (SWEEP.summary, "values is to have a list of columns, not None"),
    "by": (lambda value: SWEEP.summary([], value), "by is to have a list of columns, not None"),
    "path": (SWEEP.to_csv, "path is to be a file's path, not None"),
    "machines": (lambda value: from_alibaba(value, []), "machine_meta.csv: lines of text are"),
    "instances": (lambda value: from_google([], value), "instance_events: lines of text are"),
}


@pytest.mark.parametrize("name", CALLS)
def test_none_in_the_place_of_an_argument_is_named(name: str) -> None:
    call, words = CALLS[name]
    with pytest.raises(InvalidConfigError, match=words):
        call(None)


@pytest.mark.parametrize(
    ("call", "value", "words"),
    [
        (lambda it: SCENE.rebalanced(NAME, executors=it), ["a"], r"executors is .*, not \['a'\]"),
        (lambda it: SCENE.rebalanced(NAME, conf=it), ["a"], r"conf: a mapping of .*\['a'\]"),
        (lambda it: Scene.from_records([], [], {}, it), "a", "conf: a mapping of settings .*'a'"),
        (lambda it: Scene.from_records(it, [], {}), ["a"], "supervisors is to have .*, not 'a'"),
        (SCENE.without, ["a"], r"no supervisor \['a'\]"),
        (lambda it: predict(SCENE, it), 5, "network is to be a Network, not 5"),
        (SWEEP.summary, "bytes", "values is to have a list of columns, not 'bytes'"),
        (latex, [1], "rows is to have a list of mappings by column, not 1"),
        (lambda it: latex([], it), 5, "caption is to be a text, not 5"),
    ],
)
def test_a_value_of_another_kind_is_named(
    call: Callable[[Any], object], value: Any, words: str
) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        call(value)


def test_columns_may_be_given_by_an_iterator() -> None:
    assert SWEEP.summary(iter(["bytes"])) == SWEEP.summary(["bytes"])


def test_a_file_of_results_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "rows.csv"):
        with pytest.raises(InvalidConfigError, match=f"{path} cannot be written: "):
            SWEEP.to_csv(path)


def cut(path: Path) -> Path:
    """Write a file that was cut while it was compressed."""
    packed = gzip.compress(b"".join(b"m_%d,0,1,10,96,100\n" % at for at in range(9_999)))
    path.write_bytes(packed[: len(packed) // 2])
    return path


@pytest.mark.parametrize("read", [from_alibaba, from_google])
def test_lines_of_a_trace_that_cannot_be_read_are_named(
    read: Callable[[Any, Any], Scene], tmp_path: Path
) -> None:
    file = "machine_meta.csv" if read is from_alibaba else "machine_events"
    none: tuple[object, ...] = (5, "machine_meta.csv", b"bytes", tmp_path, {})
    for lines in none:
        with pytest.raises(InvalidConfigError, match=f"{file}: lines of text are needed, such as"):
            read(lines, [])
    for line in (None, 5, ["a"]):
        with pytest.raises(InvalidConfigError, match=f"{file}, line 1: a text is needed, not"):
            read([line], [])
    (tmp_path / "binary").write_bytes(b"\xe8\x00\xff" * 9)
    with (
        (tmp_path / "binary").open(encoding="utf-8") as binary,
        pytest.raises(InvalidConfigError, match=f"{file}, line 1: it cannot be read: 'utf-8'"),
    ):
        read(binary, [])
    with pytest.raises(InvalidConfigError, match=f"{file}, line 1: it cannot be read: I/O op"):
        read(binary, [])


def test_a_trace_may_be_read_from_a_compressed_file_unless_it_was_cut(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gz"
    whole.write_bytes(gzip.compress(b"m_1,0,1,10,96,100\n"))
    with gzip.open(whole) as lines:
        assert [node.id for node in from_alibaba(lines, []).supervisors] == ["m_1"]
    for mode in ("rb", "rt"):
        with (
            gzip.open(cut(tmp_path / "cut.gz"), mode) as part,
            pytest.raises(InvalidConfigError, match=r"line \d+: it cannot be read: Compr"),
        ):
            from_alibaba(part, [])
