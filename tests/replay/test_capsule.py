"""Failure capsules: a failed input of a run becomes a file, a step, and a test that fails, is
fixed, and passes.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sparkstorm.api import BasicOutputCollector, StatefulBolt, TopologyBuilder, Tuple, fields
from sparkstorm.cli import main
from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError, RecordingError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import Failure, FailureKind
from sparkstorm.common.model.topology import Topology
from sparkstorm.extensions.recording.capsule_files import ENDING, write_capsule
from sparkstorm.extensions.recording.capsule_tests import text_of_test
from sparkstorm.replay import open_capsule
from sparkstorm.testing import FeederSpout, LocalCluster
from tests.topologies import feed, ran, running
from tests.worker.building import chain

SOURCE = """
from sparkstorm.api import TopologyBuilder, bolt
from sparkstorm.testing import FeederSpout

feeder = FeederSpout(["word", "weight"])

@bolt("word", "mean", key="word")
def mean(tup, state):
    count, total = state.get(tup["word"], [0, 0])
    limit = 10 // (total - 5)
    state.put(tup["word"], [count + 1, total + tup["weight"]])
    yield tup["word"], limit

def build(spouts=1):
    builder = TopologyBuilder()
    builder.set_spout("words", feeder, spouts)
    builder.set_bolt("mean", mean, inputs="words", parallelism=2)
    return builder.build()
"""


@pytest.fixture
def averages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of a user's, in its own folder, with a bolt that divides by zero when a word
    weighs five.
    """
    (tmp_path / "averages.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("averages")
    sys.modules.pop("averages")


def failed_letter(averages: ModuleType, **more: Any) -> DeadLetter:
    """Run the topology over words until one is parked."""
    conf = {
        "topology.max.retries": 1,
        "topology.builder": "averages:build",
        "topology.builder.arguments": {"spouts": 1},
        **more,
    }
    with running(averages.build(), conf) as cluster:
        for word, weight in (("storm", 3), ("spark", 9), ("storm", 2), ("spark", 1), ("storm", 1)):
            averages.feeder.feed([word, weight])
        cluster.run_until_idle()
        (letter,) = cluster.dead_letters
    return letter


def run_pytest(test: Path) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(test.parent), root])}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(test.parent),
        str(test),
    ]
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        cwd=test.parent,
    )


@pytest.mark.slow
def test_a_failed_tuple_of_a_run_becomes_a_test_that_fails_is_mended_and_passes(
    averages: ModuleType, tmp_path: Path
) -> None:
    letters = tmp_path / "dead-letters.jsonl"
    letters.write_text(failed_letter(averages).to_line("7-0") + "\n")
    capsule = tmp_path / f"mean{ENDING}"
    assert main(["capsule", str(letters), "7-0", "--to", str(capsule), "--pytest", *BUILT]) == 0
    test = tmp_path / "test_mean.py"
    before = run_pytest(test)
    assert before.returncode == 1
    assert (
        "ZeroDivisionError: integer division or modulo by zero (averages.py, line 10)"
        in before.stdout
    )
    (tmp_path / "averages.py").write_text(
        SOURCE.replace("10 // (total - 5)", "10 // max(1, total - 5)")
    )
    after = run_pytest(test)
    assert after.returncode == 0, after.stdout
    assert main(["capsule", str(capsule), "--pytest", *BUILT]) == 1, (
        "a test that may have been changed is not written over"
    )
    assert main(["capsule", str(capsule), "--pytest", "--force", *BUILT]) == 0


