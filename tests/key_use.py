"""Comparison of defaults.yaml with the code: keys that the code reads, and names of its strings
that are no keys.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from sparkstorm.common.config import keys, unsupported_keys
from tests.syntax import nodes_of

ROOT = Path(__file__).parent.parent
_KEY_SHAPE = re.compile(
    r"(topology|storm|nimbus|supervisor|worker|task|executor|spout|sparkstorm|ui|drpc|logviewer|blacklist|isolation"
    r"|multitenant|resource\.aware|shuffle|transaction|jstorm|use)\.[a-z][a-z0-9._]*"
)


@functools.cache
def literals() -> tuple[tuple[str, str], ...]:
    """Every string in the code that is no docstring, with its file; configuration's own module left
    out.
    """
    return tuple(
        (text, str(path.relative_to(ROOT)))
        for folder in ("sparkstorm", "jobs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "config.py"
        for text in strings_of(path)
    )


def strings_of(path: Path) -> Iterator[str]:
    """Yield every string of a module that is no docstring."""
    prose = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}
    for node in nodes_of(path):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "getLogger"
        ):
            prose.update(map(id, node.args))
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def read_keys() -> set[str]:
    """Keys that the code names, whole or by a template such as `topology.{}.cpu`."""
    texts = {text for text, _ in literals()}
    templates = [
        text for text in texts if "{}" in text and _KEY_SHAPE.fullmatch(text.replace("{}", "x"))
    ]
    by_template = "|".join(re.escape(text).replace(r"\{\}", "[a-z.]+") for text in templates)
    return {
        name
        for name in keys()
        if name in texts or (by_template and re.fullmatch(by_template, name))
    }


def undeclared() -> list[str]:
    """Strings shaped like keys that defaults.yaml does not know, with their files; names of our
    modules are no keys.
    """
    modules = tuple(f"sparkstorm.{path.stem}" for path in (ROOT / "sparkstorm").iterdir())
    return [
        f"{file}: {text}"
        for text, file in literals()
        if _KEY_SHAPE.fullmatch(text)
        and text not in keys()
        and text not in unsupported_keys()
        and not text.startswith(modules)
        and not text.endswith(_FILES)
        and not file.startswith(_FORM)
    ]


# names places in the JSON of scheduling problems, which look like keys
_FORM = "sparkstorm/extensions/laboratory/form/"
_FILES = (
    ".py",
    ".json",
    ".jsonl",
    ".log",
    ".conf",
    ".pid",
    ".lock",
    ".lua",
    ".yaml",
    ".zip",
    ".sock",
    ".",
)
