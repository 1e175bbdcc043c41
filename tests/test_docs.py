"""Documents against the code: keys, dependencies, links, and examples that run and import public
modules only.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest
from packaging.requirements import Requirement

import sparkstorm.api
import sparkstorm.testing
from sparkstorm.cli.__main__ import parser as command_line
from sparkstorm.common.config import read_yaml
from sparkstorm.common.model import records
from sparkstorm.control_plane.cluster import envelope, paths
from sparkstorm.data_plane.checkpoint import files
from sparkstorm.data_plane.transport import frames
from sparkstorm.driver.job_file import JobFile, make_topology, read_job_file
from sparkstorm.extensions.recording import capsule_files, segments
from tests import cli_page, house_map, pages, reference_page

ROOT = Path(__file__).parents[1]
KEYS = (ROOT / "docs" / "maintaining" / "keys.md").read_text(encoding="utf-8")
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
)
_NAMED_IN_LUA = re.compile(r"p \.\. ':(\w+)")
_NAMED_IN_PYTHON = re.compile(r'\b_?k(?:eys)?\("(\w+)"|\{self\.prefix\}:(\w+)')


def _rows(part: str) -> list[str]:
    """Return the first column of a part's table."""
    return re.findall(
        r"^\| `([^`]+)` \|", KEYS.partition(f"## {part}\n")[2].partition("\n## ")[0], re.MULTILINE
    )


def test_every_zookeeper_path_is_listed_and_every_listed_one_is_used() -> None:
    used = {value.lstrip("/") for name, value in vars(paths).items() if name.isupper()}
    listed = {re.sub(r"/[<{].*", "", row) for row in _rows("ZooKeeper")}
    assert listed == used


def test_every_redis_key_is_listed_and_every_listed_one_is_used() -> None:
    folder = ROOT / "sparkstorm" / "data_plane" / "transport"
    used = {
        name
        for file in folder.glob("*.lua")
        for name in _NAMED_IN_LUA.findall(file.read_text(encoding="utf-8"))
    }
    for file in folder.glob("*.py"):
        used |= {
            name
            for names in _NAMED_IN_PYTHON.findall(file.read_text(encoding="utf-8"))
            for name in names
            if name
        }
    listed = {
        row.removeprefix("{p}:").partition(":")[0]
        for row in _rows("Redis")
        if row.startswith("{p}:")
    }
    assert listed == used


def _name(requirement: str) -> str:
    """Return a requirement's name with its extras, as docs/dependencies.md lists it."""
    parsed = Requirement(requirement)
    return parsed.name + (f"[{','.join(sorted(parsed.extras))}]" if parsed.extras else "")


def test_every_dependency_is_pinned_for_ci_within_the_range_that_users_may_have() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = [*setup["options"]["install_requires"].split("\n")]
    lines += [
        line for extra in setup["options.extras_require"].values() for line in extra.split("\n")
    ]
    wanted = {
        requirement.name: requirement for requirement in map(Requirement, filter(None, lines))
    }
    pinned = dict(
        line.split("==")
        for line in (ROOT / "requirements.lock").read_text("utf-8").split("\n")
        if line and not line.startswith("#")
    )
    assert pinned.keys() == wanted.keys()
    assert [
        name for name, version in pinned.items() if not wanted[name].specifier.contains(version)
    ] == []


def test_every_dependency_is_argued_and_every_argued_one_is_there() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").partition("## Wheels")[0]
    core, extras = text.partition("## Extras")[::2]
    declared = {_name(line) for line in setup["options"]["install_requires"].split("\n") if line}
    assert {*re.findall(r"^\| ([a-zA-Z]+) \|", core, re.MULTILINE)} - {"package"} == declared
    wanted = {
        (extra, _name(line))
        for extra, lines in setup["options.extras_require"].items()
        for line in lines.split("\n")
        if line
    }
    rows = re.findall(r"^\| (\w+) \| ([][\w, -]+) \|", extras, re.MULTILINE)
    assert {(extra, name) for extra, names in rows for name in names.split(", ")} - {
        ("extra", "package")
    } == wanted


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_named_files_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = [
        link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link
    ]
    missing = [link for link in links if link and not (document.parent / link).exists()]
    named = re.findall(
        r"`((?:docs|conf|jobs|notebooks|tests|benchmarks|sparkstorm)/[\w./-]+\.\w+)`", text
    )
    # a decision is not edited when a file that it names moves
    if "decisions" not in document.parts:
        missing += [name for name in named if not (ROOT / name).exists()]
    assert missing == []


