"""Layers of the package: which package may import which, and which effects the pure ranks may not
have.

Ranks: 0 errors, config, settings, tls, http_guard; 1 clock, model; 2 scheduling, acking, grouping, windowing; 3
api; 4 transport, cluster, hosting, stores, connectors, streamparse; 5 blobs, compat, executor,
checkpoint; 6 recording, tasks; 7 worker, replay; 8 nimbus, supervisor, insight; 9 client; 10
notebook, embedded; 11 app, testing, web; 12 cli. A package imports itself and lower ranks.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sparkstorm.common.config import keys

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sparkstorm"
RANK_BY_PART = {
    "errors": 0,
    "config": 0,
    "settings": 0,
    "tls": 0,
    "http_guard": 0,
    "clock": 1,
    "model": 1,
    "scheduling": 2,
    "acking": 2,
    "grouping": 2,
    "windowing": 2,
    "api": 3,
    "transport": 4,
    "cluster": 4,
    "hosting": 4,
    "streamparse": 4,
    "streams": 4,
    "stores": 4,
    # a guest: what puts a cluster together starts it, nothing else knows of it
    "embedded": 10,
    "connectors": 4,
    "blobs": 5,
    "compat": 5,
    "executor": 5,
    "checkpoint": 5,
    "recording": 6,
    "tasks": 6,
    "worker": 7,
    "nimbus": 8,
    "supervisor": 8,
    "insight": 8,
    "replay": 7,
    "client": 9,
    "notebook": 10,
    "app": 11,
    "web": 11,
    "cli": 12,
    "testing": 11,
}
LAST_PURE_RANK = 3
EFFECTS = {
    "random",
    "secrets",
    "logging",
    "socket",
    "subprocess",
    "threading",
    "redis",
    "kazoo",
    "pyspark",
    "datetime",
}
# the one effect below rank 4: the real clock; values may be dates
EFFECTS_ALLOWED = {
    "clock.py": {"time"},
    "common/model/values/value_types.py": {"datetime"},
    "common/grouping/hashing.py": {"datetime"},
    "api/value_columns.py": {"datetime"},
}
PYSPARK_ALLOWED = ("hosting/spark", "replay/", "app", "connectors/spark")
# the one module that knows versions of PySpark, and two that stand in the place of its own
PRIVATE_PYSPARK_ALLOWED = (
    "common/spark_versions.py",
    "connectors/spark.py",
    "driver/spark_daemon.py",
)
# the JVM behind a context or frame, and what makes one; private ones of others have other names
PRIVATE_PYSPARK = {
    "_active_spark_context",
    "_ensure_initialized",
    "_gateway",
    "_jc",
    "_jdf",
    "_jrdd",
    "_jsc",
    "_jsparkSession",
    "_jvm",
}
# moved, or with other parameters, between 3.5 and 4.3
MOVED_PYSPARK = (
    "pyspark.daemon",
    "pyspark.rdd",
    "pyspark.sql.classic",
    "pyspark.sql.datasource_internal",
    "pyspark.sql.pandas",
    "pyspark.util",
    "pyspark.worker",
)
# imported inside functions: slow to import and needed by few
LAZY = {
    "pyarrow",
    "pandas",
    "matplotlib",
    "pyspark",
    "IPython",
    "sqlalchemy",
    "confluent_kafka",
    "psycopg",
    "fsspec",
    "deltalake",
    "pyiceberg",
    "moto",
    "werkzeug",
}
DRIVER_LIBRARIES = {"redis", "kazoo"}
# the entry points parse arguments and read files, and tests run without Spark, before they import
# what brings Spark along
LAZY_WITHIN: dict[str, str | tuple[str, ...]] = {
    # the checks of doctor work where pyspark is not installed; a job is read and shown without the
    # clients of stores, which what submits needs
    "app": (
        "sparkstorm.driver.",
        "sparkstorm.driver.hosting.spark",
        "sparkstorm.client.submission",
    ),
    # what submits, writes savepoints, packs code or puts tuples back: who only looks starts without
    # it
    "client": (
        "sparkstorm.control_plane.blobs.",
        "sparkstorm.data_plane.checkpoint.",
        "sparkstorm.extensions.tracing.journey",
        "sparkstorm.client.savepoints",
        "sparkstorm.extensions.tracing.client_stacks",
        "sparkstorm.client.state_frames",
        "sparkstorm.client.submission",
        "sparkstorm.extensions.tracing.client_traces",
        "sparkstorm.control_plane.cluster.request_checks",
        "sparkstorm.data_plane.transport.frames",
        "sparkstorm.data_plane.transport.initial_state",
    ),
    "cli": ("sparkstorm.", "yaml"),
    "testing": "sparkstorm.replay",
    "web": "sparkstorm.web.otlp",
}
FILES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return a module's syntax tree; it is only read."""
    return ast.parse(path.read_text(encoding="utf-8"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imports_of(path: Path) -> tuple[tuple[str, bool, int], ...]:
    """Each imported module, whether only inside a function, and the line. Imports for type checking
    count as well. Kept, since five tests ask for those of each module.
    """
    return tuple(_imports_in(tree_of(path), path))


def _imports_in(tree: ast.Module, path: Path) -> Iterator[tuple[str, bool, int]]:
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in inner, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for module in modules_named_by(node, path):
                yield module, id(node) in inner, node.lineno


def modules_named_by(node: ast.ImportFrom, path: Path) -> list[str]:
    """`from sparkstorm import model` names sparkstorm.common.model; relative imports are made absolute."""
    base = node.module or ""
    if node.level:
        folder = path.parent
        for _ in range(node.level - 1):
            folder = folder.parent
        base = ".".join((*folder.relative_to(ROOT).parts, *([base] if base else [])))
    return [f"{base}.{alias.name}" for alias in node.names] if base == "sparkstorm" else [base]


def names_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_imports_are_seen_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "snippet.py"
    path.write_text(
        "import a.b as c\nfrom sparkstorm import model\ndef f():\n    if c:\n        from redis.retry import Retry\n"
    )
    assert [*imports_of(path)] == [
        ("a.b", False, 1),
        ("sparkstorm.common.model", False, 2),
        ("redis.retry", True, 5),
    ]
    relative = [
        ast.parse(text).body[0]
        for text in ("from ..errors import X", "from .base import Y", "from . import z")
    ]
    seen = [
        modules_named_by(node, PACKAGE / "cluster" / "local.py")
        for node in relative
        if isinstance(node, ast.ImportFrom)
    ]
    assert seen == [
        ["sparkstorm.common.errors"],
        ["sparkstorm.control_plane.cluster.base"],
        ["sparkstorm.control_plane.cluster"],
    ]


def test_every_part_of_the_package_is_looked_at() -> None:
    assert {"errors", "config", "model", "embedded", "scheduling", "stores"} <= {
        part_of(path) for path in FILES
    }


@pytest.mark.parametrize("path", FILES, ids=names_of)
def test_a_part_imports_only_itself_and_lower_ranks(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    assert part in RANK_BY_PART, f"{part} has no rank: give it one here and in docs/architecture.md"
    for module, _, line in imports_of(path):
        if not module.startswith("sparkstorm."):
            continue
        other = module.split(".")[1]
        if other in (part, "errors", "config", "__version__"):
            continue
        assert RANK_BY_PART[other] < RANK_BY_PART[part], (
            f"{names_of(path)}:{line}: {part} imports {other}, of no lower rank"
        )


def test_the_client_needs_neither_nimbus_nor_a_worker() -> None:
    """They are other processes: what both sides need of each other lies below both."""
    imported = {
        module for path in FILES if part_of(path) == "client" for module, _, _ in imports_of(path)
    }
    assert {
        each
        for each in imported
        if each.startswith(("sparkstorm.control_plane.nimbus", "sparkstorm.data_plane.worker"))
    } == set()


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if RANK_BY_PART.get(part_of(path), 9) <= LAST_PURE_RANK],
    ids=names_of,
)
def test_the_pure_ranks_read_no_clock_no_chance_and_no_outside(path: Path) -> None:
    allowed = EFFECTS_ALLOWED.get(names_of(path), set())
    for module, _, line in imports_of(path):
        top = module.split(".")[0]
        assert top not in EFFECTS - allowed, (
            f"{names_of(path)}:{line}: a pure rank imports {module}"
        )
        assert top != "time" or "time" in allowed, (
            f"{names_of(path)}:{line}: time is an argument here"
        )
        assert module != "sparkstorm.common.clock", (
            f"{names_of(path)}:{line}: pure ranks take now_ms, not a clock"
        )
    for call, line in outside_calls_of(path):
        assert call.split(".")[0] in allowed, f"{names_of(path)}:{line}: a pure rank calls {call}"


def outside_calls_of(path: Path) -> Iterator[tuple[str, int]]:
    """Calls that ask the machine for time or chance under any import."""
    asked = {
        "os.urandom",
        "uuid.uuid4",
        "uuid.uuid1",
        "os.getpid",
        "time.time",
        "time.time_ns",
        "time.monotonic",
    }
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in asked:
            yield ast.unparse(node.func), node.lineno


@pytest.mark.parametrize("path", FILES, ids=names_of)
def test_pyspark_is_imported_where_spark_is_spoken_and_nowhere_else(path: Path) -> None:
    if names_of(path).startswith(PYSPARK_ALLOWED):
        return
    for module, _, line in imports_of(path):
        assert module.split(".")[0] not in ("pyspark", "py4j"), (
            f"{names_of(path)}:{line}: imports {module}"
        )


def private_pyspark_of(tree: ast.Module, imported: Iterator[str]) -> list[str]:
    """Return what a module uses of PySpark that differs, or may differ, between its versions."""
    used = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_PYSPARK
    ]
    moved = [
        each
        for each in imported
        if each in MOVED_PYSPARK or each.startswith(tuple(f"{name}." for name in MOVED_PYSPARK))
    ]
    return sorted({*used, *moved})


