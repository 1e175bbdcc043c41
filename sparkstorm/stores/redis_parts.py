"""Import of redis-py's connection without the rest of redis-py.

`import redis` imports its asyncio client, its cluster client and the commands of every module of
Redis: three quarters of its time, and more than a verb needs for all else. A verb that looks asks
over connections alone (`transport/connection.py`). Law: nobody can tell the difference. The module
is redis-py's own, and the first use of any other part of it imports the whole.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_NAME = "redis"
# The API alone takes as long as the connection, and redis-py uses it for metrics of its own, which
# no verb reads. A name that is None cannot be imported: redis-py takes it as not installed.
_TELEMETRY = "opentelemetry"
_NEEDED = ("exceptions", "backoff", "retry", "connection")


def import_connection() -> None:
    """Import `redis.connection` and what it needs; all of redis-py where a part cannot be had.

    Does nothing where redis-py has been imported.
    """
    if _NAME in sys.modules:
        return
    spec = find_spec(_NAME)
    is_kept = _TELEMETRY in sys.modules
    if not is_kept:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        if spec is None or not _has_part(spec):
            import_module(_NAME)
    finally:
        if not is_kept:
            del sys.modules[_TELEMETRY]


def _has_part(spec: ModuleSpec) -> bool:
    """Import the part; False, and nothing of it is left, where this version cannot be taken apart."""
    package = module_from_spec(spec)
    package.__class__ = _Part
    sys.modules[_NAME] = package
    try:
        for name in _NEEDED:
            import_module(f"{_NAME}.{name}")
    except Exception:  # anything, since another version may need anything
        for name in [each for each in sys.modules if each.partition(".")[0] == _NAME]:
            del sys.modules[name]
        return False
    sys.meta_path.insert(0, _Rest())
    return True


class _Part(ModuleType):
    """The package while a part of it is imported: a name that it has not imports the rest."""

    def __getattr__(self, name: str) -> Any:
        if not _is_completed():
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        return getattr(self, name)


class _Rest:
    """Finder that finds nothing: the first import of another module of redis-py imports the package
    first, since its modules need each other in one order.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        """Complete the package before the import goes on; the finders behind this one find it."""
        if name.startswith(f"{_NAME}."):
            _is_completed()


def _is_completed() -> bool:
    """Import the rest, once; False where that has begun."""
    found = [each for each in sys.meta_path if isinstance(each, _Rest)]
    if not found:
        return False
    sys.meta_path.remove(found[0])
    package = sys.modules[_NAME]
    package.__class__ = ModuleType
    spec = package.__spec__
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(package)
    return True
