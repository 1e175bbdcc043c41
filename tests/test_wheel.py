"""Installed from the wheel and the sdist, where the checkout cannot be seen: every module, and each
way of running a topology.
"""

from __future__ import annotations

import email.message
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from sparkstorm.extensions.embedded.process import free_port
from tests.installed import (
    ROOT,
    Installed,
    build,
    copy_sources,
    environment,
    install,
    link_packages,
    required,
    sources,
)
from tests.tutorial import INSTALLS, follow
from tests.waiting import wait_until

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
IMPORTS = """
import importlib, json, pkgutil, sys
import sparkstorm

names = ["sparkstorm", *(each.name for each in pkgutil.walk_packages(sparkstorm.__path__, "sparkstorm."))]
places, failures = {}, {}
for name in names:
    if name != "sparkstorm.extensions.embedded.__main__":  # runs when it is imported
        try:
            places[name] = importlib.import_module(name).__file__
        except Exception as error:
            failures[name] = repr(error)
print(json.dumps({"places": places, "failures": failures, "path": sys.path}))
"""


HOME = "https://code.example/storm/sparkstorm"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, and the wheel made from it, of the files that a clone has, as a release has them."""
    tree, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    return build(tree, out, {"SPARKSTORM_URL": HOME})


@pytest.fixture(scope="module")
def installs(
    distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Installed]:
    """Installs the wheel or the sdist, once, with what it requires and no extra."""

    @cache
    def installed_from(kind: str) -> Installed:
        home = tmp_path_factory.mktemp(kind) / "home"
        return install(distributions[kind], home, "sparkstorm")

    return installed_from


@pytest.fixture(scope="module", params=["wheel", pytest.param("sdist", marks=pytest.mark.nightly)])
def each_kind(request: pytest.FixtureRequest, installs: Callable[[str], Installed]) -> Installed:
    """The wheel, then the sdist."""
    return installs(request.param)


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


@pytest.mark.nightly
@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package_and_no_other(
    distributions: dict[str, Path],
) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        # auditwheel lists folders too
        files = [name for name in wheel.namelist() if not name.endswith("/")]
    held = {name for name in files if not re.match(r"sparkstorm-[^/]+\.dist-info/", name)}
    is_pure = distributions["wheel"].name.endswith("-any.whl")
    # where there is a compiler, auditwheel has found on which systems it runs
    assert is_pure or sys.platform != "linux" or "manylinux" in distributions["wheel"].name
    compiled = {
        name for name in held if re.fullmatch(r"sparkstorm/common/model/_core\.[^/]+\.so", name)
    }
    # the plan of the folders is for readers of the sources
    wanted = {name for name in sources() if name.startswith("sparkstorm/")}
    wanted.remove("sparkstorm/README.md")
    assert held - compiled == {
        name for name in wanted if not re.fullmatch(r"sparkstorm/common/model/_\w+\.c", name)
    }


def test_the_sdist_that_is_built_with_the_pure_wheel_has_the_cores_sources(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    copy_sources(tree)
    command = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path)]
    variables = {**os.environ, "SPARKSTORM_CORE": "none"}
    subprocess.run(command, cwd=tree, env=variables, capture_output=True, check=True, timeout=120)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as held:
        names = {Path(name).name for name in held.getnames() if name.endswith(".c")}
    assert names == {path.name for path in (ROOT / "sparkstorm").rglob("*.c")}


def metadata_of(wheel: Path) -> email.message.Message:
    """Return the metadata of a wheel; its payload is the page of the index."""
    with zipfile.ZipFile(wheel) as held:
        (name,) = [entry for entry in held.namelist() if entry.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(held.read(name))


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


@pytest.mark.nightly
@pytest.mark.slow
def test_the_pure_wheel_installs_everywhere_and_has_the_twins_alone(
    distributions: dict[str, Path], tmp_path: Path
) -> None:
    done = wheel_without_compiler(distributions["sdist"], tmp_path, "none")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    # built without the address of a repository
    page = str(metadata_of(wheel).get_payload())
    assert re.findall(r"\]\([^)]+\)", page) == [] and "!Web UI" not in page
    made = install(wheel, tmp_path / "home", "sparkstorm")
    said = made.say(
        "python",
        "-c",
        "from sparkstorm.common.model import compiled; print(compiled.description)",
        folder=tmp_path,
    )
    assert said.startswith("plain Python (the compiled core was not built")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_release_s_wheel_is_not_built_without_a_compiler(
    distributions: dict[str, Path], tmp_path: Path
) -> None:
    done = wheel_without_compiler(distributions["sdist"], tmp_path, "required")
    assert done.returncode != 0 and "no-compiler-here" in done.stdout + done.stderr
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.nightly
@pytest.mark.slow
def test_the_index_s_page_leads_to_files_that_the_tag_has(distributions: dict[str, Path]) -> None:
    metadata = metadata_of(distributions["wheel"])
    links = re.findall(r"\]\(([^)\s]+)\)", str(metadata.get_payload()))
    urls = [url.partition(", ")[2] for url in metadata.get_all("Project-URL", [])]
    place = re.compile(rf"{re.escape(HOME)}/(blob|raw)/v{metadata['Version']}/")
    assert len(links) > 20 and len(urls) == 5
    named = [url for url in [*links, *urls] if url not in (HOME, f"{HOME}/issues")]
    assert [url for url in named if not place.match(url)] == []
    pictures = [url for url in named if url.endswith((".png", ".svg"))]
    assert len(pictures) == 2 and all("/raw/" in url for url in pictures)  # one of light and dark
    paths = {place.sub("", url).partition("#")[0] for url in named}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


@pytest.mark.nightly
@pytest.mark.slow
def test_the_cores_own_tests_and_those_of_a_new_project_pass_where_it_is_installed(
    each_kind: Installed, tmp_path: Path
) -> None:
    has_core = bool(list(each_kind.packages.glob("sparkstorm/common/model/_core.*.so")))
    tools = tmp_path / "tools"
    tools.mkdir()
    link_packages(required("pytest") | required("hypothesis"), tools)
    more = {"PYTHONPATH": str(tools)}
    pytest_ = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    each_kind.say("sparkstorm", "init", "words", folder=tmp_path)
    assert "2 passed" in each_kind.say(*pytest_, folder=tmp_path / "words", more=more)
    if not has_core:
        pytest.skip("no C compiler or no Python headers on this machine")
    test = "tests/executor/test_compiled.py"
    for name in (test, "tests/tiers.py", "tests/transport/values.py"):
        own = tmp_path / name
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_bytes((ROOT / name).read_bytes())
    options = ("--rootdir", str(tmp_path), "--import-mode=importlib", "-k", "not says_its_version")
    said = each_kind.say(*pytest_, *options, test, folder=tmp_path, more=more)
    assert "passed" in said and "skipped" not in said


@pytest.mark.slow
def test_every_module_is_imported_with_the_required_packages_alone(
    each_kind: Installed, tmp_path: Path
) -> None:
    report = json.loads(each_kind.say("python", "-c", IMPORTS, folder=tmp_path))
    # anyio comes with starlette, rich with textual
    of_extras = re.compile("No module named '(starlette|uvicorn|anyio|textual|rich|opentelemetry)'")
    needs_extra = {name for name, error in report["failures"].items() if of_extras.search(error)}
    extra_prefixes = ("sparkstorm.web.", "sparkstorm.cli.top")
    assert report["failures"].keys() == needs_extra
    assert all(name.startswith(extra_prefixes) for name in needs_extra)
    assert not [
        path for path in report["path"] if Path(path or tmp_path).resolve().is_relative_to(ROOT)
    ]
    assert {
        name
        for name, location in report["places"].items()
        if not Path(location).is_relative_to(each_kind.packages)
    } == set()
    modules = {
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for name in sources()
        if name.endswith(".py")
    }
    wanted = {name for name in modules if name.split(".")[0] == "sparkstorm"} - {
        "sparkstorm.extensions.embedded.__main__"
    }
    assert wanted - needs_extra <= report["places"].keys()


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.slow
def test_a_back_fill_that_goes_on_live_runs_from_the_wheel(
    installs: Callable[[str], Installed], work: Path
) -> None:
    installed = installs("wheel")
    history = ["--checkpoint", "half", "--rows", "lines=1", "--output", "history"]
    said = installed.say(
        "sparkstorm", "replay", "shout.yaml", "--input", "text", *history, folder=work
    )
    assert "half is written" in said
    words = ("run", "shout.yaml", "--input", "text", "--from", "half")
    said = installed.say("sparkstorm", *words, folder=work)
    assert "2  TWO" in said and "1  ONE" in said and "1 tree acked" in said


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.slow
def test_the_tutorial_ends_with_equal_answers_and_its_page_is_served_from_the_wheel(
    distributions: dict[str, Path], tmp_path: Path
) -> None:
    # what the installing commands make, but that packages are links to those of this environment
    made = install(distributions["wheel"], tmp_path / ".venv", "sparkstorm[all]", "pytest")
    pages: list[tuple[str, str]] = []
    follow(
        ["bash"],
        tmp_path,
        environ=environment(made.home, {}),
        left_out=INSTALLS,
        dev_options=f"--web {free_port()}",
        when_up=lambda said: pages.append(open_page(said)),
    )
    ((page, script),) = pages
    assert "<title>" in page and "uPlot" in script


def open_page(said: str) -> tuple[str, str]:
    """Open the page's address that a cluster has printed, as a browser does, once it is served;
    return the page and one of its vendored scripts.
    """
    match = re.search(r"(http://127\.0\.0\.1:\d+/)\?token=\S+", said)
    assert match, said
    browser = build_opener(HTTPCookieProcessor())

    def read(address: str) -> str:
        with browser.open(address, timeout=30) as answer:
            return str(answer.read().decode())

    wait_until(lambda: is_listening(urlsplit(match.group(0)).port), "the page is served")
    return read(match.group(0)), read(match.group(1) + "static/vendor/uplot.js")


def is_listening(port: int | None) -> bool:
    """Return whether a server takes connections at a port of this host."""
    try:
        socket.create_connection(("127.0.0.1", port or 0), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.nightly
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
    assert 'Argument 1 to "connect" has incompatible type "int"' in ended.stdout
    assert "py.typed" not in ended.stdout