def test_private_parts_of_pyspark_are_seen_in_every_form() -> None:
    text = "a = sc._jsc.sc()\nframe._jdf\nself._job\n"
    imported = iter(["pyspark.sql", "pyspark.sql.pandas.types", "pyspark.utility"])
    assert private_pyspark_of(ast.parse(text), imported) == [
        "_jdf",
        "_jsc",
        "pyspark.sql.pandas.types",
    ]


@pytest.mark.parametrize("path", FILES, ids=names_of)
def test_private_parts_of_pyspark_are_used_in_the_module_of_versions(path: Path) -> None:
    if names_of(path) in PRIVATE_PYSPARK_ALLOWED:
        return
    found = private_pyspark_of(tree_of(path), (module for module, _, _ in imports_of(path)))
    assert not found, f"{names_of(path)} uses {found}: put that into common/spark_versions.py"


@pytest.mark.parametrize("path", FILES, ids=names_of)
def test_imports_stand_at_the_top_unless_they_are_slow_and_rare(path: Path) -> None:
    rank = RANK_BY_PART.get(part_of(path), 9)
    allowed = LAZY | (DRIVER_LIBRARIES if rank >= 4 else set())
    lazy_within = LAZY_WITHIN.get(part_of(path), "nothing")
    for module, is_inner, line in imports_of(path):
        fine = not is_inner or module.split(".")[0] in allowed or module.startswith(lazy_within)
        assert fine, f"{names_of(path)}:{line}: {module} inside a function"


