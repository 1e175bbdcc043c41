"""Answers to scheduling problems, from JSON text to JSON text."""

import json
from typing import Any

from sparkstorm.errors import SparkStormError, show
from sparkstorm.scheduling.form import jstorm_problem, storm_problem
from sparkstorm.scheduling.form.fields import parse


def solve(value: object, explains: bool = False) -> dict[str, Any]:
    """The answer to a problem, with the reason of each place under `why` where asked; InvalidConfigError when malformed."""
    if isinstance(value, dict) and value.get("scheduler") == "jstorm":
        return jstorm_problem.answer(jstorm_problem.context_from(value), explains)
    return storm_problem.answer(storm_problem.problem_from(value), explains)


def answer_to(text: str | bytes, explains: bool = False) -> tuple[str, bool]:
    """One line of JSON for the text of one problem, and whether the problem was well-formed; raises nothing.

    A fault of the scheduler's own is an answer like any other, so that the problems after it get theirs.
    """
    try:
        return json.dumps(solve(parse(text), explains)), True
    except SparkStormError as error:
        return json.dumps({"error": str(error)}), False
    except Exception as error:
        return json.dumps({"error": f"the scheduler failed, {type(error).__name__}: {show(error)}"}), False
