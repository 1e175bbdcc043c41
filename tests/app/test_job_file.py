"""Job files with every mistake a newcomer makes: each is answered by one sentence that names the
culprit.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidConfigError, InvalidTopologyError, SparkStormError
from sparkstorm.data_plane.user_code.topology_code import pack_topology
from sparkstorm.driver.exit_status import FAILED, title
from sparkstorm.driver.job import main, main_of_run
from sparkstorm.driver.job_file import JobFile, make_topology, read_job_file

ROOT = Path(__file__).parents[2]

NUMBER = itertools.count()
TOPOLOGY = """
from sparkstorm.api import BasicBolt, TopologyBuilder
from sparkstorm.connectors import FileLines, find_files

class Split(BasicBolt):
    outputs = ("word",)
    def execute(self, tup, collector):
        pass

def build(input=()):
    builder = TopologyBuilder()
    builder.set_spout("lines", FileLines(find_files(input or [__file__])))
    builder.set_bolt("split", Split(), parallelism=2).shuffle_grouping("lines")
    return builder.build()
"""


def job_in(folder: Path, yaml: str = "", module: str = TOPOLOGY, more: str = "") -> JobFile:
    """A job file and its module, under a module name not imported before."""
    name = f"topology_{os.getpid()}_{next(NUMBER)}"
    (folder / f"{name}.py").write_text(module)
    (folder / "job.yaml").write_text(yaml or f"topology: {name}:build\n{more}")
    return read_job_file(str(folder / "job.yaml"))


def refusal(folder: Path, yaml: str = "", module: str = TOPOLOGY, more: str = "") -> str:
    """The sentence with which a job is refused, before or while its topology is made."""
    with pytest.raises((InvalidConfigError, InvalidTopologyError)) as refused:
        make_topology(job_in(folder, yaml, module, more))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_good_job_gives_its_topology_and_the_modules_that_travel(tmp_path: Path) -> None:
    job = job_in(
        tmp_path, more="name: words\nparallelism: {split: 3}\ntopology.workers: 2\napp.mine: 1\n"
    )
    topology, modules = make_topology(job)
    assert job.name == "words" and job.conf["topology.workers"] == 2 and job.conf["app.mine"] == 1
    assert topology.components["split"].parallelism == 3
    assert [name.startswith("topology_") for name in modules] == [True]


def test_a_job_without_a_name_is_called_like_its_file(tmp_path: Path) -> None:
    assert job_in(tmp_path).name == "job"


def test_overrides_win_and_inputs_are_an_argument_of_the_factory(tmp_path: Path) -> None:
    job_in(tmp_path, more="topology.workers: 2\n")
    job = read_job_file(
        str(tmp_path / "job.yaml"), {"topology.workers": 3}, "other", [str(tmp_path)]
    )
    assert job.name == "other"
    assert job.conf["topology.workers"] == 3
    assert job.arguments == {"input": [str(tmp_path)]}


def test_runs_of_different_names_do_not_meet_in_one_folder_unless_told_to(tmp_path: Path) -> None:
    job_in(tmp_path, more="name: words\n")
    path, folder = str(tmp_path / "job.yaml"), "storm.local.dir"
    assert read_job_file(path).conf[folder] == "storm-local/words"
    assert read_job_file(path, name="lines").conf[folder] == "storm-local/lines"
    assert read_job_file(path, {folder: "here"}).conf[folder] == "here"
    shared = {"sparkstorm.redis.url": "redis://r", "storm.zookeeper.servers": ["z"]}
    assert read_job_file(path, shared).conf[folder] == "storm-local"


def test_a_missing_job_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"none\.yaml cannot be read: No such file"):
        read_job_file(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("yaml", "sentence"),
    [
        ("topology: [", "is not YAML"),
        ("- one\n- two\n", "expected lines of `key: value`"),
        ("name: x\n", "'topology' is missing; name a factory as module:function"),
        ("topology: no_colon\n", "topology 'no_colon' is not of the form module:function"),
        ("topology: no_module:build\n", "topology module 'no_module' was not found"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, yaml: str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, yaml)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("name: 7", "line 2: name: expected a string, got 7"),
        ("name: a/b", "a/b"),
        ("parallelism: 3", "line 2: parallelism: expected a map, got 3"),
        ("parallelism: {split: many}", "parallelism of 'split': expected a number of executors"),
        ("parallelism: {split: 0}", "of 'split': expected a number of executors, got 0"),
        ("parralelism: {}", "line 2: unknown key parralelism; did you mean parallelism?"),
        ("config: {topology.workers: 2}", "line 2: unknown key config: write its keys at the top"),
        ("topology.worker: 2", "unknown key topology.worker; did you mean topology.workers?"),
        ("topology.workers: two", "line 2: topology.workers: expected an integer"),
        ("results: {componets: count}", "results: unknown field 'componets'"),
        ("results: {top: ten}", "results: top: expected an integer"),
        ("results: 7", "line 2: results: expected a map or a list, got 7"),
        ("results: [{component: a}, {format: xml}]", "results[1]: format: expected one of jsonl"),
        ("results: {component: a, format: table}", "format: table needs the url of a database"),
        ("results: [{component: a}, {component: a}]", "'a' is written as jsonl twice; drop one"),
    ],
)
def test_a_mistake_in_a_line_is_one_sentence(tmp_path: Path, line: str, sentence: str) -> None:
    assert sentence in refusal(tmp_path, f"topology: m:f\n{line}\n")


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("import there_is_no_such_library\n", "No module named 'there_is_no_such_library'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero (topology_"),
        ("def build(:\n", "SyntaxError"),
        ("import sys\nsys.exit('bye')\n", "SystemExit: bye"),
        ("x = 1\n", "has no function 'build'"),
        ("build = 7\n", "has no function 'build'"),
        ("def build():\n    raise KeyError('host')\n", "raised KeyError: 'host' (topology_"),
        (
            "from sparkstorm.connectors import Files\ndef build():\n    Files('x', formt='csv')\n",
            "id you mean 'format'?",
        ),
        (
            "from sparkstorm import connectors as c\nc.HttpSink('http://h', bach=1)\n",
            "id you mean 'batch'?",
        ),
        ("def build(): print(colour='x')", "invalid keyword argument for print()"),
        ("def build():\n    return [1]\n", "returned a list; return builder.build()"),
        (
            "def build(count):\n    pass\n",
            "does not take the arguments given (none): missing a required argument: 'count'",
        ),
    ],
)
def test_a_mistake_in_the_module_is_one_sentence(
    tmp_path: Path, module: str, sentence: str
) -> None:
    assert sentence in refusal(tmp_path, module=module)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("parallelism: {spilt: 2}", "unknown component 'spilt'; there are lines, split"),
        ("results: {component: count}", "unknown component 'count'; there are lines, split"),
        (
            "results: {component: split}",
            "component 'split' keeps no state; name a stream of it (stream: ...; it has default)",
        ),
        ("results: {component: split, stream: odd}", "has no stream 'odd'; it has default"),
        (
            "results: {component: split, stream: default, format: parquet}",
            "parquet needs the type of field 'word' of 'split'",
        ),
        ("arguments: {inptu: [x]}", "the arguments given (inptu): got an unexpected keyword"),
        ("arguments: {input: [/no/path]}", "input /no/path: there is no such file or folder"),
    ],
)
def test_a_job_that_does_not_fit_its_topology_is_refused(
    tmp_path: Path, more: str, sentence: str
) -> None:
    assert sentence in refusal(tmp_path, more=f"{more}\n")


def test_a_component_that_cannot_be_serialised_is_named_with_the_mend(tmp_path: Path) -> None:
    topology, _ = make_topology(job_in(tmp_path))
    topology.components["split"].instance.lock = threading.Lock()
    sentence = r"component 'split' cannot be serialised.*open files, sockets, locks"
    with pytest.raises(InvalidTopologyError, match=sentence):
        pack_topology(topology)


def test_a_refused_job_exits_with_one_and_its_sentence_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("topology: m:f\ntopology.worker: 2\n")
    assert main([str(path)]) == FAILED
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Invalid config: ") and said.err.count("\n") == 1


@pytest.mark.parametrize(
    "override", ["topology.workers", "topology.wrokers=2", "topology.workers=two"]
)
def test_a_bad_override_is_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str
) -> None:
    job_in(tmp_path)
    assert main([str(tmp_path / "job.yaml"), "-c", override]) == FAILED
    assert f"-c {override}" in capsys.readouterr().err


def test_errors_of_every_kind_have_a_title_people_can_read() -> None:
    assert title(InvalidTopologyError("x")) == "Invalid topology"
    assert all(" error" not in title(kind("x")) for kind in SparkStormError.__subclasses__())


@pytest.mark.parametrize(
    "job",
    sorted(set((ROOT / "conf").glob("*.yaml")) - {ROOT / "conf" / "defaults.yaml"}),
    ids=lambda path: path.stem,
)
def test_the_projects_own_jobs_find_their_modules(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    read = read_job_file(str(job))
    name = read.topology.partition(":")[0]
    monkeypatch.delitem(sys.modules, name, raising=False)
    make_topology(read)
    monkeypatch.delitem(sys.modules, name, raising=False)


# -- what Nimbus would refuse is refused before anything starts ------------------------------------


MODULE = """
from sparkstorm.api import BasicBolt, Spout, TopologyBuilder


