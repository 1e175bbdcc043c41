"""Figures of the sources: lines and files per package, and what is too large.
`python -m benchmarks.sources [FOLDER]`

Functions over 25 lines of code (blank lines, comments and docstrings are not counted), over 5
parameters (`self` is not counted), classes over 20 attributes (fields, slots, and names assigned to
`self`), folders over 20 modules.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def main(folder: Path) -> None:
    """Print the figures of a package's folder."""
    files = sorted(folder.rglob("*.py"))
    by_package: dict[str, Counter[str]] = {}
    totals: Counter[str] = Counter()
    for path in files:
        text = path.read_text(encoding="utf-8")
        counts = Counter(
            {"files": 1, "lines": len(text.splitlines()), **figures(ast.parse(text), text)}
        )
        part = path.relative_to(folder).parts[0] if path.parent != folder else "(top level)"
        by_package.setdefault(part, Counter()).update(counts)
        totals.update(counts)
    names = ("files", "lines", "code", "functions", "long", "wide", "large classes")
    print("| package | " + " | ".join(names) + " |\n|---" + "|---" * len(names) + "|")
    for part, package_totals in sorted(by_package.items(), key=lambda pair: -pair[1]["lines"]):
        print(f"| {part} | " + " | ".join(f"{package_totals[name]:,}" for name in names) + " |")
    print("| **all** | " + " | ".join(f"**{totals[name]:,}**" for name in names) + " |")
    modules = Counter(
        str(path.parent.relative_to(folder.parent)) for path in files if path.name != "__init__.py"
    )
    crowded = ", ".join(f"{name} {count}" for name, count in modules.most_common() if count > 20)
    print(
        f"\nfolders of more than 20 modules: {crowded or 'none'}; longest file: {max(map(_lines, files))} lines"
    )


def figures(tree: ast.Module, text: str) -> dict[str, int]:
    """Counts of one module: lines of code, functions, and functions and classes that are too
    large.
    """
    lines = text.splitlines()
    functions = [node for node in ast.walk(tree) if isinstance(node, _Function)]
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {
        "code": _code_lines(tree, lines, 1, len(lines)),
        "functions": len(functions),
        "long": sum(
            _code_lines(f, lines, f.lineno, f.end_lineno or f.lineno) > 25 for f in functions
        ),
        "wide": sum(len(_parameters(f)) > 5 for f in functions),
        "large classes": sum(len(set(_attributes(c))) > 20 for c in classes),
    }


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _code_lines(tree: ast.AST, lines: list[str], first: int, last: int) -> int:
    prose = {number for node in ast.walk(tree) if _is_docstring(node) for number in _span(node)}
    return sum(
        1
        for number in range(first, last + 1)
        if number not in prose and (text := lines[number - 1].strip()) and not text.startswith("#")
    )


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _span(node: ast.AST) -> range:
    assert isinstance(node, ast.stmt)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _parameters(function: _Function) -> list[str]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument.arg for argument in every if argument.arg not in ("self", "cls")]


def _attributes(kind: ast.ClassDef) -> Iterator[str]:
    for field in kind.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            yield field.target.id
    for node in ast.walk(kind):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        for target in targets:
            for part in ast.walk(target):
                if (
                    isinstance(part, ast.Attribute)
                    and isinstance(part.value, ast.Name)
                    and part.value.id == "self"
                ):
                    yield part.attr


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sources", description=(__doc__ or "").partition(". ")[0] + "."
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path("sparkstorm"),
        help="of a package; default: %(default)s",
    )
    chosen = parser.parse_args().folder
    if not any(chosen.rglob("*.py")):
        parser.error(f"{chosen}: no Python module is in this folder")
    main(chosen)
