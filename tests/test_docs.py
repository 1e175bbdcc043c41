"""Documents against the code: keys, dependencies, links, and examples that run and import public modules only."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest
from packaging.requirements import Requirement

import sparkstorm.api
import sparkstorm.testing
from sparkstorm.app.job_file import make_topology, read_job_file
from sparkstorm.cluster import paths

ROOT = Path(__file__).parents[1]
KEYS = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
_NAMED_IN_LUA = re.compile(r"p \.\. ':(\w+)")
_NAMED_IN_PYTHON = re.compile(r'\b_?k(?:eys)?\("(\w+)"|\{self\.prefix\}:(\w+)')


def _rows(part: str) -> list[str]:
    """Return the first column of a part's table."""
    return re.findall(r"^\| `([^`]+)` \|", KEYS.partition(f"## {part}\n")[2].partition("\n## ")[0], re.MULTILINE)


def test_every_zookeeper_path_is_listed_and_every_listed_one_is_used() -> None:
    used = {value.lstrip("/") for name, value in vars(paths).items() if name.isupper()}
    listed = {re.sub(r"/[<{].*", "", row) for row in _rows("ZooKeeper")}
    assert listed == used


def test_every_redis_key_is_listed_and_every_listed_one_is_used() -> None:
    folder = ROOT / "sparkstorm" / "transport"
    used = {name for file in folder.glob("*.lua") for name in _NAMED_IN_LUA.findall(file.read_text(encoding="utf-8"))}
    for file in folder.glob("*.py"):
        used |= {name for found in _NAMED_IN_PYTHON.findall(file.read_text(encoding="utf-8")) for name in found if name}
    listed = {row.removeprefix("{p}:").partition(":")[0] for row in _rows("Redis") if row.startswith("{p}:")}
    assert listed == used


def _name(requirement: str) -> str:
    """Return a requirement's name with its extras, as docs/dependencies.md lists it."""
    found = Requirement(requirement)
    return found.name + (f"[{','.join(sorted(found.extras))}]" if found.extras else "")


def test_every_dependency_is_pinned_for_ci_within_the_range_that_users_may_have() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = [*setup["options"]["install_requires"].split("\n")]
    lines += [line for extra in setup["options.extras_require"].values() for line in extra.split("\n")]
    wanted = {each.name: each for each in map(Requirement, filter(None, lines))}
    pinned = dict(
        line.split("==")
        for line in (ROOT / "requirements.lock").read_text("utf-8").split("\n")
        if line and not line.startswith("#")
    )
    assert pinned.keys() == wanted.keys()
    assert [name for name, version in pinned.items() if not wanted[name].specifier.contains(version)] == []


def test_every_dependency_is_argued_and_every_argued_one_is_there() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    core, extras = text.partition("## Extras")[::2]
    declared = {_name(line) for line in setup["options"]["install_requires"].split("\n") if line}
    assert {*re.findall(r"^\| ([a-zA-Z]+) \|", core, re.MULTILINE)} - {"package"} == declared
    wanted = {
        (extra, _name(line)) for extra, lines in setup["options.extras_require"].items() for line in lines.split("\n") if line
    }
    rows = re.findall(r"^\| (\w+) \| ([][\w, -]+) \|", extras, re.MULTILINE)
    assert {(extra, name) for extra, names in rows for name in names.split(", ")} - {("extra", "package")} == wanted


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_named_files_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    missing = [link for link in links if link and not (document.parent / link).exists()]
    named = re.findall(r"`((?:docs|conf|jobs|notebooks|tests|benchmarks|sparkstorm)/[\w./-]+\.\w+)`", text)
    missing += [name for name in named if not (ROOT / name).exists()]
    assert missing == []