class Lines(Spout):
    outputs = ("line",)

    def next_tuple(self):
        pass


class Split(BasicBolt):
    def execute(self, tup, collector):
        pass


def build(**conf):
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines())
    own = {key.replace("__", "."): value for key, value in conf.items()}
    builder.set_bolt("split", Split(), conf=own).shuffle_grouping("lines")
    return builder.build()
"""


@pytest.mark.parametrize(
    ("arguments", "lines", "words"),
    [
        (
            ["-c", "topology.scheduler=nonsense"],
            "",
            "Invalid config: topology.scheduler: 'nonsense' is neither one of",
        ),
        (
            ["-c", "topology.scheduler=blacklist"],
            "",
            "blacklist is for the whole cluster; set storm.scheduler",
        ),
        (["--name", "a/b"], "", "Invalid topology: 'a/b' is not a valid topology name"),
        (["--name", ".."], "", "Invalid topology: '..' is not a valid topology name"),
        (["--name", "."], "", "Invalid topology: '.' is not a valid topology name"),
        (["--name=-rf"], "", "Invalid topology: '-rf' is not a valid topology name"),
        (
            [],
            "arguments: {topology__wrokers: 2}",
            "component 'split' of shout: unknown key topology.wrokers; did you mean",
        ),
        (
            [],
            "arguments: {topology__tasks: 0}",
            "component 'split' of shout: topology.tasks must be a whole number",
        ),
    ],
)
def test_a_mistake_is_told_before_anything_is_started(
    arguments: list[str], lines: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mistaken_job.py").write_text(MODULE)
    job = tmp_path / "job.yaml"
    job.write_text(f"name: shout\ntopology: mistaken_job:build\ntopology.workers: 1\n{lines}\n")
    assert main([str(job), *arguments]) == FAILED
    said = capsys.readouterr()
    assert words in said.err and "starting Spark" not in said.out


def test_run_has_a_cluster_of_its_own_whatever_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mistaken_job.py").write_text(MODULE)
    job = str(tmp_path / "job.yaml")
    Path(job).write_text("name: shout\ntopology: mistaken_job:build\ntopology.workers: 1\n")
    monkeypatch.setenv("SPARKSTORM_CLUSTER", "standing.json")
    went: list[str] = []

    def run_in_own_cluster(*_: Any) -> int:
        went.append("own")
        return 0

    def run_remotely(_run: Any, _job: Any, cluster: str, *_: Any) -> int:
        went.append(cluster)
        return 0

    monkeypatch.setattr("sparkstorm.driver.own_cluster.run_in_own_cluster", run_in_own_cluster)
    monkeypatch.setattr("sparkstorm.driver.job.run_remotely", run_remotely)
    assert main_of_run([job]) == 0 and went == ["own"]
    assert "SPARKSTORM_CLUSTER does not matter to `run`" in capsys.readouterr().out
    assert main_of_run([job, "--detach"]) == FAILED and went == ["own"]
    assert f"sparkstorm submit {job} --detach" in capsys.readouterr().err
    assert main([job]) == 0 and went == ["own", "standing.json"]
    assert "SPARKSTORM_CLUSTER is set: the job goes to the cluster of standing.json" in (
        capsys.readouterr().out
    )
    assert main([job, "--cluster", "other.json"]) == 0 and went[2:] == ["other.json"]
    assert not capsys.readouterr().out
