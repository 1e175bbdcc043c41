"""Any bytes, any JSON and any mutation of a good problem have one answer each: never a traceback,
none lost.
"""

import copy
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkstorm.cli import main
from sparkstorm.extensions.laboratory.form.solve import answer_to
from tests.conformance.test_problem_form import parts_of
from tests.tiers import examples

WORKED = Path(__file__).parents[2] / "benchmarks" / "conformance" / "worked"
PROBLEMS = [json.loads(path.read_text()) for path in sorted(WORKED.glob("*.problem.json"))]
HUGE = "9" * 5_000
NUMBERS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1",
    "-1e300",
    "70000",
    "9" * 20,
    HUGE,
    f"-{HUGE}",
    f"{HUGE}.5e-9",
)
TEXTS = (
    "",
    "x",
    HUGE,
    "-1",
    "٣",
    "\ud800",
    "a\u0000b",
    "{",
    "[" * 300,
    '{"componentToNum": Infinity}',
    "not JSON",
)
LITERALS = (
    *NUMBERS,
    *(json.dumps(each) for each in TEXTS),
    "null",
    "true",
    "[]",
    "{}",
    "[[]]",
    "[" * 200 + "]" * 200,
)
LITERALS += ('{"a":' * 120 + "1" + "}" * 120, json.dumps({HUGE: 1}), json.dumps({HUGE: "in"}))
LAX = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def checked(text: str | bytes) -> dict[str, Any]:
    """The answer, which says why where the problem was malformed, and never that our code
    failed.
    """
    line, well_formed = answer_to(text)
    assert "\n" not in line
    answer: dict[str, Any] = json.loads(line)
    assert well_formed == ("error" not in answer)
    if not well_formed:
        assert list(answer) == ["error"]
        assert not answer["error"].startswith("the scheduler failed"), answer
        assert 0 < len(answer["error"]) < 1_500
    return answer


@given(st.binary(max_size=200))
@LAX
def test_any_bytes_have_an_answer(text: bytes) -> None:
    checked(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values)
@LAX
def test_any_json_has_an_answer(value: Any) -> None:
    checked(json.dumps(value))
    if isinstance(value, dict):
        for problem in (
            PROBLEMS[0],
            next(each for each in PROBLEMS if each["scheduler"] == "jstorm"),
        ):
            checked(json.dumps({**problem, **value}))


MARK = "\u2301mark\u2301"


@given(st.data())
@settings(LAX, max_examples=examples(150))
def test_any_mutation_of_a_good_problem_has_an_answer(data: st.DataObject) -> None:
    """One to three parts become an odd literal, another part of the problem, or nothing."""
    problem = copy.deepcopy(data.draw(st.sampled_from(PROBLEMS)))
    literals: list[str] = []
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(parts_of(problem)))
        inner = problem
        for key in path[:-1]:
            inner = inner[key]
        kind = data.draw(st.sampled_from(("literal", "literal", "other", "drop", "key")))
        if kind == "drop":
            del inner[path[-1]]
        elif kind == "other":
            inner[path[-1]] = copy.deepcopy(
                inner[path[-1]] if not isinstance(inner, list) else inner[0]
            )
        elif kind == "key" and isinstance(inner, dict):
            inner[data.draw(st.sampled_from(TEXTS))] = inner.pop(path[-1])
        else:
            inner[path[-1]] = f"{MARK}{len(literals)}"
            literals.append(data.draw(st.sampled_from(LITERALS)))
    text = json.dumps(problem)
    for at, literal in enumerate(literals):
        text = text.replace(json.dumps(f"{MARK}{at}"), literal)
    checked(text)


DEFINED = ("port", "mem", "cpu", "componentToNum", "hostName", "nodeId", "jvm")


@pytest.mark.parametrize("literal", LITERALS, ids=range(len(LITERALS)))
@pytest.mark.parametrize("name", DEFINED)
@pytest.mark.parametrize("as_text", [True, False])
def test_any_literal_in_a_user_defined_worker_has_an_answer(
    name: str, literal: str, as_text: bool
) -> None:
    problem = copy.deepcopy(next(each for each in PROBLEMS if each["scheduler"] == "jstorm"))
    worker = '{"componentToNum": {"split": 1}, "port": 0, ' + f'"{name}": {literal}' + "}"
    problem["conf"]["use.userdefine.assignment"] = [worker if as_text else MARK]
    checked(json.dumps(problem).replace(json.dumps(MARK), worker))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            '"port": -1',
            "use.userdefine.assignment[0].port: expected an integer from 0 to 65535, got -1",
        ),
        (
            '"port": "70000"',
            "use.userdefine.assignment[0].port: expected an integer from 0 to 65535, got '70000'",
        ),
        ('"mem": -5', "use.userdefine.assignment[0].mem: expected an integer from 0"),
        ('"mem": Infinity', "use.userdefine.assignment[0].mem: expected an integer from 0"),
        ('"cpu": NaN', "use.userdefine.assignment[0].cpu: expected an integer from 0"),
        (f'"cpu": {HUGE}', "use.userdefine.assignment[0].cpu: expected an integer from 0"),
        (
            '"componentToNum": {"split": -1}',
            "use.userdefine.assignment[0].componentToNum.split: expected an integer from 0",
        ),
    ],
)
def test_numbers_of_a_user_defined_worker_are_bounded(wrong: str, words: str) -> None:
    problem = copy.deepcopy(next(each for each in PROBLEMS if each["scheduler"] == "jstorm"))
    worker = '{"componentToNum": {"split": 1}, "port": 0, ' + wrong + "}"
    problem["conf"]["use.userdefine.assignment"] = [worker]
    assert words in checked(json.dumps(problem))["error"]


@pytest.mark.parametrize(
    ("literal", "words"),
    [
        ("NaN", "supervisors[0].resources.supervisor.memory.capacity.mb: NaN is no number"),
        (
            "1e999",
            "supervisors[0].resources.supervisor.memory.capacity.mb: 1e999 is too large for a number",
        ),
        (
            HUGE,
            "supervisors[0].resources.supervisor.memory.capacity.mb: an integer of 5,000 digits is too large",
        ),
        (
            "-1",
            "supervisors[0].resources.supervisor.memory.capacity.mb: expected a number that is not negative",
        ),
        ("[" * 99 + "]" * 99, "more than 60 lists and objects in each other"),
    ],
)
def test_a_number_that_is_none_is_named_with_its_field(literal: str, words: str) -> None:
    problem = copy.deepcopy(
        next(each for each in PROBLEMS if each["scheduler"] == "resource-aware")
    )
    problem["supervisors"][0]["resources"]["supervisor.memory.capacity.mb"] = MARK
    assert words in checked(json.dumps(problem).replace(json.dumps(MARK), literal))["error"]


def test_each_line_has_its_answer_whatever_the_others_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps(next(each for each in PROBLEMS if each["scheduler"] == "jstorm")).encode()
    named = good.replace(
        b'"supervisors"', b'"tasks": {"' + HUGE.encode() + b'": "in"}, "supervisors"'
    )
    lines = [
        good,
        b"\xff\xfe",
        b"[" * 50_000,
        HUGE.encode(),
        named,
        b'{"a": NaN}',
        b"\xed\xa0\x80",
        good,
    ]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(lines))))
    assert main(["schedule", "--lines", "-"]) == 1
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    result = ["error" in each for each in answers]
    assert result == [False, True, True, True, True, True, True, False]
    assert answers[0] == answers[-1]
    assert answers[1]["error"].startswith("standard input, line 2: not UTF-8")
    assert "tasks" in answers[4]["error"]
