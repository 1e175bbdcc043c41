"""Names of fields in the sentences of errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from sparkstorm.common.errors import InvalidTopologyError, show


def read_names(owner: str, what: str, given: Any) -> tuple[str, ...]:
    """Return a name, or a sequence of names, as a tuple; InvalidTopologyError for anything else."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidTopologyError(
            f"{owner}: {what} is {show(given)}; write a name, or a list of names"
        )
    return tuple(names)


def unknown_field(name: str, source: str, fields: Iterable[str]) -> str:
    """Return the end of a sentence about a field that a source does not have: with the name that
    was meant, if one is near, else with all of them.
    """
    known_fields = list(fields)
    near = get_close_matches(name, known_fields, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(known_fields) or 'none'}"
    return f"'{name}', which is no field of '{source}': {hint}"
