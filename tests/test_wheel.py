"""Installed from the wheel and the sdist, where the checkout cannot be seen: every module, and each
way of running a topology.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from sparkstorm.embedded import RedisServer
from sparkstorm.embedded.process import free_port
from tests.installed import ROOT, Installed, build, environment, install, sources

SHOUT = """
from words_beside import loud
from sparkstorm.api import TopologyBuilder, bolt
from sparkstorm.connectors import FileLines, find_files

@bolt("word")
def shout(tup):
    for word in tup["line"].split():
        yield loud(word)

@bolt(key="word")
def count(tup, state):
    state.add(tup["word"], 1)

def build(input=("text",)):
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(find_files(input)))
    builder.set_bolt("shout", shout, inputs="lines")
    builder.set_bolt("count", count, inputs="shout")
    return builder.build()
"""
SHOUT_JOB = "name: shout\ntopology: shout:build\nresults: {component: count, top: 2}\n"
SINKS = """
from sparkstorm.api import TopologyBuilder, bolt
from sparkstorm.connectors import DeltaSink, Files, FileSink, IcebergSink, RedisSink, SqlSink

COLUMNS = "n bigint, version bigint"

@bolt({"n": "bigint", "version": "bigint"})
def parse(tup):
    n = int(tup["line"])
    12 / (n - 13)
    yield n, VERSION

def build(folder, redis):
    builder = TopologyBuilder()
    builder.set_spout("lines", Files(f"{folder}/in/*.txt", "lines", follow=True))
    builder.set_bolt("parse", parse, inputs="lines")
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/iceberg"}
    sinks = {
        "parquet": FileSink(f"{folder}/parquet", schema=COLUMNS, flush_secs=0),
        "json": FileSink(f"{folder}/json", "json", flush_secs=0),
        "sql": SqlSink(f"sqlite:///{folder}/rows.db", "rows"),
        "delta": DeltaSink(f"{folder}/delta", COLUMNS, flush_secs=0),
        "iceberg": IcebergSink("db.rows", COLUMNS, properties=catalog, flush_secs=0),
        "redis": RedisSink(redis, "rows", password_env="ROWS_PASSWORD"),
    }
    for name, sink in sinks.items():
        builder.set_bolt(name, sink, inputs="parse")
    return builder.build()
"""
SINKS_JOB = """
name: sinks
topology: {module}:build
arguments: {{folder: {folder}, redis: "redis://127.0.0.1:{port}"}}
topology.max.retries: 1
"""
IMPORTS = """
import importlib, json, pkgutil, sys
import sparkstorm

names = ["sparkstorm", *(each.name for each in pkgutil.walk_packages(sparkstorm.__path__, "sparkstorm."))]
places, failures = {}, {}
for name in names:
    if name != "sparkstorm.embedded.__main__":  # runs when it is imported
        try:
            places[name] = importlib.import_module(name).__file__
        except Exception as error:
            failures[name] = repr(error)
print(json.dumps({"places": places, "failures": failures, "path": sys.path}))
"""
READ_TARGETS = """
import json, sqlite3, sys
import pyarrow.parquet
from deltalake import DeltaTable
from pathlib import Path
from pyiceberg.catalog import load_catalog

