"""Answers to scheduling problems, from JSON text to JSON text."""

import json
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

from sparkstorm.common.errors import InvalidConfigError, SparkStormError
from sparkstorm.data_plane.executor.user_traceback import describe_error
from sparkstorm.extensions.laboratory.form import jstorm_problem, storm_problem
from sparkstorm.extensions.laboratory.form.fields import parse


def solve(value: object, explains: bool = False, scheduler: str | None = None) -> dict[str, Any]:
    """Return the answer to a problem, with reasons under `why` if `explains`; InvalidConfigError if
    it is malformed. `scheduler` answers in the place of the one that the problem names.
    """
    if scheduler is not None:
        return _solved_by(scheduler, value, explains)
    if isinstance(value, dict) and value.get("scheduler") == "jstorm":
        return jstorm_problem.answer(jstorm_problem.context_from(value), explains)
    return storm_problem.answer(storm_problem.problem_from(value), explains)


def _solved_by(scheduler: str, value: object, explains: bool) -> dict[str, Any]:
    if isinstance(value, dict) and value.get("scheduler") == "jstorm":
        raise InvalidConfigError(
            "a problem of JStorm's form is for its scheduler alone: leave --scheduler out"
        )
    problem = storm_problem.problem_from(value)
    return storm_problem.answer(replace(problem, scheduler=scheduler), explains)


def answer_to(
    text: str | bytes, explains: bool = False, scheduler: str | None = None, where: str = ""
) -> tuple[str, bool]:
    """Return the answer to a problem's text as one line of JSON, and whether the problem was
    well-formed; never raises. An error begins with `where`.

    An exception of the scheduler, also the one of sys.exit(), becomes an error answer, so that later
    problems are still answered. What a plug-in prints goes to the standard error: the standard
    output has a line per answer.
    """
    try:
        with redirect_stdout(sys.stderr):
            answer = solve(parse(text), explains, scheduler)
        return json.dumps(answer), True
    except SparkStormError as error:
        reason = str(error)
    except (Exception, SystemExit) as error:
        reason = f"the scheduler failed, {describe_error(error)}"
    return json.dumps({"error": f"{where}{reason}"}), False
