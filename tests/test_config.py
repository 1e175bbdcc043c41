"""Configuration: defaults, files, overrides, and the sentence that each mistake gets."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkstorm.common.config import (
    Conf,
    check,
    default_conf,
    keys,
    load_conf,
    merge,
    parse_override,
)
from sparkstorm.common.errors import InvalidConfigError

ROOT = Path(__file__).parent.parent


def a_file(folder: Path, text: str | bytes) -> Path:
    path = folder / "my.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(folder: Path, text: str | bytes) -> str:
    """Return what is said of a file with this content."""
    with pytest.raises(InvalidConfigError) as caught:
        load_conf(a_file(folder, text))
    said = str(caught.value)
    assert said.startswith(str(folder / "my.yaml"))
    assert len(said) < 400 + len(str(folder))
    return said.removeprefix(str(folder / "my.yaml"))


def test_every_key_has_a_default_of_its_type_a_scope_and_a_sentence() -> None:
    assert len(keys()) > 100
    for key in keys().values():
        assert key.problem(key.default) == "", key.name
        assert key.scope in ("cluster", "topology")
        assert key.doc.endswith("."), key.name
        assert key.type in ("boolean", "integer", "number", "string", "list", "map", "any"), (
            key.name
        )


def test_times_and_sizes_say_their_unit() -> None:
    for key in keys().values():
        if key.type in ("integer", "number") and key.name.endswith(
            (".ms", ".millis", ".secs", ".sec", ".bytes", ".mb")
        ):
            assert key.unit in ("ms", "s", "bytes", "MiB"), key.name


def test_the_file_beside_the_sources_is_the_one_that_is_shipped() -> None:
    result = (ROOT / "conf" / "defaults.yaml").resolve()
    assert result == ROOT / "sparkstorm" / "common" / "defaults.yaml"


def test_well_known_defaults_are_storms_and_the_guarantee_is_exactly_once() -> None:
    conf = default_conf()
    assert conf["topology.message.timeout.secs"] == 30
    assert conf["nimbus.monitor.freq.secs"] == 10
    assert conf["topology.max.spout.pending"] is None
    assert conf["topology.delivery.guarantee"] == "exactly-once"
    assert conf["storm.zookeeper.servers"] == []


def test_a_file_gives_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    path = a_file(tmp_path, "topology.workers: 3\n# a remark\ntopology.name: word count\n")
    assert load_conf(path) == {"topology.workers": 3, "topology.name": "word count"}


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n"])
def test_an_empty_file_is_no_mistake(tmp_path: Path, text: str) -> None:
    assert load_conf(a_file(tmp_path, text)) == {}


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    result = load_conf(a_file(tmp_path, b"\xef\xbb\xbftopology.workers: 3\n"))
    assert result == {"topology.workers": 3}


def test_later_layers_win_over_earlier_ones_and_all_win_over_defaults() -> None:
    conf = merge({"topology.workers": 2, "topology.acker.local": False}, {"topology.workers": 4})
    assert conf["topology.workers"] == 4
    assert conf["topology.acker.local"] is False
    assert conf["nimbus.reassign"] is True
    assert merge(conf, {"topology.workers": 5})["topology.acker.local"] is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topology.workers: [1", r" is not YAML: .* at line \d+, column"),
        ("a: 1\nb: {\n", r" is not YAML: .* at line \d"),
        ("- topology.workers\n", ": expected lines of `key: value`, got a list"),
        ("just words\n", ": expected lines of `key: value`, got a string, 'just words'"),
        (
            "topology.acker.local: false\ntopology.wokers: 2\n",
            ", line 2: unknown key topology.wokers; did you mean topology.workers?",
        ),
        ("workers: 2\n", ", line 1: unknown key workers; did you mean topology.workers?"),
        ("topology_workers: 2\n", "did you mean topology.workers?"),
        ("qqq: 2\n", r"unknown key qqq \(keys of your own begin with app\.\)"),
        (
            "topology:\n  workers: 2\n",
            "unknown key topology: keys are written whole, as in `topology.workers: …`",
        ),
        ("3: 2\n", ", line 1: a key must be a string, got an integer, 3"),
        (
            "topology.workers: two\n",
            ", line 1: topology.workers: expected an integer, got a string, 'two'",
        ),
        ("topology.workers: true\n", "topology.workers: expected an integer, got a boolean, True"),
        ("topology.workers: 2.0\n", "topology.workers: expected an integer, got a number, 2.0"),
        ("topology.workers: null\n", "topology.workers: expected an integer, got null"),
        ("topology.workers: 0\n", "topology.workers: must be at least 1, got 0"),
        ("topology.epoch.bytes: 1\n", "topology.epoch.bytes: must be at least 4096 bytes, got 1"),
        ("sparkstorm.supervisors: 2000\n", "must be at most 1000, got 2000"),
        ("topology.message.timeout.secs: .inf\n", "expected a finite number, got inf"),
        ("topology.message.timeout.secs: .nan\n", "expected a finite number, got nan"),
        ("topology.message.timeout.secs: soon\n", r"expected a number \(s\), got a string, 'soon'"),
        (
            "topology.delivery.guarantee: exactly once\n",
            "expected one of exactly-once, at-least-once, at-most-once, got 'exactly once'",
        ),
        (
            "topology.acker.local: 1\n",
            "topology.acker.local: expected a boolean, got an integer, 1",
        ),
        (
            "topology.name: 2024-01-01\n",
            "topology.name: date is no type of a configuration; quote it",
        ),
        ("topology.bolt.parallelism: {1: 2}\n", "keys of a map must be strings, got an integer, 1"),
        ("app.mine: !!binary aGVsbG8=\n", "app.mine: bytes is no type of a configuration"),
        (
            "topology.acker.local: true\ntopology.acker.local: false\n",
            ", line 2: topology.acker.local is set a second time .first in line 1.",
        ),
        ("app.a: &x [1]\napp.b: *x\n", r", line 2: aliases \(\*name\) are not accepted"),
        ("app.a: " + "[" * 5000, "nested deeper than 32 levels"),
        (
            "app.a: !!python/object/apply:os.system ['true']\n",
            "is not YAML: could not determine a constructor",
        ),
        (
            "app.x: '" + "y" * 500 + "'\ntopology.acker.local: '" + "y" * 500 + "'\n",
            r"expected a boolean, got a string, 'y+\.\.\.",
        ),
        (b"topology.acker.local: true\ntopology.name: \xff\n", ", line 2: not UTF-8 text"),
        (b"topology.name: \x00\n", "is not YAML: "),
        (b"#" * 2_000_000, " is larger than 1048576 bytes"),
    ],
)
def test_each_mistake_in_a_file_is_named(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert re.search(
        said.replace("?", r"\?") if "did you mean" in said else said, refusal(tmp_path, text)
    )


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"nowhere\.yaml cannot be read: No such file"):
        load_conf(tmp_path / "nowhere.yaml")
    with pytest.raises(InvalidConfigError, match="cannot be read: Is a directory"):
        load_conf(tmp_path)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("topology.workers=3", ("topology.workers", 3)),
        ("topology.name=007", ("topology.name", "007")),
        ("topology.name=a=b", ("topology.name", "a=b")),
        ("topology.max.spout.pending=null", ("topology.max.spout.pending", None)),
        ("topology.message.timeout.secs=0.5", ("topology.message.timeout.secs", 0.5)),
        ("topology.bolt.parallelism={count: 4}", ("topology.bolt.parallelism", {"count": 4})),
        ("app.paths=[a, b]", ("app.paths", ["a", "b"])),
        ("app.flag=", ("app.flag", None)),
    ],
)
def test_an_override_is_read_as_yaml(argument: str, expected: object) -> None:
    assert parse_override(argument) == expected


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("topology.workers", "-c topology.workers: expected key=value"),
        ("=3", "-c =3: expected key=value"),
        (
            "topology.workers=three",
            "-c topology.workers=three: topology.workers: expected an integer",
        ),
        ("topology.wrokers=3", "did you mean topology.workers"),
        ("app.a=[1", r"-c app\.a=\[1 is not YAML"),
    ],
)
def test_each_mistake_in_an_override_is_named(argument: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        parse_override(argument)


def test_no_message_and_no_listing_shows_a_password() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        check({"sparkstorm.redis.password": ["geheim"]}, "here")
    conf = merge({"sparkstorm.redis.password": "geheim"})
    assert "geheim" not in str(caught.value) + repr(conf) + str(conf.without_secrets())
    assert conf["sparkstorm.redis.password"] == "geheim"
    assert "geheim" not in str(conf.for_slots()) and set(conf.for_slots()) == set(conf)


def test_a_conf_cannot_be_changed_through_what_it_gives() -> None:
    conf = merge({"app.list": [1, [2]]})
    conf["app.list"][1].append(3)
    conf.as_dict()["app.list"].append(4)
    assert conf["app.list"] == [1, [2]]
    assert not hasattr(conf, "__setitem__")
    assert not hasattr(conf, "update")


def test_changing_what_a_layer_was_made_of_changes_no_conf() -> None:
    layer = {"app.list": [1]}
    conf = merge(layer)
    layer["app.list"].append(2)
    assert conf["app.list"] == [1]


def test_a_conf_travels_by_pickle_and_as_json() -> None:
    conf = merge({"topology.workers": 7, "app.mine": {"a": [1, None, "x"]}})
    assert pickle.loads(pickle.dumps(conf)) == conf
    assert Conf(json.loads(json.dumps(conf.as_dict()))) == conf


def test_typed_readings_give_the_type_or_name_the_key() -> None:
    conf = merge({"topology.message.timeout.secs": 0.25})
    assert conf.millis("topology.message.timeout.secs") == 250
    assert conf.millis("topology.epoch.idle.ms") == 5
    assert conf.integer("topology.workers") == 1
    assert conf.text("storm.zookeeper.root") == "/storm"
    assert conf.flag("topology.acker.local") is True
    with pytest.raises(TypeError, match=r"topology\.max\.spout\.pending is null, not an integer"):
        conf.integer("topology.max.spout.pending")
    with pytest.raises(TypeError, match=r"topology\.workers is an integer, 1, not a time"):
        conf.millis("topology.workers")
    with pytest.raises(TypeError, match="not a string"):
        conf.text("topology.workers")
    with pytest.raises(TypeError, match="not a boolean"):
        conf.flag("topology.workers")


def test_asking_for_an_unknown_key_suggests_the_known_one() -> None:
    conf = default_conf()
    with pytest.raises(KeyError, match=r"did you mean topology\.workers"):
        conf["topology.worker"]
    assert "topology.worker" not in conf
    assert conf.get("topology.worker", 5) == 5


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(keys())) | st.text(), values, max_size=4))
def test_any_settings_are_taken_unchanged_or_refused_in_one_sentence(
    settings: dict[str, object],
) -> None:
    refusal = ""
    try:
        assert check(settings, "here") == settings
    except InvalidConfigError as error:
        refusal = str(error)
    assert refusal == "" or refusal.startswith("here: ")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_at_all_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    refusal = ""
    try:
        assert isinstance(load_conf(path), dict)
    except InvalidConfigError as error:
        refusal = str(error)
    assert refusal == "" or "any.yaml" in refusal