def own_imports(path: Path) -> Iterator[str]:
    """Modules of the package that one imports: at the top, inside functions, and for type checking,
    which are needs too.
    """
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in path_by_module())
        elif isinstance(node, ast.ImportFrom):
            for base in modules_named_by(node, path):
                names = [f"{base}.{alias.name}" for alias in node.names]
                yield from (name for name in names if name in path_by_module())
                if base in path_by_module() and not all(name in path_by_module() for name in names):
                    yield base


@functools.cache
def path_by_module() -> dict[str, Path]:
    """Return the package's modules by dotted name; an `__init__` has the name of its folder."""
    parts = ((path.relative_to(ROOT).with_suffix("").parts, path) for path in FILES)
    return {
        ".".join(names[:-1] if names[-1] == "__init__" else names): path for names, path in parts
    }


def cycles_among(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    reached: dict[str, set[str]] = {}
    for module in imports:
        found: set[str] = set()
        waiting = list(imports[module])
        while waiting:
            if (each := waiting.pop()) not in found:
                found.add(each)
                waiting += imports.get(each, ())
        reached[module] = found
    groups = {
        tuple(
            sorted({module, *(each for each in reached[module] if module in reached.get(each, ()))})
        )
        for module in imports
        if module in reached[module]
    }
    return [list(group) for group in sorted(groups)]


def test_cycles_are_found_through_any_number_of_modules() -> None:
    imports = {
        "a": {"b"},
        "b": {"c"},
        "c": {"a", "d"},
        "d": {"e"},
        "e": {"d"},
        "f": {"a"},
        "g": set(),
    }
    assert cycles_among({name: set(others) for name, others in imports.items()}) == [
        ["a", "b", "c"],
        ["d", "e"],
    ]


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports = {
        module: set(own_imports(path)) - {module} for module, path in path_by_module().items()
    }
    assert "sparkstorm.client.access" in imports["sparkstorm.client.handle"]
    assert "sparkstorm.cli.__main__" in imports["sparkstorm.cli"], "imports inside functions count"
    assert cycles_among(imports) == []


KEYS_READ_IN = (
    "config.py",
    "settings.py",
    "control_plane/scheduling/settings.py",
    "common/windowing/settings.py",  # shapes of windows depend on which keys are set
    "scheduling/form/",  # a problem's JSON
    "scheduling/jstorm/",  # a problem in JStorm's form, in which flags and numbers may be texts
)
# raw values that are checked before anything may read them, and a key that is refused
KEYS_CHECKED_IN = {
    "common/model/normalise.py",
    "common/model/shared_memory.py",
    "control_plane/cluster/request_checks.py",
    "client/service.py",
    "extensions/insight/cluster_views.py",  # resources of a supervisor, which have the names of its keys
}
READERS = {"get", "pop", "text", "integer", "flag", "millis"}


def keys_read_by(path: Path) -> Iterator[tuple[str, int]]:
    """Configuration keys that a module takes out of a mapping by their names, or by constants that
    hold them.
    """
    tree = tree_of(path)
    for node in ast.walk(tree):
        place: ast.expr | None = None
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in READERS
            and node.args
        ):
            place = node.args[0]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            place = node.slice
        if (
            isinstance(place, ast.Constant)
            and isinstance(place.value, str)
            and place.value in keys()
        ):
            yield place.value, node.lineno  # type: ignore[attr-defined]
        elif isinstance(place, ast.Name | ast.Attribute):
            name = place.id if isinstance(place, ast.Name) else place.attr
            if value := key_constants().get(name):
                yield value, node.lineno  # type: ignore[attr-defined]


