"""Flux documents: every section, substitution and includes, against what Storm's documentation says
of them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.topology import Grouping
from sparkstorm.compat.flux import build, read_flux
from sparkstorm.compat.shell import ShellBolt
from sparkstorm.driver.job_file import make_topology, read_job_file
from sparkstorm.testing import complete_topology

CLASSES = """
from sparkstorm.api import BasicBolt, Spout, StatefulBolt, TopologyBuilder

class Suffix:
    def __init__(self, text, *more):
        self.text, self.more = text, more
    @staticmethod
    def of(text):
        return Suffix(text + "!")

class Lines(Spout):
    outputs = ["line"]
    def next_tuple(self): pass
    def is_exhausted(self): return True

class Split(BasicBolt):
    outputs = {"default": ["word"], "side": ["word"]}
    holder = None
    def __init__(self, suffix, *others):
        self.suffix, self.others, self.upper, self.steps = suffix, others, False, []
    def set_upper(self, value): self.upper = value
    def withStep(self, *step): self.steps.append(step)
    def execute(self, tup, collector):
        for word in tup["line"].split():
            collector.emit([(word.upper() if self.upper else word) + self.suffix.text])

class Count(StatefulBolt):
    def execute(self, tup, collector):
        self.state.put(tup[0], self.state.get(tup[0], 0) + 1)

class First:
    def choose_tasks(self, task, values): return [self.tasks[0]]
    def prepare(self, tasks): self.tasks = tasks

class Source:
    def getTopology(self, config):
        builder = TopologyBuilder()
        builder.set_spout("lines", Lines(), config["spouts"])
        return builder.build()
    def other(self, config):
        return None
"""
DOCUMENT = """
name: words
config:
  topology.workers: 2
components:
  - id: bang
    className: fluxed.Suffix
    factory: of
    factoryArgs: ["${mark}"]
  - id: holder
    className: fluxed.Suffix
    constructorArgs: [{ref: bang}, {reflist: [bang, bang]}]
spouts:
  - {id: lines, className: fluxed.Lines, parallelism: 2, numTasks: 4, cpuLoad: 50}
bolts:
  - id: split
    className: fluxed.Split
    constructorArgs: [{ref: bang}, 7]
    properties: [{name: upper, value: true}, {name: holder, ref: holder}]
    configMethods: [{name: withStep, args: [1, {ref: holder}]}, {name: withStep}]
  - {id: count, className: "fluxed:Count"}
streams:
  - {name: ignored, from: lines, to: split, grouping: {type: LOCAL_OR_SHUFFLE}}
  - {from: split, to: count, grouping: {type: FIELDS, args: [word]}}
  - {from: split, to: count, grouping: {type: CUSTOM, streamId: side, customClass: {className: fluxed.First}}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "fluxed.py").write_text(CLASSES)
    (tmp_path / "words.yaml").write_text(DOCUMENT)
    (tmp_path / "words.properties").write_text("# comment\nmark = ?\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fluxed", raising=False)
    return tmp_path


def built(folder: Path, text: str | None = None, **more: Any) -> Any:
    if text is not None:
        (folder / "words.yaml").write_text(text)
    return build(str(folder / "words.yaml"), **more)


def test_every_section_is_read(folder: Path) -> None:
    topology = built(folder, filter=str(folder / "words.properties"))
    lines, split, count = (topology.components[id] for id in ("lines", "split", "count"))
    assert lines.parallelism == 2
    assert lines.num_tasks == 4
    assert lines.conf == {"topology.component.cpu.pcore.percent": 50}
    assert split.instance.suffix.text == "?!"
    assert split.instance.others == (7,)
    assert split.instance.upper is True
    holder = split.instance.holder
    assert (holder.text, holder.more[0]) == (split.instance.suffix, [split.instance.suffix] * 2)
    assert split.instance.steps == [(1, holder), ()]
    result = [each.grouping.kind for each in (*split.inputs, *count.inputs)]
    assert result == ["local_or_shuffle", "fields", "custom"]
    assert count.inputs[0].grouping == Grouping("fields", ("word",))
    assert count.inputs[1].stream == "side"
    done = complete_topology(topology, {"lines": [["a b"], ["a"]]})
    assert done.state("count") == {"A?!": 2, "B?!": 1}


def test_the_file_is_a_job_of_the_command_line(folder: Path) -> None:
    job = read_job_file(
        str(folder / "words.yaml"), substituted={"filter": str(folder / "words.properties")}
    )
    assert (job.name, job.conf["topology.workers"]) == ("words", 2)
    topology, modules = make_topology(job)
    assert set(topology.components) == {"lines", "split", "count"} and modules == ["fluxed"]
    (folder / "job.yaml").write_text("topology: fluxed:x\n")
    sentence = "--filter and --env-filter are for Flux documents"
    with pytest.raises(InvalidConfigError, match=sentence):
        read_job_file(str(folder / "job.yaml"), substituted={"environment": True})


