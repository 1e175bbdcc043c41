"""Layers of the package: which part may import which, which effects the pure parts may not have,
and the border between the core and what is optional.

A part is a folder or module of `sparkstorm/`, or in a plane (common, data_plane, control_plane) one
of its folders or modules. A part imports itself and parts of lower layers. The core (common, api,
both planes, replay, client) imports nothing else: what is optional plugs in by
`common/extension_points.py`. The driver is above extensions: it puts the real parts together.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sparkstorm.common.config import keys
from tests.syntax import nodes_of, tree_of

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sparkstorm"
PLANES = {"common", "data_plane", "control_plane"}
# lowest first; parts of one layer do not import each other
LAYERS = (
    {"common.errors", "common.lazy_names"},
    {"common.config"},
    {"common.http_guard", "common.settings", "common.tls"},
    {"common.clock", "common.extension_points", "common.model"},
    {"common.grouping", "common.windowing", "common.slot_spec"},
    {"common.ports", "common.spark_versions", "common.stores"},
    {"api"},
    {"connectors", "streams", "streamparse"},
    {"compat"},
    {"data_plane.acking", "data_plane.transport", "data_plane.user_code"},
    {"data_plane.executor"},
    {"data_plane.checkpoint", "data_plane.task_kit"},
    {"data_plane.worker"},
    {"control_plane.scheduling"},
    {"control_plane.cluster"},
    {"control_plane.blobs"},
    {"control_plane.insight", "control_plane.nimbus", "control_plane.supervisor"},
    {"replay"},
    {"client"},
    {"extensions"},
    {"driver", "notebook"},
    {"testing", "web"},
    {"cli"},
)
LAYER_BY_PART = {part: number for number, parts in enumerate(LAYERS) for part in parts}
# the same for the entries of sparkstorm/, as docs/architecture.md numbers them
ENTRIES = tuple(dict.fromkeys(frozenset(part.split(".")[0] for part in parts) for parts in LAYERS))
# no clock, no randomness, no network: decisions that depend on their arguments alone
PURE = {
    *(part for parts in LAYERS[:5] for part in parts),
    "api",
    "data_plane.acking",
    "control_plane.scheduling",
}
PURE_MODULES = tuple(
    f"extensions/{name}"
    for name in (
        "autoscale/model.py",
        "autoscale/planning.py",
        "autoscale/reading.py",
        "laboratory/__init__.py",
        "laboratory/costs.py",
        "laboratory/events.py",
        "laboratory/form/",
        "laboratory/generator.py",
        "laboratory/network.py",
        "laboratory/optimum.py",
        "laboratory/plugged.py",
        "laboratory/results.py",
        "laboratory/scene.py",
        "upgrade/gray_upgrade.py",
        "upgrade/judgement.py",
        "upgrade/live_shadow.py",
    )
)
CORE = {"common", "api", "data_plane", "control_plane", "replay", "client"}
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
# the real clock; values may be dates; and what is drawn from a seed alone
EFFECTS_ALLOWED = {
    "common/clock.py": {"time"},
    "common/model/values/declared_values.py": {"datetime"},
    "common/model/values/keys.py": {"datetime"},
    "common/model/values/value_types.py": {"datetime"},
    "common/grouping/hashing.py": {"datetime"},
    "api/value_columns.py": {"datetime"},
    "extensions/laboratory/generator.py": {"random"},
    "extensions/laboratory/optimum.py": {"random"},
}
PYSPARK_ALLOWED = (
    "common/spark_versions.py",
    "compat/stateful_processor.py",
    "connectors/spark",
    "driver/",
    "replay/",
)
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
    "numpy",
    "pyarrow",
    "pandas",
    "matplotlib",
    "pyspark",
    "IPython",
    "sqlalchemy",
    "confluent_kafka",
    "fastavro",
    "google",
    "jsonschema",
    "referencing",
    "psycopg",
    "fsspec",
    "deltalake",
    "pyiceberg",
    "moto",
    "werkzeug",
}
DRIVER_LIBRARIES = {"redis", "kazoo"}
# modules of the package that another entry imports inside functions, since they bring something of
# those along, or an optional package; at most 25 such imports in all
MOST_LAZY = 25
LAZY_WITHIN: dict[str, str | tuple[str, ...]] = {
    # Spark: the checks of doctor work where it is not installed, and a job for another cluster
    # needs none
    "driver": (
        "sparkstorm.common.spark_versions",
        "sparkstorm.driver.hosting.spark",
        "sparkstorm.driver.own_cluster",
    ),
    # the API, numpy, all schedulers: who only looks starts without them
    "client": (
        "sparkstorm.client.looks.journey",
        "sparkstorm.client.state_frames",
        "sparkstorm.client.submission",
        "sparkstorm.control_plane.blobs.named_store",
        "sparkstorm.control_plane.cluster.request_checks",
        "sparkstorm.data_plane.checkpoint.restore",
        "sparkstorm.data_plane.transport.frames",
    ),
    # arrays, Spark, optional packages; what completes words and refuses Ctrl-C during imports
    "cli": (
        "sparkstorm.cli.__main__",
        "sparkstorm.cli.top",
        "sparkstorm.client",
        "sparkstorm.driver.machine_checks",
        "sparkstorm.extensions.laboratory",
        "sparkstorm.extensions.recording",
        "sparkstorm.web.serve",
        "yaml",
    ),
    "testing": "sparkstorm.replay",
    "web": "sparkstorm.web.otlp",
}
FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return part_named(".".join(path.relative_to(ROOT).with_suffix("").parts))


def part_named(module: str) -> str:
    """Return the part of a module by its dotted name; of a plane itself, its name."""
    names = module.removesuffix(".__init__").split(".")[1:]
    return ".".join(names[: 2 if names[:1] and names[0] in PLANES else 1])


@functools.cache
def imports_of(path: Path) -> tuple[tuple[str, bool, int], ...]:
    """Each imported module, whether only inside a function, and the line. Imports for type checking
    count as well. Kept, since five tests ask for those of each module.
    """
    return tuple(_imports_in(path))


def _imports_in(path: Path) -> Iterator[tuple[str, bool, int]]:
    inner = {
        id(node)
        for function in nodes_of(path)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    for node in nodes_of(path):
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
    names_parts = base in {"sparkstorm", *(f"sparkstorm.{plane}" for plane in PLANES)}
    return [f"{base}.{alias.name}" for alias in node.names] if names_parts else [base]


def names_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_imports_are_seen_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "snippet.py"
    path.write_text(
        "import a.b as c\nfrom sparkstorm.common import model\ndef f():\n    if c:\n        from redis.retry import Retry\n"
    )
    assert [*imports_of(path)] == [
        ("a.b", False, 1),
        ("sparkstorm.common.model", False, 2),
        ("redis.retry", True, 5),
    ]
    relative = [
        ast.parse(text).body[0]
        for text in ("from ...common.errors import X", "from .base import Y", "from . import z")
    ]
    seen = [
        modules_named_by(node, PACKAGE / "control_plane" / "cluster" / "local.py")
        for node in relative
        if isinstance(node, ast.ImportFrom)
    ]
    assert seen == [
        ["sparkstorm.common.errors"],
        ["sparkstorm.control_plane.cluster.base"],
        ["sparkstorm.control_plane.cluster"],
    ]


def test_every_part_of_the_package_is_looked_at() -> None:
    assert {part_of(path) for path in FILES} - {"", *PLANES} == set(LAYER_BY_PART)


def outside_of(path: Path) -> Iterator[tuple[str, int]]:
    """Return the other parts that a module imports, with the line."""
    for module, _, line in imports_of(path):
        if module.startswith("sparkstorm.") and module != "sparkstorm.__version__":
            other = part_named(module)
            if other != part_of(path):
                yield other, line


def test_a_part_imports_only_itself_and_lower_layers() -> None:
    for path in FILES:
        part = part_of(path)
        if part in PLANES | {""}:
            continue
        assert part in LAYER_BY_PART, f"{part} has no layer: give it one in LAYERS"
        for other, line in outside_of(path):
            if part.split(".")[0] in CORE and other.split(".")[0] not in CORE:
                continue  # the border's test
            assert LAYER_BY_PART[other] < LAYER_BY_PART[part], (
                f"{names_of(path)}:{line}: {part} imports {other}, of no lower layer"
            )


def test_the_core_imports_nothing_optional() -> None:
    """A feature plugs in at a point of `common/extension_points.py`, or by a protocol."""
    imports = {
        f"{module} -> {other}".replace("sparkstorm.", "")
        for module, path in path_by_module().items()
        if part_of(path).split(".")[0] in CORE
        for other in own_imports(path)
        if part_named(other).split(".")[0] not in CORE | {""}
    }
    assert imports == set()


def test_a_stranger_sees_at_most_sixteen_entries() -> None:
    entries = {path.relative_to(PACKAGE).parts[0] for path in FILES} - {"__init__.py"}
    assert len(entries) <= 16


def test_the_client_needs_neither_nimbus_nor_a_worker() -> None:
    """They are other processes: what both sides need of each other lies below both."""
    imported = {
        module for path in FILES if part_of(path) == "client" for module, _, _ in imports_of(path)
    }
    assert {
        module
        for module in imported
        if module.startswith(("sparkstorm.control_plane.nimbus", "sparkstorm.data_plane.worker"))
    } == set()


def test_the_pure_parts_read_no_clock_no_chance_and_no_outside() -> None:
    pure = [p for p in FILES if part_of(p) in PURE or names_of(p).startswith(PURE_MODULES)]
    for path in pure:
        allowed = EFFECTS_ALLOWED.get(names_of(path), set())
        for module, _, line in imports_of(path):
            where, top = f"{names_of(path)}:{line}", module.split(".")[0]
            assert top not in EFFECTS - allowed, f"{where}: a pure part imports {module}"
            assert top != "time" or "time" in allowed, f"{where}: time is an argument here"
            is_clock = module == "sparkstorm.common.clock"
            assert not is_clock, f"{where}: pure parts take now_ms, not a clock"
        for call, line in outside_calls_of(path):
            where = f"{names_of(path)}:{line}"
            assert call.split(".")[0] in allowed, f"{where}: a pure part calls {call}"


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
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in asked:
            yield ast.unparse(node.func), node.lineno


def test_pyspark_is_imported_where_spark_is_spoken_and_nowhere_else() -> None:
    offenders = [
        f"{names_of(path)}:{line}: {module}"
        for path in FILES
        if not names_of(path).startswith(PYSPARK_ALLOWED)
        for module, _, line in imports_of(path)
        if module.split(".")[0] in ("pyspark", "py4j")
    ]
    assert offenders == []


def private_pyspark_of(nodes: Iterable[ast.AST], imported: Iterator[str]) -> list[str]:
    """Return what a module uses of PySpark that differs, or may differ, between its versions."""
    used = [
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_PYSPARK
    ]
    moved = [
        module
        for module in imported
        if module in MOVED_PYSPARK or module.startswith(tuple(f"{name}." for name in MOVED_PYSPARK))
    ]
    return sorted({*used, *moved})


def test_private_parts_of_pyspark_are_seen_in_every_form() -> None:
    text = "a = sc._jsc.sc()\nframe._jdf\nself._job\n"
    imported = iter(["pyspark.sql", "pyspark.sql.pandas.types", "pyspark.utility"])
    result = private_pyspark_of(ast.walk(ast.parse(text)), imported)
    assert result == ["_jdf", "_jsc", "pyspark.sql.pandas.types"]


def test_private_parts_of_pyspark_are_used_in_the_module_of_versions() -> None:
    for path in FILES:
        if names_of(path) not in PRIVATE_PYSPARK_ALLOWED:
            imported = (module for module, _, _ in imports_of(path))
            private_names = private_pyspark_of(nodes_of(path), imported)
            assert not private_names, (
                f"{names_of(path)} uses {private_names}: put that into common/spark_versions.py"
            )


def test_imports_stand_at_the_top_unless_they_are_slow_and_rare() -> None:
    for path in FILES:
        allowed = LAZY | (DRIVER_LIBRARIES if part_of(path) not in PURE else set())
        lazy_within = LAZY_WITHIN.get(names_of(path).split("/")[0], "nothing")
        for module, is_inner, line in imports_of(path):
            fine = not is_inner or module.split(".")[0] in allowed or module.startswith(lazy_within)
            assert fine, f"{names_of(path)}:{line}: {module} inside a function"


def test_few_modules_of_the_package_are_imported_inside_functions() -> None:
    lazy = [
        f"{names_of(path)}:{line}: {module}"
        for path in FILES
        for module, is_inner, line in imports_of(path)
        if is_inner and module.startswith("sparkstorm.")
    ]
    assert len(lazy) <= MOST_LAZY, lazy


@functools.cache
def own_imports(path: Path) -> tuple[str, ...]:
    """Modules of the package that one imports: at the top, inside functions, and for type checking,
    which are needs too.
    """
    return tuple(_own_imports_in(path))


def _own_imports_in(path: Path) -> Iterator[str]:
    for node in nodes_of(path):
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
        seen: set[str] = set()
        waiting = list(imports[module])
        while waiting:
            if (name := waiting.pop()) not in seen:
                seen.add(name)
                waiting += imports.get(name, ())
        reached[module] = seen
    groups = {
        tuple(
            sorted(
                {module, *(other for other in reached[module] if module in reached.get(other, ()))}
            )
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
    result = cycles_among({name: set(others) for name, others in imports.items()})
    assert result == [["a", "b", "c"], ["d", "e"]]


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports = {
        module: set(own_imports(path)) - {module} for module, path in path_by_module().items()
    }
    assert "sparkstorm.client.access" in imports["sparkstorm.client.handle"]
    assert "sparkstorm.cli.__main__" in imports["sparkstorm.cli"], "imports inside functions count"
    assert cycles_among(imports) == []


KEYS_READ_IN = (
    "common/config.py",
    "common/settings.py",
    "control_plane/scheduling/settings.py",
    "common/windowing/settings.py",  # shapes of windows depend on which keys are set
    "extensions/laboratory/form/",  # a problem's JSON
    "control_plane/scheduling/jstorm/",  # a problem in JStorm's form, in which flags and numbers may be texts
)
# raw values that are checked before anything may read them, and a key that is refused
KEYS_CHECKED_IN = {
    "common/model/normalise.py",
    "common/model/shared_memory.py",
    "control_plane/cluster/request_checks.py",
    "client/service.py",
    "control_plane/insight/cluster_views.py",  # resources of a supervisor, which have the names of its keys
}
READERS = {"get", "pop", "text", "integer", "flag", "millis"}


def keys_read_by(path: Path) -> Iterator[tuple[str, int]]:
    """Configuration keys that a module takes out of a mapping by their names, or by constants that
    hold them.
    """
    for node in nodes_of(path):
        argument: ast.expr | None = None
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in READERS
            and node.args
        ):
            argument = node.args[0]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            argument = node.slice
        if (
            isinstance(argument, ast.Constant)
            and isinstance(argument.value, str)
            and argument.value in keys()
        ):
            yield argument.value, node.lineno  # type: ignore[attr-defined]
        elif isinstance(argument, ast.Name | ast.Attribute):
            name = argument.id if isinstance(argument, ast.Name) else argument.attr
            if value := key_constants().get(name):
                yield value, node.lineno  # type: ignore[attr-defined]


@functools.cache
def key_constants() -> dict[str, str]:
    """Constants of all modules whose values are keys."""
    key_by_constant = {}
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
                key_by_constant[target.id] = str(value.value)
    return key_by_constant


def test_keys_are_read_by_typed_settings_and_nowhere_else() -> None:
    offenders = [
        f"{names_of(path)}:{line} reads {key} by its name: add it to a record of settings.py"
        for path in FILES
        if not names_of(path).startswith(KEYS_READ_IN) and names_of(path) not in KEYS_CHECKED_IN
        for key, line in keys_read_by(path)
    ]
    assert offenders == []


def test_a_module_says_what_it_owns_and_stays_readable() -> None:
    for path in FILES:
        assert ast.get_docstring(tree_of(path)), f"{names_of(path)} has no docstring"
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 600, f"{names_of(path)} has more than 600 lines"


def test_no_folder_holds_more_than_twenty_modules() -> None:
    counts = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert {names_of(folder): count for folder, count in counts.items() if count > 20} == {}


def test_no_function_is_longer_than_fifty_lines() -> None:
    functions = [
        (path, node)
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    for path, node in functions:
        assert node.end_lineno is not None
        length = node.end_lineno - node.lineno + 1
        assert length <= 60, f"{names_of(path)}:{node.lineno}: {node.name} has {length} lines"
