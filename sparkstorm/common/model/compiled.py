"""The compiled core: row path (`_core.c`), columns of frames (`_frames.c`), hash of fields grouping
(`_hash.c`), bytes of values (`_msgpack.c`; of dates and the like `_extensions.c`), and
normalisation of values (`_values.c`), where it was built.

Without it the twins in Python do the same.
`SPARKSTORM_PURE=1` in the environment leaves it out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

VERSION = 28
"""Version of the core that these sources work with: CORE_VERSION of `_core.c`."""


def _load() -> tuple[ModuleType | None, str]:
    if os.environ.get("SPARKSTORM_PURE", "") not in ("", "0"):
        return None, "plain Python (SPARKSTORM_PURE is set)"
    try:
        module = import_module("sparkstorm.common.model._core")
    except ImportError:
        return (
            None,
            "plain Python (the compiled core was not built: no C compiler or no Python headers at installation)",
        )
    if module.VERSION != VERSION:
        return (
            None,
            f"plain Python (the compiled core is of version {module.VERSION}, not {VERSION}: install again)",
        )
    return module, "compiled core"


core: Any
core, description = _load()
"""The module, or None; and a readable phrase: which one runs and why."""


def _move(items: list[Any]) -> list[Any]:
    moved = items[:]
    items.clear()
    return moved


empty: Callable[[list[Any]], None] = list.clear if core is None else core.empty
"""Empties a list that is filled again at once: the core's keeps the memory."""
move: Callable[[list[Any]], list[Any]] = _move if core is None else core.move
"""Empties such a list too, and returns its items."""