@pytest.mark.parametrize("kind", ["ALL", "SHUFFLE", "GLOBAL", "NONE", "LOCAL_OR_SHUFFLE"])
def test_groupings_without_arguments_have_storm_s_names(folder: Path, kind: str) -> None:
    text = DOCUMENT.replace("${mark}", "").replace("type: LOCAL_OR_SHUFFLE", f"type: {kind}")
    assert built(folder, text).components["split"].inputs[0].grouping == Grouping(kind.lower())  # type: ignore[arg-type]


def test_properties_lists_and_the_environment_are_substituted_several_on_a_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORDS_HOME", "here")
    (folder / "p").write_text('a=1\nlist=["x", "y"]\n')
    (folder / "words.yaml").write_text(
        "name: ${a}-${list[1]}-${ENV-WORDS_HOME}  # ${a}\nspouts: []\n# ${unknown}\n"
    )
    result = read_flux(folder / "words.yaml", str(folder / "p"), environment=True)["name"]
    assert result == "1-y-here"
    sentence = r"words\.yaml, line 1: \$\{ENV-WORDS_HOME\} has no value; give --env-filter"
    with pytest.raises(InvalidConfigError, match=sentence):
        read_flux(folder / "words.yaml", str(folder / "p"))
    sentence = r"line 1: \$\{a\} has no value; give --filter FILE with a line for it"
    with pytest.raises(InvalidConfigError, match=sentence):
        read_flux(folder / "words.yaml")


@pytest.mark.parametrize(("override", "workers", "executors"), [("false", 2, 2), ("true", 5, 9)])
def test_includes_are_merged_and_override_says_who_wins(
    folder: Path, override: str, workers: int, executors: int
) -> None:
    (folder / "more.yaml").write_text(
        "config: {topology.workers: 5, topology.debug: true}\n"
        "spouts: [{id: lines, className: fluxed.Lines, parallelism: 9}, {id: others, className: fluxed.Lines}]\n"
        "streams: [{from: others, to: split, grouping: {type: SHUFFLE}}]\n"
    )
    text = (
        DOCUMENT.replace("${mark}", "")
        + f"includes: [{{file: more.yaml, resource: false, override: {override}}}]\n"
    )
    topology = built(folder, text)
    config = read_flux(folder / "words.yaml")["config"]
    assert config == {"topology.workers": workers, "topology.debug": True}
    assert topology.components["lines"].parallelism == executors
    assert [each.component for each in topology.components["split"].inputs] == ["lines", "others"]


def test_a_topology_source_is_called_with_the_configuration(folder: Path) -> None:
    text = "name: x\nconfig: {spouts: 3}\ntopologySource: {className: fluxed.Source}\n"
    assert built(folder, text).components["lines"].parallelism == 3
    sentence = r"other returned a NoneType; return builder\.build\(\)"
    with pytest.raises(InvalidConfigError, match=sentence):
        built(folder, text.replace("fluxed.Source", "fluxed.Source, methodName: other"))


def test_shell_components_have_their_command_fields_and_streams(folder: Path) -> None:
    text = DOCUMENT.replace("${mark}", "").replace(
        '{id: count, className: "fluxed:Count"}',
        "{id: count, className: org.apache.storm.flux.wrappers.bolts.FluxShellBolt, constructorArgs: [[node, c.js], [word, n]],"
        " configMethods: [{name: setNamedStream, args: [odd, [why]]}, {name: addComponentConfig, args: [rate, 3]}]}",
    )
    count = built(folder, text).components["count"]
    assert isinstance(count.instance, ShellBolt) and count.instance.command == ["node", "c.js"]
    result = {name: stream.fields for name, stream in count.streams.items()}
    assert result == {"default": ("word", "n"), "odd": ("why",)}
    assert count.instance.settings == {"rate": 3}
    assert count.conf == {"topology.tick.tuple.freq.secs": 1}