folder = Path(sys.argv[1])
catalog = load_catalog("default", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/iceberg")
files = sorted(folder.glob("parquet/*.parquet"))
found = {
    "parquet": [row for path in files for row in pyarrow.parquet.read_table(path).to_pylist()],
    "json": [json.loads(line) for path in sorted(folder.glob("json/*.jsonl")) for line in path.open()],
    "sql": [{"n": n, "version": v} for n, v in sqlite3.connect(folder / "rows.db").execute("SELECT n, version FROM rows")],
    "delta": DeltaTable(str(folder / "delta")).to_pyarrow_table().to_pylist(),
    "iceberg": catalog.load_table("db.rows").scan().to_arrow().to_pylist(),
}
print(json.dumps({name: sorted((row["n"], row["version"]) for row in rows) for name, rows in found.items()}))
"""
REPLAY = """
from pyspark.sql import SparkSession
from shout import build
from sparkstorm.replay import replay, replay_locally
from sparkstorm.testing import complete_topology

assert complete_topology(build(["text"]), {"lines": [["a b a"]]}).state("count") == {"A": 2, "B": 1}
assert replay_locally(build(), {"lines": [["a b a"]]}).states["count"] == {"A": 2, "B": 1}
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = replay(build(), {"lines": spark.read.text("text").withColumnRenamed("value", "line")}).state("count").collect()
print(sorted((row["key"], row["value"]) for row in rows))
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel made from it, of the files that a clone has."""
    return build(tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(
    distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """The wheel with its extras for sinks and the page, and pytest."""
    return install(
        distributions["wheel"],
        tmp_path_factory.mktemp("wheel") / "home",
        "sparkstorm[sql,delta,iceberg,web]",
        "pytest",
    )


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A project of a user's, elsewhere."""
    (tmp_path / "shout.py").write_text(SHOUT)
    (tmp_path / "words_beside.py").write_text("def loud(word):\n    return word.upper()\n")
    (tmp_path / "shout.yaml").write_text(SHOUT_JOB)
    (tmp_path / "text").write_text("one two\ntwo\n")
    return tmp_path


def test_every_folder_with_modules_is_a_package_and_no_module_is_ignored_by_git() -> None:
    folders = {path.parent for path in (ROOT / "sparkstorm").rglob("*.py")}
    assert [
        str(folder.relative_to(ROOT))
        for folder in sorted(folders)
        if not (folder / "__init__.py").is_file()
    ] == []
    names = [
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (folder / "__init__.py", folder / "new.py")
    ]
    ignored = subprocess.run(
        ["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ignored.returncode, ignored.stdout) == (1, "")
    # names of folders at the root that a package may have too
    packages = ("results", "build", "dist")
    names = [f"sparkstorm/{name}/__init__.py" for name in packages]
    assert (
        subprocess.run(
            ["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout
        == ""
    )


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_no_other(
    distributions: dict[str, Path],
) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        held = {
            name for name in wheel.namelist() if not re.match(r"sparkstorm-[^/]+\.dist-info/", name)
        }
    # where there is a compiler
    compiled = {name for name in held if re.fullmatch(r"sparkstorm/model/_core\.[^/]+\.so", name)}
    wanted = {name for name in sources() if name.startswith("sparkstorm/")}
    assert held - compiled == {
        name for name in wanted if not re.fullmatch(r"sparkstorm/model/_\w+\.c", name)
    }


def wheel_without_compiler(
    sdist: Path, folder: Path, core: str
) -> subprocess.CompletedProcess[str]:
    """Build a wheel of the sdist into a folder on a machine that has no compiler; `core` is
    SPARKSTORM_CORE.
    """
    return subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(sdist)],
        cwd=folder,
        env={**os.environ, "SPARKSTORM_CORE": core, "CC": "no-compiler-here"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_the_pure_wheel_installs_everywhere_and_has_the_twins_alone(
    distributions: dict[str, Path], tmp_path: Path
) -> None:
    done = wheel_without_compiler(distributions["sdist"], tmp_path, "none")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    made = install(wheel, tmp_path / "home", "sparkstorm")
    said = made.say(
        "python",
        "-c",
        "from sparkstorm.model import compiled; print(compiled.description)",
        folder=tmp_path,
    )
    assert said.startswith("plain Python (the compiled core was not built")


@pytest.mark.slow
def test_a_release_s_wheel_is_not_built_without_a_compiler(
    distributions: dict[str, Path], tmp_path: Path
) -> None:
    done = wheel_without_compiler(distributions["sdist"], tmp_path, "required")
    assert done.returncode != 0 and "no-compiler-here" in done.stdout + done.stderr
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.slow
def test_the_cores_own_tests_pass_against_the_installed_wheel(
    distributions: dict[str, Path], tmp_path: Path
) -> None:
    made = install(distributions["wheel"], tmp_path / "home", "sparkstorm", "pytest", "hypothesis")
    if not list(made.packages.glob("sparkstorm/model/_core.*.so")):
        pytest.skip("no C compiler or no Python headers on this machine")
    (tmp_path / "tests" / "executor").mkdir(parents=True)
    (tmp_path / "tests" / "executor" / "test_compiled.py").write_bytes(
        (ROOT / "tests/executor/test_compiled.py").read_bytes()
    )
    chosen = ["-k", "not says_its_version"]
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        "--import-mode=importlib",
    ]
    said = made.say(
        "python",
        "-m",
        "pytest",
        *options,
        *chosen,
        "tests/executor/test_compiled.py",
        folder=tmp_path,
    )
    assert "passed" in said and "skipped" not in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_every_module_is_imported_with_the_required_packages_alone(
    kind: str, distributions: dict[str, Path], tmp_path: Path
) -> None:
    made = install(distributions[kind], tmp_path / "home", "sparkstorm")
    found = json.loads(made.say("python", "-c", IMPORTS, folder=tmp_path))
    # anyio comes with starlette, rich with textual
    of_extras = re.compile("No module named '(starlette|uvicorn|anyio|textual|rich|opentelemetry)'")
    needs_extra = {name for name, error in found["failures"].items() if of_extras.search(error)}
    known = ("sparkstorm.web.", "sparkstorm.cli.top")
    assert found["failures"].keys() == needs_extra and all(
        name.startswith(known) for name in needs_extra
    )
    assert not [
        path for path in found["path"] if Path(path or tmp_path).resolve().is_relative_to(ROOT)
    ]
    assert {
        name
        for name, place in found["places"].items()
        if not Path(place).is_relative_to(made.packages)
    } == set()
    modules = {
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for name in sources()
        if name.endswith(".py")
    }
    wanted = {name for name in modules if name.split(".")[0] == "sparkstorm"} - {
        "sparkstorm.embedded.__main__"
    }
    assert wanted - needs_extra <= found["places"].keys()


@pytest.mark.system
@pytest.mark.slow
def test_the_main_job_a_replay_and_a_back_fill_that_goes_on_live_run_from_the_wheel(
    installed: Installed, work: Path
) -> None:
    assert (
        installed.say("python", "-c", REPLAY, folder=work).splitlines()[-1]
        == "[('ONE', 1), ('TWO', 2)]"
    )
    found = installed.say("sparkstorm", "run", "shout.yaml", "--input", "text", folder=work)
    assert "2  TWO" in found and "1  ONE" in found
    history = ["--checkpoint", "half", "--rows", "lines=1", "--output", "history"]
    found = installed.say(
        "sparkstorm", "replay", "shout.yaml", "--input", "text", *history, folder=work
    )
    assert "half is written" in found
    found = installed.say(
        "sparkstorm",
        "run",
        "shout.yaml",
        "--input",
        "text",
        "--from",
        "half",
        "--fresh",
        folder=work,
    )
    assert "2  TWO" in found and "1  ONE" in found and "1 tree acked" in found


@pytest.fixture
def cluster(
    installed: Installed, work: Path, own_redis: RedisServer
) -> Iterator[subprocess.Popen[bytes]]:
    """A standing cluster of two slots; its output is in cluster.log."""
    command = [
        str(installed.home / "bin" / "sparkstorm"),
        "cluster",
        "--master",
        "local[3]",
        "-c",
        "sparkstorm.supervisors=1",
    ]
    command += ["--web", str(free_port())]
    with (work / "cluster.log").open("wb") as log:
        more = {"ROWS_PASSWORD": own_redis.password}
        process = subprocess.Popen(
            command, cwd=work, env=environment(installed.home, more), stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


@pytest.mark.system
@pytest.mark.slow
def test_a_standing_cluster_upgrades_mends_and_writes_to_every_sink_from_the_wheel(
    installed: Installed, work: Path, own_redis: RedisServer, cluster: subprocess.Popen[bytes]
) -> None:
    (work / "in").mkdir()
    (work / "in" / "first.txt").write_text("\n".join(map(str, range(20))) + "\n")
    with sqlite3.connect(work / "rows.db") as database:
        database.execute("CREATE TABLE rows (n INTEGER, version INTEGER)")
    database.close()
    for version in (1, 2):
        (work / f"sinks{version}.py").write_text(SINKS.replace("VERSION", str(version)))
        job = SINKS_JOB.format(module=f"sinks{version}", folder=work, port=own_redis.port)
        (work / f"sinks{version}.yaml").write_text(job)
    log = work / "cluster.log"
    wait(lambda: "Ctrl-C stops the cluster" in log.read_text(), log)
    connection = {"SPARKSTORM_CLUSTER": str(work / "storm-local" / "cluster" / "connection.json")}

    def sparkstorm(*words: str) -> str:
        return installed.say("sparkstorm", *words, folder=work, more=connection)

    def rows(version: int) -> dict[str, Any]:
        def count() -> int:
            with own_redis.client() as client:
                return int(client.xlen("rows"))

        first = [[n, 1] for n in range(20) if n != 13]
        wanted = [*first, *([[n, 2] for n in range(20, 30)] if version == 2 else [])]
        wait(lambda: count() == len(wanted), log)
        found: dict[str, Any] = {}

        def is_complete() -> bool:
            found.update(
                json.loads(installed.say("python", "-c", READ_TARGETS, str(work), folder=work))
            )
            return all(len(each) >= len(wanted) for each in found.values())

        wait(is_complete, log)
        assert found == dict.fromkeys(["parquet", "json", "sql", "delta", "iceberg"], wanted)
        return found

    sparkstorm("submit", "sinks1.yaml", "--detach")
    rows(1)
    read = page_of(log)
    assert "<title>" in read("") and "uPlot" in read("static/vendor/uplot.js")
    # without an open page the stores are read every 10 s
    wait(lambda: "sinks" in read("api/v1/topology/summary"), log)
    letter = json.loads(sparkstorm("dead-letters", "list", "sinks", "--lines"))
    sparkstorm("capsule", "sinks", letter["id"], "--pytest", "test_parse.py")
    test = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_parse.py"]
    assert "ZeroDivisionError: division by zero" in installed.say(
        "python", *test, folder=work, status=1
    )
    (work / "sinks1.py").write_text(SINKS.replace("VERSION", "1").replace("12 / (n - 13)", "pass"))
    installed.say("python", *test, folder=work)
    (work / "sinks1.py").write_text(SINKS.replace("VERSION", "1"))
    sparkstorm("upgrade", "start", "sinks2.yaml", "--num", "1")
    (work / "in" / "second.txt").write_text("\n".join(map(str, range(20, 30))) + "\n")
    rows(2)
    sparkstorm("kill", "sinks", "--wait", "0")
    wait(lambda: "no topologies" in (said := sparkstorm("list")) or "sinks" not in said, log)


def page_of(log: Path) -> Callable[[str], str]:
    """Open the page's address that a cluster printed, as a browser does; return a reader of its
    paths.
    """
    pattern = re.compile(r"(http://127\.0\.0\.1:\d+/)\?token=\S+")
    wait(lambda: pattern.search(log.read_text()), log)
    found = pattern.search(log.read_text())
    assert found
    browser = build_opener(HTTPCookieProcessor())

    def read(path: str) -> str:
        with browser.open(found.group(1) + path, timeout=30) as answer:
            return str(answer.read().decode())

    with browser.open(found.group(0), timeout=30):
        return read


def wait(condition: Any, log: Path) -> None:
    """Poll until something holds; AssertionError with the cluster's words after two minutes."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@pytest.mark.system
@pytest.mark.slow
def test_a_type_checker_sees_the_types_of_an_editable_install(tmp_path: Path) -> None:
    (tmp_path / "uses.py").write_text(
        "from sparkstorm.client import connect\nreveal_type(connect('x').topologies())\nconnect(7)\n"
    )
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "uses.py"]
    settings = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")
    }
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=settings,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert "list[sparkstorm.client.handle.TopologyHandle]" in ended.stdout, (
        ended.stdout + ended.stderr
    )
    assert (
        'Argument 1 to "connect" has incompatible type "int"' in ended.stdout
        and "py.typed" not in ended.stdout
    )