def test_every_attack_on_the_design_is_answered_by_tests_that_exist() -> None:
    text = (ROOT / "docs" / "design-findings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .* \| ([^|]+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 30))
    missing = []
    for number, cell in rows:
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", cell)
        assert named, number
        missing += [f"{file}::{test}" for file, test in named if f"def {test}(" not in _text(ROOT / "tests" / file)]
    assert missing == []


@pytest.mark.slow
def test_the_readmes_first_bolt_is_a_job_and_passes_its_test(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("### Your first bolt")[2]
    blocks = dict(re.findall(r"(shout\.py|shout\.yaml|test_shout\.py)`?[^`]*```\w+\n(.*?)```", text, re.DOTALL))
    for name, block in blocks.items():
        (tmp_path / name).write_text(block, encoding="utf-8")
    job = read_job_file(str(tmp_path / "shout.yaml"))
    topology, _ = make_topology(job)
    assert job.results[0].component in topology.components and sorted(blocks) == ["shout.py", "shout.yaml", "test_shout.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shout.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def _blocks(document: Path) -> list[tuple[int, str]]:
    """Line and text of every Python example."""
    text = document.read_text(encoding="utf-8")
    found = re.finditer(r"```python\n(.*?)```", text, re.DOTALL)
    return [(text[: block.start(1)].count("\n") + 1, block.group(1)) for block in found]


@pytest.mark.parametrize(("name", "tests"), [("api", 8), ("connectors", 1)])
def test_every_example_of_a_page_runs_and_its_tests_pass(name: str, tests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / f"{name}.md"
    module = ModuleType(f"{name}_page")
    monkeypatch.setitem(sys.modules, f"{name}_page", module)  # where what is pickled by its name is found
    passed = []
    for line, block in _blocks(page):
        before = set(vars(module))
        exec(compile("\n" * (line - 1) + block, str(page), "exec"), vars(module))
        for name in [name for name in vars(module) if name.startswith("test_") and name not in before]:
            vars(module)[name]()
            passed.append(name)
    for name, made in list(vars(module).items()):
        if isinstance(made, sparkstorm.api.ReplayableSpout | sparkstorm.api.Spout | sparkstorm.api.TransactionalSink):
            assert cloudpickle.dumps(made), name  # it can be submitted
    assert len(passed) == len(re.findall(r"^def test_", page.read_text(encoding="utf-8"), re.MULTILINE)) >= tests


@pytest.mark.parametrize("package", [sparkstorm.api, sparkstorm.testing], ids=lambda package: str(package.__name__))
def test_every_public_name_is_on_the_api_page(package: ModuleType) -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    code = " ".join(re.findall(r"```python\n.*?```|`[^`\n]+`", text, re.DOTALL))
    assert [name for name in package.__all__ if not re.search(rf"\b{name}\b", code)] == []


# What user code may import, and what pages about schedulers and notebooks import beside it
_PUBLIC = {
    "sparkstorm.api",
    "sparkstorm.client",
    "sparkstorm.connectors",
    "sparkstorm.replay",
    "sparkstorm.replay.stepping.recorded",
    "sparkstorm.testing",
}
_OF_TOOLS = re.compile(r"sparkstorm\.(notebook\.\w+|scheduling\.laboratory|app\.cluster|config)")
_STARTERS = {"run_topology.py", "replay_history.py"}


def _examples() -> list[tuple[str, str]]:
    """Name and text of everything that shows how a topology is written."""
    documents = [(f"{path.name}:{line}", block) for path in DOCUMENTS for line, block in _blocks(path)]
    jobs = [(path.name, _text(path)) for path in (ROOT / "jobs").glob("*.py") if path.name not in _STARTERS]
    notebooks = [
        (f"{path.name}:{number}", "".join(cell["source"]))
        for path in (ROOT / "notebooks").glob("*.ipynb")
        for number, cell in enumerate(json.loads(_text(path))["cells"])
        if cell["cell_type"] == "code"
    ]
    return [*documents, *jobs, *notebooks]


def test_examples_jobs_and_notebooks_import_public_modules_only() -> None:
    imported = {
        (name, module)
        for name, text in _examples()
        for module in re.findall(r"^(?:from|import) (sparkstorm[\w.]*)", text, re.MULTILINE)
    }
    assert len({name for name, _ in imported}) > 10
    assert {(name, module) for name, module in imported if module not in _PUBLIC and not _OF_TOOLS.fullmatch(module)} == set()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_the_modules_of_the_architecture_are_those_of_the_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = {name: words.split(", ") for name, words in re.findall(r"^\| `([\w/]+/)` \| (.*) \|$", page, re.MULTILINE)}
    found: dict[str, list[str]] = {}
    package = ROOT / "sparkstorm"
    for path in sorted(package.rglob("*.py")):
        if path.stem != "__init__":
            folder = "sparkstorm/" if path.parent == package else f"{path.parent.relative_to(package)}/"
            found.setdefault(folder, []).append(path.stem)
    assert listed == {name: sorted(stems) for name, stems in found.items()}