@pytest.mark.parametrize(
    ("number", "record"),
    list(enumerate(DECISIONS, 1)),
    ids=lambda value: getattr(value, "stem", ""),
)
def test_a_decision_has_its_number_its_parts_and_a_line_in_the_index(
    number: int, record: Path
) -> None:
    text = record.read_text(encoding="utf-8")
    title = re.match(rf"# {number}\. (.+)\n\n(\d{{4}}-\d\d-\d\d)\n", text)
    assert title is not None and record.name.startswith(f"{number:04}-")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "Context",
        "Decision",
        "Left out",
        "Consequence",
    ]
    index = (record.parent / "README.md").read_text(encoding="utf-8")
    assert f"| {number} | [{title.group(1)}]({record.name}) | {title.group(2)} |" in index


# Words that stand for something else in the field's language, or for nothing.
_BANNED = re.compile(
    r"\b(mend(s|ed)?|beside|whoever|of its own(?=[.,;:)])|for want of|in vain)\b", re.IGNORECASE
)


@pytest.mark.parametrize(
    "page",
    [page for page in DOCUMENTS if "decisions" not in page.parts],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_is_written_in_the_fields_words(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [match.group() for match in _BANNED.finditer(text)] == []


# Records were edited until then. The law: none is, once it is written.
_SINCE = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()


def test_no_decision_is_edited_once_it_is_written() -> None:
    words = (
        "git",
        "log",
        "--format=%ct",
        "--name-only",
        "--diff-filter=MR",
        "--",
        "docs/decisions",
    )
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no history: a source distribution")
    edited = [
        (int(time), Path(name).name)
        for time, *names in (block.split("\n") for block in re.split(r"\n(?=\d+\n\n)", done.stdout))
        for name in names
        if name and not name.endswith("README.md")
    ]
    assert [name for time, name in edited if time > _SINCE] == []


def test_every_attack_on_the_design_is_answered_by_tests_that_exist() -> None:
    text = (ROOT / "docs" / "maintaining" / "design-review.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .* \| ([^|]+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 30))
    missing = []
    for number, cell in rows:
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", cell)
        assert named, number
        missing += [
            f"{file}::{test}"
            for file, test in named
            if f"def {test}(" not in _text(ROOT / "tests" / file)
        ]
    assert missing == []


def test_readme_shows_the_files_of_its_example() -> None:
    blocks = {block for _, block in pages.blocks(ROOT / "README.md")}
    shown = {text for name, text in pages.first_bolt().items() if name.endswith(".py")}
    assert blocks == shown


# test_page.py of tests/replay runs replay.md, test_verbs.py of tests/cli cluster.md,
# test_servers.py of tests/testing servers.md
@pytest.mark.parametrize(
    ("name", "tests"),
    [
        ("api", 8),
        ("connectors", 1),
        ("failures", 0),
        ("howto", 10),
        ("joins", 4),
        ("porting", 1),
        ("testing", 2),
        ("windows", 1),
    ],
)
def test_every_example_of_a_page_runs_and_its_tests_pass(
    name: str, tests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / f"{name}.md"
    with pages.folder_of_examples(tmp_path, monkeypatch):
        pages.write_capsule_of_count(tmp_path / "count-1700000000000-0.capsule.json")
        module, passed = pages.run(page, monkeypatch)
    for name, made in list(vars(module).items()):
        if isinstance(
            made,
            sparkstorm.api.ReplayableSpout
            | sparkstorm.api.Spout
            | sparkstorm.api.TransactionalSink,
        ):
            assert cloudpickle.dumps(made), name  # it can be submitted
    assert (
        len(passed)
        == len(re.findall(r"^def test_", page.read_text(encoding="utf-8"), re.MULTILINE))
        >= tests
    )


def test_the_test_that_contributing_shows_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    _, passed = pages.run(ROOT / "CONTRIBUTING.md", monkeypatch)
    assert len(passed) == 1


def test_the_picture_of_the_house_is_that_of_its_imports() -> None:
    drawn = house_map.PICTURE.read_text(encoding="utf-8")
    assert drawn == house_map.draw(), "python -m tests.house_map draws it anew"


def _commands(document: Path) -> list[tuple[str, list[str]]]:
    """Return the place and words of every command of a page: lines with `$` of console blocks, and
    indented ones.
    """
    text = document.read_text(encoding="utf-8")
    numbered = []
    for block in re.finditer(r"```console\n(.*?)```", text, re.DOTALL):
        shell = re.sub(r"\\\n\s*", "", block.group(1))
        lines = [
            line[2:].removesuffix(" &") for line in shell.splitlines() if line.startswith("$ ")
        ]
        numbered += [(text[: block.start()].count("\n") + 1, line) for line in lines]
    for line in re.finditer(
        r"^    ((?:sparkstorm|spark-submit|make|python) .*)", text, re.MULTILINE
    ):
        numbered.append((text[: line.start()].count("\n") + 1, line.group(1)))
    parts = [
        (f"{document.name}:{number}", part)
        for number, line in numbered
        for part in re.split(r" [;|] ", line)
    ]
    return [(place, shlex.split(part, comments=True)) for place, part in parts]


def test_make_run_installs_the_web_ui_that_readme_starts() -> None:
    recipe = re.search(r"^\$\(VENV\)/installed:.*?\n\n", _text(ROOT / "Makefile"), re.M | re.S)
    assert recipe is not None and "--web" in _text(ROOT / "README.md")
    assert "--editable '.[web]'" in recipe[0]


def _is_understood(words: list[str]) -> bool:
    """Return whether the program that a command names takes its options; programs that are not ours
    are taken as right.
    """
    if words[0] == "make" and "-C" not in words:  # else it is another project's Makefile
        targets = {word for word in words[1:] if "=" not in word}
        return targets <= set(re.findall(r"^(\w[\w-]*):", _text(ROOT / "Makefile"), re.MULTILINE))
    script = next((word for word in words if re.fullmatch(r"jobs/\w+\.py", word)), None)
    of_script = {
        "jobs/run_topology.py": "run",
        "jobs/replay_history.py": "replay",
        "jobs/run_cluster.py": "cluster",
    }
    if script in of_script:
        words = ["sparkstorm", of_script[script], *words[words.index(script) + 1 :]]
        words = (
            words[: words.index("--cluster")] + words[words.index("--cluster") + 2 :]
            if "--cluster" in words
            else words
        )
    if words[0] != "sparkstorm":
        return script is None or (ROOT / script).is_file()
    try:
        command_line().parse_args(words[1:])
    except SystemExit as end:
        return end.code == 0
    return True


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_of_a_page_is_one_that_its_program_takes(document: Path) -> None:
    assert [
        (place, " ".join(words))
        for place, words in _commands(document)
        if not _is_understood(words)
    ] == []


def test_the_job_files_of_the_cluster_page_are_those_of_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "cluster.md"
    part = (
        page.read_text(encoding="utf-8")
        .partition("## The job files of this page\n")[2]
        .partition("\n## ")[0]
    )
    code, job = re.findall(r"```(?:python|yaml)\n(.*?)```", part, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "words.py").write_text(code, encoding="utf-8")
    (tmp_path / "lines.txt").write_text("to be or\nnot to be\n" * 50)
    results = {}
    for name in ("build", "odd", "bad"):
        (tmp_path / "words.yaml").write_text(
            job.replace("words:build", f"words:{name}"), encoding="utf-8"
        )
        topology, _ = make_topology(read_job_file("words.yaml"))
        results[name] = sparkstorm.testing.complete_topology(
            topology, conf={"topology.max.retries": 0}
        )
    sys.modules.pop("words")
    words = {"to": 100, "be": 100, "or": 50, "not": 50}
    assert results["build"].state("count") == words
    result = results["odd"].state("count")
    assert result == {**words, "odd": 1}
    assert len(results["bad"].dead_letters) == 2
    named = {
        word
        for document in (page, page.with_name("upgrades.md"))
        for _, words in _commands(document)
        for word in words
        if word.endswith(".yaml")
    }
    assert named == set(re.findall(r"\b\w+\.yaml", part)), "each is there or is named there"


@pytest.mark.parametrize(
    "package", [sparkstorm.api, sparkstorm.testing], ids=lambda package: str(package.__name__)
)
def test_every_public_name_is_on_the_api_page(package: ModuleType) -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    code = " ".join(re.findall(r"```python\n.*?```|`[^`\n]+`", text, re.DOTALL))
    assert [name for name in package.__all__ if not re.search(rf"\b{name}\b", code)] == []


def test_the_page_of_commands_is_that_of_their_parsers() -> None:
    written = cli_page.PAGE.read_text(encoding="utf-8")
    assert written == cli_page.page(), "python -m tests.cli_page writes it anew"


def test_the_page_of_public_names_is_that_of_their_docstrings() -> None:
    written = reference_page.PAGE.read_text(encoding="utf-8")
    assert written == reference_page.page(), "python -m tests.reference_page writes it anew"
    named = {
        (module, name)
        for module in reference_page.MODULES
        for name in getattr(import_module(module), "__all__", ())
    }
    listed = {
        (module, name)
        for module in reference_page.MODULES
        for name in reference_page.public_names(module)
    }
    assert len(named) > 100 and named - listed == set()


# What user code may import, and what pages about schedulers and notebooks import next to it
_PUBLIC = {
    "sparkstorm.compat",
    "sparkstorm.streamparse",
    "sparkstorm.streams",
    "sparkstorm.api",
    "sparkstorm.client",
    "sparkstorm.connectors",
    "sparkstorm.replay",
    "sparkstorm.extensions.recording.stepping.recorded",
    "sparkstorm.testing",
    "sparkstorm.testing.servers",
}
_OF_TOOLS = re.compile(
    r"sparkstorm\.(notebook\.\w+|control_plane\.insight\.sampler|extensions\.laboratory|driver\.cluster|common\.config)"
)
_STARTERS = {"run_topology.py", "replay_history.py"}


def _examples() -> list[tuple[str, str]]:
    """Name and text of everything that shows how a topology is written."""
    documents = [
        (f"{path.name}:{line}", block) for path in DOCUMENTS for line, block in pages.blocks(path)
    ]
    jobs = [
        (path.name, _text(path))
        for path in (ROOT / "jobs").glob("*.py")
        if path.name not in _STARTERS
    ]
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
    assert {
        (name, module)
        for name, module in imported
        if module not in _PUBLIC and not _OF_TOOLS.fullmatch(module)
    } == set()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_the_modules_of_the_architecture_are_those_of_the_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = {
        name: words.split(", ")
        for name, words in re.findall(r"^\| `([\w/]+/)` \| (.*) \|$", page, re.MULTILINE)
    }
    stems_by_folder: dict[str, list[str]] = {}
    package = ROOT / "sparkstorm"
    for path in sorted(package.rglob("*.py")):
        if path.stem != "__init__":
            folder = (
                "sparkstorm/" if path.parent == package else f"{path.parent.relative_to(package)}/"
            )
            stems_by_folder.setdefault(folder, []).append(path.stem)
    assert listed == {name: sorted(stems) for name, stems in stems_by_folder.items()}
    tables = re.findall(r"^\| in ([\w/]+) \| \|\n\|---\|---\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    described = {
        folder: re.findall(r"^\| (\w+) \| .+ \|$", rows, re.MULTILINE) for folder, rows in tables
    }
    assert described.keys() == {"common/model/", "common/stores/", "driver/", "cli/"}
    for folder, stems in described.items():
        assert sorted(stems) == listed[folder]


def test_the_page_of_upgrades_names_the_versions_of_formats() -> None:
    versions = {
        "frames, with held inputs and journals": frames.VERSION,
        "records": records.FORMAT_VERSION,
        "signed envelopes of records": envelope.VERSION,
        "checkpoints and savepoints": files.FORMAT,
        "capsules": capsule_files.FORMAT,
        "recordings": segments.FORMAT,
    }
    page = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
    result = dict(re.findall(r"^\| ([a-z, ]+) \| (\d+) \|", page, re.MULTILINE))
    assert result == {name: str(version) for name, version in versions.items()}


@pytest.fixture
def job_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder from which modules are imported, and forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("words", None)


def _first(kind: str, page: str) -> str:
    match = re.search(rf"```{kind}\n(.*?)```", _text(ROOT / "docs" / page), re.DOTALL)
    assert match is not None
    return match[1]


def test_the_job_file_of_the_page_on_porting_runs_on_a_file(job_files_folder: Path) -> None:
    (job_files_folder / "words.py").write_text(_first("python", "porting.md"), encoding="utf-8")
    (job_files_folder / "words.yaml").write_text(_first("yaml", "porting.md"), encoding="utf-8")
    (job_files_folder / "part.txt").write_text("the quick fox\nthe end\n")
    make_topology(read_job_file("words.yaml"))  # of Kafka
    topology, _ = make_topology(read_job_file("words.yaml", inputs=["part.txt"]))
    done = sparkstorm.testing.complete_topology(topology)
    assert done.state("count") == {"the": 2, "quick": 1, "fox": 1, "end": 1}


def test_the_grammar_of_a_job_file_is_one_and_has_every_word(job_files_folder: Path) -> None:
    path = job_files_folder / "grammar.yaml"
    path.write_text(_first("yaml", "configuration.md"), encoding="utf-8")
    job = read_job_file(str(path))
    assert job.own_conf == {"topology.workers": 2, "app.limit": 10}
    assert (job.parallelism, job.replay) == ({"split": 8}, {"event_time": "at_ms"})
    # every field of a job but its path and its configuration is a word of its file
    words = {*JobFile.__dataclass_fields__} - {"path", "own_conf", "overrides"}
    assert words <= {*read_yaml(str(path))[0]}