@pytest.mark.slow
@pytest.mark.nightly
def test_a_tuple_that_killed_its_worker_becomes_a_test_that_outlives_it(
    averages: ModuleType, tmp_path: Path
) -> None:
    letter = failed_letter(averages)
    killing = replace(letter, failure=replace(letter.failure, kind=FailureKind.KILLED))
    capsule, test = tmp_path / f"mean{ENDING}", tmp_path / "test_mean.py"
    write_capsule(capsule, killing)
    (tmp_path / "averages.py").write_text(
        SOURCE.replace("limit = 10 // (total - 5)", "import os; os._exit(7)")
    )
    assert main(["capsule", str(capsule), "--pytest", *BUILT]) == 0
    before = run_pytest(test)
    assert before.returncode == 1, before.stdout
    assert "the process of the input ended with status 7" in before.stdout
    (tmp_path / "averages.py").write_text(SOURCE.replace("10 // (total - 5)", "0"))
    after = run_pytest(test)
    assert after.returncode == 0, after.stdout


def test_a_capsule_has_the_state_the_settings_and_the_place_of_the_run(
    averages: ModuleType, tmp_path: Path
) -> None:
    secret = {"topology.environment": {"PASSWORD": "secret"}, "app.token": "secret"}
    letter = failed_letter(averages, **secret)
    write_capsule(tmp_path / "one.capsule.json", letter)
    assert (tmp_path / "one.capsule.json").stat().st_mode & 0o777 == 0o600
    assert "secret" not in (tmp_path / "one.capsule.json").read_text()
    capsule = open_capsule(tmp_path / "one.capsule.json")
    assert capsule.letter == letter
    assert dict(letter.state or ())["storm"] == [2, 5] and letter.conf["topology.max.retries"] == 1
    step = capsule.step(averages.build())
    assert step.failure is not None and step.failure.text == letter.reason
    assert step.state == dict(letter.state or ()), "what a failed call did is undone"
    assert capsule.step(averages.build(), state={}).failure is None


def test_a_trace_has_the_lines_of_user_code_and_what_they_changed(
    averages: ModuleType, tmp_path: Path
) -> None:
    write_capsule(tmp_path / "one.capsule.json", failed_letter(averages))
    lines = open_capsule(tmp_path / "one.capsule.json").trace(averages.build())
    assert [line.source.strip()[:5] for line in lines] == ["count", "limit"]
    assert lines[1].changed == {"count": "2", "total": "5"}
    assert str(lines[1]) == "averages.py:10      limit = 10 // (total - 5)    # count=2, total=5"


class Reads(StatefulBolt):
    """Reads a key that no grouping names, and fails on it."""

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if tup[0] >= 0:
            self.state.put(tup[0], tup[0])
        elif "none" not in self.state:
            raise ValueError(self.state.get(17) + self.state[18])


def parked_by_reads(tmp_path: Path, conf: dict[str, Any]) -> DeadLetter:
    spout = FeederSpout()
    with running(
        chain(spout, Reads(), group=lambda d: d.fields_grouping("spout", "value")), conf
    ) as cluster:
        feed(spout, range(500))
        spout.feed([-1])
        cluster.run_until_idle()
        (letter,) = cluster.dead_letters
    return letter


def test_of_a_large_state_a_capsule_has_the_keys_that_the_last_try_used(tmp_path: Path) -> None:
    assert parked_by_reads(tmp_path, {"topology.max.retries": 2}).state == ((17, 17), (18, 18))
    assert parked_by_reads(tmp_path, {"topology.max.retries": 0}).state == (), (
        "no second try: the keys of its grouping"
    )


class ByValue(StatefulBolt):
    """Puts whole numbers, and fails on every other value."""

    key_fields = ("value",)

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        if not isinstance(tup[0], int):
            raise ValueError("no number")
        self.state.put(tup[0], tup[0])


