"""Checks what a verb imports before it does its work: heavy libraries are slow to import, and a
verb that only looks needs none.
"""

from __future__ import annotations

import subprocess
import sys

_HEAVY = ("numpy", "pyarrow", "pandas", "pyspark", "starlette", "uvicorn", "cloudpickle", "textual")
_STORES = ("redis", "kazoo")
_SUBMITTING = ("sparkstorm.api", "sparkstorm.executor", "sparkstorm.scheduling.catalogue")
_REFUSING = """
import sys

class Refused:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in {names!r}:
            raise AssertionError(f"a verb imports {{name}} before it needs it")

sys.meta_path.insert(0, Refused)
from sparkstorm.cli.__main__ import parser
for verb in {verbs!r}:
    parser(verb)
"""


def ended(
    names: tuple[str, ...], verbs: list[str], more: str = ""
) -> subprocess.CompletedProcess[str]:
    """Return the end of an interpreter that imports the verbs' modules, and dies at the first
    import of a name.
    """
    program = _REFUSING.format(names=names, verbs=verbs) + more
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )


def test_no_parser_imports_a_client_of_a_store() -> None:
    # or `sparkstorm --help` and a wrong option take a second
    found = ended((*_HEAVY, *_STORES, *_SUBMITTING), [""])
    assert (found.returncode, found.stderr) == (0, "")


def test_a_verb_that_looks_imports_neither_arrays_nor_telemetry_nor_what_submits() -> None:
    # which builds topologies; the SDK is in the way of `sparkstorm web --otlp` no longer than that
    look = (
        "from sparkstorm.cli.common import connect\n"
        "try:\n    connect('/nowhere/connection.json')\nexcept Exception as error: print(error)\n"
        "from sparkstorm.insight.sampler import Sampler\n"
        "assert 'kazoo' in sys.modules and 'redis' in sys.modules\n"
        "assert 'opentelemetry.sdk.metrics' not in sys.modules\n"
    )
    found = ended((*_HEAVY, *_SUBMITTING, "opentelemetry.sdk"), [], look)
    assert (found.returncode, found.stderr) == (0, "")
    assert "/nowhere/connection.json" in found.stdout


def test_a_refused_import_is_seen() -> None:
    found = ended(("redis",), [], "import redis")
    assert found.returncode == 1 and "a verb imports redis before" in found.stderr
