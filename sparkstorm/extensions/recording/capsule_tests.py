"""Test of a failure capsule: the text of a pytest file that executes it and fails as the run
did.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkstorm.common.errors import InvalidConfigError, RecordingError
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.common.model.failure import FailureKind
from sparkstorm.common.settings import BuilderSettings, SubmissionSettings
from sparkstorm.extensions.recording.capsule_files import BUILDER_ARGUMENTS, CLASSES, ENDING

_FUNCTION = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)


def text_of_test(path: Path, letter: DeadLetter, test: Path, conf: Mapping[str, Any]) -> str:
    """Return the text of a test of the capsule at `path`; `test` is where it will be.

    `conf` has the settings that name code (`topology.builder`): the caller's, those of a job file
    or the signed ones of a topology, never those of the letter. Of the letter nothing gets into the
    test but its component as a name, and comments. InvalidConfigError when no setting names the
    function that builds the topology.
    """
    built_by = BuilderSettings.of(conf)
    named = built_by.function
    if named is None:
        raise InvalidConfigError(
            f"{path.name}: nothing that you or the cluster have signed says which function builds the topology: "
            "give --topology MODULE:FUNCTION or --topology JOB.yaml"
        )
    match = _FUNCTION.fullmatch(named)
    if match is None:
        raise InvalidConfigError(
            f"{path.name}: topology {named!r:.80} is not of the form module:function"
        )
    classes = SubmissionSettings.of(conf).serializers
    form = _TEST_APART if letter.failure.kind is FailureKind.KILLED else _TEST
    return form.format(
        about="\n".join(f"# {line}" for line in _about(path, letter)),
        module=match[1],
        function=match[2],
        name=re.sub(r"\W", "_", letter.component, flags=re.ASCII),
        path=os.path.relpath(path.resolve(), test.resolve().parent),
        arguments=_literal(path, built_by.arguments),
        conf=f", conf={{{CLASSES!r}: {classes!r}}}" if classes else "",
    )


def name_of_test(capsule: Path) -> str:
    """Return the name of the test file of a capsule."""
    return f"test_{re.sub(r'[^A-Za-z0-9_]', '_', capsule.name.removesuffix(ENDING))}.py"


_TEST = """{about}

from pathlib import Path

from {module} import {function}
from sparkstorm.replay import open_capsule


def test_{name}_takes_the_input_that_failed() -> None:
    step = open_capsule(Path(__file__).parent / {path!r}).step({function}(**{arguments}){conf})
    assert step.failure is None, f"{{step.failure.text}}\\n{{step.failure.traceback}}"
"""


# The input ends the process that executes it, without a word where that is pytest's own.
_TEST_APART = """{about}

import multiprocessing
from pathlib import Path

from {module} import {function}
from sparkstorm.replay import open_capsule


def execute_the_input() -> None:
    step = open_capsule(Path(__file__).parent / {path!r}).step({function}(**{arguments}){conf})
    assert step.failure is None, f"{{step.failure.text}}\\n{{step.failure.traceback}}"


def test_{name}_takes_the_input_that_killed_its_worker() -> None:
    process = multiprocessing.get_context("fork").Process(target=execute_the_input)
    process.start()
    process.join()
    assert process.exitcode == 0, f"the process of the input ended with status {{process.exitcode}}"
"""


def _about(path: Path, letter: DeadLetter) -> Iterator[str]:
    failure = letter.failure
    yield f"Made from {path.name}: {letter.component!r:.80} failed {letter.attempts} times on this input."
    yield f"{failure.text!r}"
    yield f"Code {failure.code_version[:64]!r}, worker {failure.worker!r:.100} on {failure.host!r:.100}."
    yield "It fails as the run did; when the bolt is fixed, it passes."


def _literal(path: Path, arguments: Any) -> str:
    """Return keyword arguments as Python, without trust: plain JSON values by name only."""
    if not isinstance(arguments, dict) or not all(
        isinstance(name, str) and name.isidentifier() for name in arguments
    ):
        raise RecordingError(f"{path}: {BUILDER_ARGUMENTS} are no arguments by name")
    try:
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordingError(
            f"{path}: {BUILDER_ARGUMENTS} hold what no job file can: {error}"
        ) from error
    return repr(arguments)