@pytest.mark.parametrize("backend", ["memory", "lazy"])
def test_of_a_large_state_a_capsule_leaves_out_what_no_key_can_be(backend: str) -> None:
    spout = FeederSpout()
    with ran(
        chain(spout, ByValue()),
        spout,
        (*range(150), {1, 2}, float("nan"), [1], "text"),
        {"topology.max.retries": 1, "topology.state.backend": backend},
    ) as cluster:
        assert [letter.state for letter in cluster.dead_letters] == [()] * 4


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once", "at-most-once"])
def test_any_failed_tuple_becomes_a_capsule_where_it_is_asked_for(
    guarantee: str, averages: ModuleType, tmp_path: Path
) -> None:
    with LocalCluster() as cluster:
        conf = {
            "topology.failure.capsules": 2,
            "topology.record.directory": str(tmp_path),
            "topology.delivery.guarantee": guarantee,
        }
        cluster.submit(averages.build(), conf)
        for _ in range(9):
            averages.feeder.feed(["storm", 5])
        cluster.run_until_idle()
    files = list((tmp_path / "capsules").rglob(f"*{ENDING}"))
    assert len(files) == 2, "the first two of one cause"
    for file in files:
        step = open_capsule(file).step(averages.build())
        assert step.failure is not None and "ZeroDivisionError" in step.failure.text


BUILT = ("--topology", "averages:build")
FAILURE = Failure(FailureKind.RAISED, "ValueError: no (x.py, line 1)", "bolt", 2)
LETTER = DeadLetter(FAILURE, "spout", 1, "default", ("value",), (1,), 4, state=((("a", 1), 2),))


def written(folder: Path, **changes: Any) -> Path:
    write_capsule(folder / "one.capsule.json", replace(LETTER, **changes))
    return folder / "one.capsule.json"


def spoilt(folder: Path, text: str) -> Path:
    path = folder / "one.capsule.json"
    path.write_text(text)
    return path


