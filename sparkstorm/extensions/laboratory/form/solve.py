"""DeferredEmits to scheduling problems, from JSON text to JSON text."""

import json
from typing import Any

from sparkstorm.common.errors import SparkStormError, show
from sparkstorm.extensions.laboratory.form import jstorm_problem, storm_problem
from sparkstorm.extensions.laboratory.form.fields import parse


def solve(value: object, explains: bool = False) -> dict[str, Any]:
    """Return the answer to a problem, with reasons under `why` if `explains`; InvalidConfigError if
    it is malformed.
    """
    if isinstance(value, dict) and value.get("scheduler") == "jstorm":
        return jstorm_problem.answer(jstorm_problem.context_from(value), explains)
    return storm_problem.answer(storm_problem.problem_from(value), explains)


def answer_to(text: str | bytes, explains: bool = False) -> tuple[str, bool]:
    """Return the answer to a problem's text as one line of JSON, and whether the problem was
    well-formed; never raises.

    An exception of the scheduler becomes an error answer, so that later problems are still
    answered.
    """
    try:
        return json.dumps(solve(parse(text), explains)), True
    except SparkStormError as error:
        return json.dumps({"error": str(error)}), False
    except Exception as error:
        return json.dumps(
            {"error": f"the scheduler failed, {type(error).__name__}: {show(error)}"}
        ), False
