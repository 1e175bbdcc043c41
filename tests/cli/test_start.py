"""Checks what a verb imports before it does its work: heavy libraries are slow to import, and a
verb that only looks needs none.
"""

from __future__ import annotations

import subprocess
import sys

from sparkstorm.cli.__main__ import GROUPS

_HEAVY = ("numpy", "pyarrow", "pandas", "pyspark", "starlette", "uvicorn", "cloudpickle", "textual")
_STORES = ("redis", "kazoo")
_SUBMITTING = ("sparkstorm.api", "sparkstorm.executor", "sparkstorm.scheduling.catalogue")
_WITHOUT_A_CLUSTER = ("explain", "show", "schedule", "recorded", "completion", "init", "web")
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


def test_a_verb_without_a_cluster_imports_no_client_of_a_store() -> None:
    found = ended((*_HEAVY, *_STORES, *_SUBMITTING), [*_WITHOUT_A_CLUSTER])
    assert (found.returncode, found.stderr) == (0, "")


def test_a_verb_that_looks_imports_neither_arrays_nor_what_submits() -> None:
    # which builds topologies
    groups = [modules for group, modules in GROUPS.items() if group != "run"]
    verbs = [
        verb
        for modules in groups
        for known in modules.values()
        for verb in known
        if verb not in _WITHOUT_A_CLUSTER
    ]
    assert {"list", "status", "tasks", "errors", "failures", "hosts", "monitor", "kill"} <= {*verbs}
    look = "from sparkstorm.client import connect\nfrom sparkstorm.insight.sampler import Sampler\n"
    found = ended((*_HEAVY, *_SUBMITTING), verbs, look)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_refused_import_is_seen() -> None:
    found = ended(("redis",), [], "import redis")
    assert found.returncode == 1 and "a verb imports redis before" in found.stderr