def changed(folder: Path, **changes: Any) -> Path:
    record = LETTER.as_record() | changes
    return spoilt(folder, json.dumps({"kind": "sparkstorm capsule", "format": 1, "letter": record}))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda f: f / "none", "cannot be read as a capsule"),
        (lambda f: f, "cannot be read as a capsule"),
        (lambda f: spoilt(f, ""), "cannot be read as a capsule"),
        (lambda f: spoilt(f, "[" * 100_000), "cannot be read as a capsule"),
        (lambda f: spoilt(f, "7"), "is no capsule"),
        (lambda f: spoilt(f, '{"kind": "sparkstorm checkpoint"}'), "is no capsule"),
        (
            lambda f: spoilt(f, '{"kind": "sparkstorm capsule", "format": 2, "letter": {}}'),
            "this version reads format 1",
        ),
        (
            lambda f: spoilt(
                f, '{"kind": "sparkstorm capsule", "format": 1, "letter": {}, "x": 1}'
            ),
            "this version reads",
        ),
        (
            lambda f: spoilt(f, '{"kind": "sparkstorm capsule", "format": 1, "letter": 7}'),
            "no record of ours",
        ),
        (lambda f: changed(f, values=7), "its values are no list"),
        (lambda f: changed(f, values=[1, 2]), "values are not those of its fields"),
        (lambda f: changed(f, state=[[1]]), "no record of ours"),
        (lambda f: changed(f, state=[[{}, 1]]), "is no key of a state"),
        (lambda f: changed(f, attempts="many"), "of another type"),
        (lambda f: changed(f, conf=[]), "no mapping by key"),
        (lambda f: changed(f, failure={"kind": "raised"}), "no record of ours: 'text'"),
        (
            lambda f: changed(f, failure=LETTER.as_record()["failure"] | {"kind": "x" * 9000}),
            "no record of ours: 'x{80,300}$",
        ),
        (lambda f: changed(f, more=1), "no record of ours"),
    ],
)
def test_what_is_no_capsule_is_named_in_one_sentence(
    make: Any, sentence: str, tmp_path: Path, capsys: Any
) -> None:
    path = make(tmp_path)
    with pytest.raises(RecordingError, match=sentence):
        open_capsule(path)
    assert main(["capsule", str(path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        ({}, "give --topology MODULE:FUNCTION"),
        ({"topology.builder": "nothing"}, "not of the form module:function"),
        ({"topology.builder": 'os:x"; import os'}, "not of the form"),
        (
            {"topology.builder": "a:b", "topology.builder.arguments": {"x y": 1}},
            "no arguments by name",
        ),
        (
            {"topology.builder": "a:b", "topology.builder.arguments": {"x": b"1"}},
            "what no job file can",
        ),
    ],
)
def test_no_test_is_written_from_what_a_stranger_may_have_put_in(
    conf: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    letter = open_capsule(written(tmp_path)).letter
    with pytest.raises((InvalidConfigError, RecordingError), match=sentence):
        text_of_test(tmp_path / "one.capsule.json", letter, tmp_path / "test_one.py", conf)


def test_hostile_texts_of_a_capsule_stay_comments_of_the_test(tmp_path: Path) -> None:
    nasty = 'x"""\n\rimport os\nos.abort()\n"""'
    failure = replace(
        FAILURE, text=nasty, component=nasty, code_version=nasty, worker=nasty, host=nasty
    )
    capsule = open_capsule(written(tmp_path, failure=failure))
    text = text_of_test(
        capsule.path, capsule.letter, tmp_path / "test_one.py", {"topology.builder": "a:b"}
    )
    code = compile(text, "test", "exec")
    assert "abort" not in str([code.co_names, code.co_consts]).replace("_os_abort", "")


HOSTILE = {
    "topology.builder": "os:system",
    "topology.builder.arguments": {"command": "true"},
    "topology.serializers": ["imported_by_a_letter:Point"],
}


@pytest.mark.parametrize("verb", ["capsule", "letter"])
def test_a_letter_never_names_the_code_that_its_test_imports(
    verb: str, tmp_path: Path, capsys: Any
) -> None:
    capsule = written(tmp_path, conf=HOSTILE)
    letters = tmp_path / "dead-letters.jsonl"
    letters.write_text(replace(LETTER, conf=HOSTILE).to_line("7-0") + "\n")
    source = [str(capsule)] if verb == "capsule" else [str(letters), "7-0", "--to", str(capsule)]
    test = tmp_path / "test_hostile.py"
    assert main(["capsule", *source, "--pytest", str(test)]) == 1
    assert "give --topology" in capsys.readouterr().err and not test.exists()
    assert main(["capsule", *source, "--pytest", str(test), "--topology", "a:b"]) == 0
    assert not re.search("os|system|command|Point", test.read_text().partition("def test")[2])


def test_a_test_takes_builder_arguments_and_classes_from_a_job_file(tmp_path: Path) -> None:
    job, test = tmp_path / "job.yaml", tmp_path / "test_one.py"
    job.write_text(
        "topology: averages:build\narguments: {spouts: 2}\ntopology.serializers: ['values:Point']\n"
    )
    capsule = str(written(tmp_path, conf=HOSTILE))
    assert main(["capsule", capsule, "--pytest", str(test), "--topology", str(job)]) == 0
    call = "step(build(**{'spouts': 2}), conf={'topology.serializers': ['values:Point']})"
    assert call in test.read_text() and "from averages import build" in test.read_text()


def test_a_step_imports_no_class_that_a_capsule_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_by_a_letter.py").write_text(
        "import dataclasses, pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    capsule = open_capsule(written(tmp_path, conf=HOSTILE))
    capsule.step(topology())
    capsule.trace(topology())
    assert not (tmp_path / "ran").exists()
    capsule.step(topology(), conf={"topology.serializers": HOSTILE["topology.serializers"]})
    assert (tmp_path / "ran").exists(), "the caller may name it"


def topology() -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("spout", FeederSpout())
    builder.set_bolt("bolt", Reads(), inputs={"spout": fields("value")})
    return builder.build()


def test_a_topology_that_has_lost_the_bolt_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidTopologyError, match="there is no bolt 'gone', only bolt"):
        open_capsule(written(tmp_path, failure=replace(FAILURE, component="gone"))).step(topology())
