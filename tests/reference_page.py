"""The page of all public names, from their docstrings. `python -m tests.reference_page` writes
docs/reference.md anew.

Sources are parsed, not imported: every Python writes the same page.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sparkstorm.common.extension_points import BUILT_IN

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
MODULES = (
    "sparkstorm.api",
    "sparkstorm.connectors",
    "sparkstorm.testing",
    "sparkstorm.testing.servers",
    "sparkstorm.replay",
    "sparkstorm.client",
    "sparkstorm.streams",
    "sparkstorm.compat",
    "sparkstorm.streamparse",
)
_HEAD = """# Public names

Every public name with its signature and docstring, by module. Written from the sources by
`python -m tests.reference_page`; a test compares them. [The API](api.md) explains how they go
together, [the configuration keys](configuration.md) have a page of their own. Methods that a
class has from a base of this page are at that base; one without an arrow returns nothing.
"""
_WIDTH = 98
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _tree(module: str) -> ast.Module:
    """Return the syntax tree of a module or package."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _imported(module: str) -> dict[str, tuple[str, str]]:
    """Return the names that a module takes from others, each with its module and name there."""
    point = module.removeprefix("sparkstorm.")
    plugged = (named.split(":") for named in BUILT_IN.get(point, ()))
    return {name: (origin, name) for origin, name in plugged} | {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sparkstorm")
        for alias in node.names
        if alias.name not in ("extensions_at", "lazy_names")
    }


def _definitions(module: str) -> Iterator[tuple[str, ast.stmt, str]]:
    """Yield name, statement and docstring of what a module defines; a name's last statement counts,
    which of overloads is the one with the body.
    """
    body = _tree(module).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, _Function | ast.ClassDef):
            yield node.name, node, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            doc = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                doc = str(after.value.value)
            if isinstance(target, ast.Name):
                yield target.id, node, textwrap.dedent(doc).strip()


def _find(module: str, name: str) -> tuple[str, ast.stmt, str]:
    """Return where a name is defined, its statement and its docstring."""
    for defined_name, node, doc in _definitions(module):
        if defined_name == name:
            return module, node, doc
    return _find(*_imported(module)[name])


def _methods(module: str, node: ast.ClassDef) -> dict[str, _Function]:
    """Return a class's methods, those of bases that the page does not have among them."""
    methods: dict[str, _Function] = {}
    for _, origin, found in _bases(module, node, is_listed=False):
        methods |= _methods(origin, found)
    own = {each.name: each for each in node.body if isinstance(each, _Function)}
    return {**methods, **own}


def _bases(
    module: str, node: ast.ClassDef, is_listed: bool
) -> Iterator[tuple[str, str, ast.ClassDef]]:
    """Yield the bases of a class that are on the page, or those that are not, each with its
    module.
    """
    for name in (ast.unparse(base).partition("[")[0] for base in node.bases):
        try:
            origin, found, _ = _find(module, name)
        except KeyError:  # of another package
            continue
        if isinstance(found, ast.ClassDef) and (name in _listed()) == is_listed:
            yield name, origin, found


def _inherited(module: str, node: ast.ClassDef) -> set[str]:
    """Return the methods that the public bases of a class have: the page explains them there."""
    names: set[str] = set()
    for _, origin, found in _bases(module, node, is_listed=True):
        names |= _inherited(origin, found) | _methods(origin, found).keys()
    for _, origin, found in _bases(module, node, is_listed=False):
        names |= _inherited(origin, found)
    return names


@cache
def _listed() -> frozenset[str]:
    """Return the names of all modules of the page."""
    return frozenset(name for module in MODULES for name in public_names(module))


def public_names(module: str) -> list[str]:
    """Return a module's public names: what a package takes in, what another module defines."""
    own = [name for name, node, _ in _definitions(module) if not isinstance(node, ast.Assign)]
    names = {*own, *(_imported(module) if _is_package(module) else ())}
    return sorted(
        (name for name in names if not name.startswith("_")), key=lambda name: (name.lower(), name)
    )


def _is_package(module: str) -> bool:
    return (ROOT / module.replace(".", "/")).is_dir()


def _signature(name: str, node: _Function, is_method: bool) -> str:
    arguments = ast.unparse(node.args)
    if is_method:
        arguments = re.sub(r"^(self|cls)(, )?", "", arguments)
    returned = ast.unparse(node.returns) if node.returns is not None else "None"
    # most methods return nothing: the arrow would be noise in every second line
    return f"{name}({arguments})" + (f" -> {returned}" if returned != "None" else "")


def _is(node: _Function, decorator: str) -> bool:
    return any(
        ast.unparse(applied).split("(")[0].endswith(decorator) for applied in node.decorator_list
    )


def _of_class(module: str, node: ast.ClassDef) -> tuple[str, list[str]]:
    """Return how a class is called, and its own public methods, each a line of a list."""
    methods = _methods(module, node)
    inherited = _inherited(module, node)
    made = methods.get("__init__")
    if made is not None:
        called = _signature(node.name, made, is_method=True)
    elif any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields = [
            ast.unparse(statement)
            for statement in node.body
            if isinstance(statement, ast.AnnAssign)
        ]
        called = f"{node.name}({', '.join(fields)})"
    else:
        bases = ", ".join(map(ast.unparse, node.bases))
        called = f"class {node.name}({bases})" if bases else f"class {node.name}"
    lines = []
    for name, method in methods.items():
        doc = (ast.get_docstring(method) or "").partition("\n\n")[0]
        if name.startswith("_") or name in inherited or not doc or _is(method, "setter"):
            continue
        is_attribute = _is(method, "property")
        shown = name if is_attribute else _signature(name, method, is_method=True)
        lines.append(f"* `{shown}`: {_text(' '.join(doc.split()))}")
    return called, lines


def _text(doc: str) -> str:
    """Return a docstring as Markdown: an example is a block, and what would begin a link, a tag or
    emphasis is text.
    """
    if "\n\n" in doc:
        return "\n\n".join(map(_text, doc.split("\n\n")))
    if doc.lstrip().startswith(">>>"):
        return f"```text\n{textwrap.dedent(doc)}\n```"
    parts = doc.split("`")
    parts[::2] = [re.sub(r"([\[<*])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _entry(module: str, name: str) -> list[str]:
    origin, node, doc = _find(module, name)
    methods: list[str] = []
    if isinstance(node, ast.ClassDef):
        called, methods = _of_class(origin, node)
    elif isinstance(node, _Function):
        called = _signature(name, node, is_method=False)
    else:
        called = ast.unparse(node)
    shown = textwrap.fill(
        called, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    lines = [f"### {name}", "", "```text", shown, "```"]
    lines += ["", _text(doc)] if doc else []
    return [*lines, *([""] if methods else []), *methods, ""]


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    for module in MODULES:
        lines += [f"## {module}", "", _text(ast.get_docstring(_tree(module)) or ""), ""]
        for name in public_names(module):
            lines += _entry(module, name)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written")