@functools.cache
def key_constants() -> dict[str, str]:
    """Constants of all modules whose values are keys."""
    found = {}
    for path in FILES:
        for node in tree_of(path).body:
            target = (
                node.targets[0]
                if isinstance(node, ast.Assign)
                else node.target
                if isinstance(node, ast.AnnAssign)
                else None
            )
            value = getattr(node, "value", None)
            if (
                isinstance(target, ast.Name)
                and isinstance(value, ast.Constant)
                and value.value in keys()
            ):
                found[target.id] = str(value.value)
    return found


@pytest.mark.parametrize("path", FILES, ids=names_of)
def test_keys_are_read_by_typed_settings_and_nowhere_else(path: Path) -> None:
    if names_of(path).startswith(KEYS_READ_IN) or names_of(path) in KEYS_CHECKED_IN:
        return
    for key, line in keys_read_by(path):
        raise AssertionError(
            f"{names_of(path)}:{line} reads {key} by its name: add it to a record of settings.py"
        )


@pytest.mark.parametrize("path", FILES, ids=names_of)
def test_a_module_says_what_it_owns_and_stays_readable(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(tree_of(path)), f"{names_of(path)} has no docstring"
    assert len(text.splitlines()) <= 600, f"{names_of(path)} has more than 600 lines"


def test_no_folder_holds_more_than_twenty_modules() -> None:
    counts = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert {names_of(folder): count for folder, count in counts.items() if count > 20} == {}


@pytest.mark.parametrize("path", FILES, ids=names_of)
def test_no_function_is_longer_than_fifty_lines(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.end_lineno is not None
        ):
            length = node.end_lineno - node.lineno + 1
            assert length <= 60, f"{names_of(path)}:{node.lineno}: {node.name} has {length} lines"
