"""Owns the way from the text of a problem to the text of its answer."""

import json
from typing import Any

from sparkstorm.errors import SparkStormError
from sparkstorm.scheduling.form import jstorm_problem, storm_problem
from sparkstorm.scheduling.form.fields import mapping, parse


def solve(value: object) -> dict[str, Any]:
    """The answer to a problem; InvalidConfigError when it is malformed."""
    if mapping(value, "problem").get("scheduler") == "jstorm":
        return jstorm_problem.answer(jstorm_problem.context_from(value))
    return storm_problem.answer(storm_problem.problem_from(value))


def answer_to(text: str) -> tuple[str, bool]:
    """One line of JSON for the text of one problem, and whether the problem was well-formed."""
    try:
        return json.dumps(solve(parse(text))), True
    except SparkStormError as error:
        return json.dumps({"error": str(error)}), False
