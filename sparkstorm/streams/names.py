"""Names of fields in the sentences of errors."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown_field(name: str, source: str, fields: Iterable[str]) -> str:
    """Return the end of a sentence about a field that a source does not have: with the name that
    was meant, if one is near, else with all of them.
    """
    known_fields = list(fields)
    near = get_close_matches(name, known_fields, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(known_fields) or 'none'}"
    return f"'{name}', which is no field of '{source}': {hint}"
