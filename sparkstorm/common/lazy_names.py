"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: dict[str, Any], names_by_module: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package, given as its globals, whose names
    are in these modules.
    """
    module_by_name = {name: module for module, names in names_by_module.items() for name in names}

    def find(name: str) -> Any:
        if name not in module_by_name:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        # the next time it is there
        package[name] = value = getattr(import_module(module_by_name[name]), name)
        return value

    return sorted(module_by_name), find, lambda: sorted({*package, *module_by_name})
