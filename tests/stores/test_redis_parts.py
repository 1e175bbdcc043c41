"""Checks that a process with a part of redis-py cannot be told from one with the whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_BEGIN = """
import sys
from sparkstorm.stores.redis_parts import import_connection
import_connection()
assert "redis.connection" in sys.modules and "redis.client" not in sys.modules
from redis.connection import Connection
from redis.exceptions import ResponseError
"""
_SAME = """
import redis, redis.connection
assert "redis.client" in sys.modules and "redis.asyncio" in sys.modules
assert redis.Connection is Connection and redis.ResponseError is ResponseError
assert issubclass(redis.client.Redis, redis.commands.CoreCommands)
assert type(redis).__name__ == "module" and redis.__file__.endswith("__init__.py")
"""


def run(program: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Return the end of an interpreter of its own, with a folder before all others."""
    path = f"import sys; sys.path.insert(0, {str(folder)!r})\n" if folder else ""
    return subprocess.run(
        [sys.executable, "-c", path + program],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    "use",
    [
        "import redis; redis.Redis",
        "from redis import Redis",
        "from redis.client import Redis",
        "from redis.sentinel import Sentinel",
        "import redis.asyncio",
        "from redis.commands.core import CoreCommands",
        "from redis import *; Redis",
        "import redis; assert hasattr(redis, 'cluster')",
    ],
)
def test_the_first_use_of_another_part_imports_the_whole(use: str) -> None:
    done = run(f"{_BEGIN}{use}\n{_SAME}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_redis_has_not_is_missing() -> None:
    done = run(
        f"{_BEGIN}import redis\nassert not hasattr(redis, 'nothing_of_redis')\n"
        "try:\n    import redis.nothing_of_redis\nexcept ModuleNotFoundError as error: print(error)"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "No module named 'redis.nothing_of_redis'\n"


def test_telemetry_can_be_imported_behind_it() -> None:
    done = run(f"{_BEGIN}assert 'opentelemetry' not in sys.modules\nimport opentelemetry.trace")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_redis_that_was_imported_before_is_left_alone() -> None:
    done = run(
        "import sys, redis\nfrom sparkstorm.stores.redis_parts import import_connection\n"
        "finders = [*sys.meta_path]\nimport_connection()\n"
        "assert sys.modules['redis'] is redis and sys.meta_path == finders and redis.Redis"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "connection", ["from redis import Client", "import redis.nowhere", "raise KeyError(1)"]
)
def test_a_version_that_cannot_be_taken_apart_is_imported_whole(
    connection: str, tmp_path: Path
) -> None:
    files = {
        "__init__": "Client = 1\ntry:\n    import redis.connection\nexcept Exception: pass\nis_whole = True",
        "connection": connection,
        "exceptions": "",
        "backoff": "",
        "retry": "",
    }
    (tmp_path / "redis").mkdir()
    for name, text in files.items():
        (tmp_path / "redis" / f"{name}.py").write_text(text)
    done = run(
        "import sys\nfrom sparkstorm.stores.redis_parts import import_connection\n"
        "import_connection()\nimport redis\nassert redis.is_whole and type(redis) is type(sys)",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