@pytest.mark.parametrize(
    ("text", "other", "sentence"),
    [
        ("fluxed.Lines", "org.apache.storm.KafkaSpout", "'lines': org.apache.* is a Java class"),
        ("fluxed.Lines", "fluxed.Nothing", "spout 'lines': module 'fluxed' has no 'Nothing'"),
        ("fluxed.Lines", "nowhere.Lines", "spout 'lines': module 'nowhere' was not found"),
        ("fluxed.Lines", "Lines", "className 'Lines' has no module"),
        ("{ref: bang}, 7", "{ref: bong}, 7", "'split': ref 'bong' names no component before it"),
        ("to: split", "to: splot", "'lines' to 'splot': .* there are lines, split, count"),
        ("type: FIELDS", "type: SOME", "'split' to 'count': grouping .* has no 'type' of ALL"),
        ("withStep, args", "without, args", "bolt 'split': fluxed.Split has no method without"),
        ("{ref: bang}, 7]", "]", r"bolt 'split': Split raised TypeError"),
        ("streams:", "steams:", "line 22: 'steams' is no key .*; did you mean streams"),
        ("id: lines, ", "", "spouts: each entry has an 'id'"),
        ("name: upper", "name: uper", "Split has no property 'uper'; did you mean upper"),
        ("value: true}", "value: true, ref: bang}", "one of value, ref and reflist, not 2"),
        ("{name: upper, value: true}", "{value: true}", "line 19: a property needs a 'name'"),
        ("id: holder\n", "id: split\n", "line 16: the id 'split' is that of line 10 too"),
        ("  - id: split", "  - id: split\n    id: splot", "line 17: id is in line 16 too"),
    ],
)
def test_mistakes_are_named_with_their_place(
    folder: Path, text: str, other: str, sentence: str
) -> None:
    with pytest.raises(InvalidConfigError, match=sentence):
        built(folder, DOCUMENT.replace("${mark}", "").replace(text, other))


@pytest.mark.parametrize(
    ("change", "key", "sentence"),
    [
        ("name: ignored, from", "streamId: side, from", "a stream; it has from, grouping, id"),
        ("streamId: side", "streamid: side", "a grouping; did you mean streamId"),
        ("streamId: side", "stream: side", "a grouping; did you mean streamId"),
        ("parallelism: 2", "paralellism: 2", "a spout; did you mean parallelism"),
        ("numTasks: 4", "numTask: 4", "a spout; did you mean numTasks"),
        ("configMethods:", "cofigMethods:", "a bolt; did you mean configMethods"),
        ("factoryArgs:", "factoryArg:", "a component; did you mean factoryArgs"),
        ("name: withStep, args", "name: withStep, arg", "a configMethod; did you mean args"),
        ("name: upper, value", "name: upper, vale", "a property; did you mean value"),
        ("{className: fluxed.First}", "{classname: fluxed.First}", "a customClass; did you mean className"),
    ],
)  # fmt: skip
def test_a_key_that_flux_does_not_have_is_refused_with_its_line_at_every_level(
    folder: Path, change: str, key: str, sentence: str
) -> None:
    text = DOCUMENT.replace("${mark}", "")
    line = text[: text.index(change)].count("\n") + 1
    wrong = re.findall(r"\w+", key)[-1 if "name: " in change and "from" not in change else 0]
    with pytest.raises(InvalidConfigError, match=f"line {line}: '{wrong}' is no key of {sentence}"):
        built(folder, text.replace(change, key, 1))


@pytest.mark.parametrize("key", ["properties: []", "factory: of", "constructorKwargs: {a: 1}"])
def test_a_shell_component_has_no_part_of_an_object(folder: Path, key: str) -> None:
    shell = "className: org.apache.storm.flux.wrappers.bolts.FluxShellBolt"
    text = DOCUMENT.replace("${mark}", "").replace(
        '{id: count, className: "fluxed:Count"}',
        f"{{id: count, {shell}, constructorArgs: [[node, c.js]], {key}}}",
    )
    with pytest.raises(InvalidConfigError, match=f"shell component has no {key.partition(':')[0]}"):
        built(folder, text)


def test_references_are_found_at_any_depth(folder: Path) -> None:
    text = DOCUMENT.replace("${mark}", "").replace(
        "constructorArgs: [{ref: bang}, 7]",
        "constructorArgs: [{ref: bang}, [{ref: bang}, {at: {reflist: [holder]}}]]",
    )
    suffix, (nested,) = (
        (split := built(folder, text).components["split"].instance).suffix,
        split.others,
    )
    assert nested[0] is suffix and nested[1]["at"][0].text is suffix


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("a #b", "a #b"),
        ("a: b", "a: b"),
        ("- x", "- x"),
        ("[open", "[open"),
        ("12", 12),
        ("07", 7),
        ("1.5", 1.5),
        ("yes", True),
        ("12:30:45", 45045),
        ("'07'", "07"),
        ("", None),
    ],
)
def test_a_substituted_value_has_yamls_type_and_is_never_cut(
    folder: Path, value: str, read: Any
) -> None:
    (folder / "p").write_text(f"x={value}\n")
    (folder / "words.yaml").write_text("config:\n  app.x: ${x}\nspouts: []\n")
    document = read_flux(folder / "words.yaml", str(folder / "p"))
    assert document["config"]["app.x"] == read
