"""Passwords of a user's own servers: where they may be, which of them counts, and what is said when
others can read them.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.common.config import merge, parse_override
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.stores.connection import parse_redis_url
from sparkstorm.common.stores.passwords import REDIS, ZOOKEEPER, Places, exposed, password_of
from sparkstorm.control_plane.supervisor.worker_process import child_environment
from sparkstorm.driver.job import main

BOTH = pytest.mark.parametrize("places", [REDIS, ZOOKEEPER], ids=["redis", "zookeeper"])


def a_file(folder: Path, content: bytes, mode: int = 0o600) -> str:
    path = folder / "password"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@BOTH
def test_a_password_comes_from_its_key_its_file_or_the_environment(
    places: Places, tmp_path: Path
) -> None:
    environ = {places.variable: "of the environment"}
    file = a_file(tmp_path, b"of the file \n")
    assert password_of(merge({places.key: "given"}), places, environ) == "given"
    assert password_of(merge({places.file_key: file}), places, environ) == "of the file "
    assert password_of(merge({}), places, environ) == "of the environment"
    assert password_of(merge({}), places, {}) is None


@BOTH
def test_a_key_and_a_file_together_are_refused(places: Places, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="are both set"):
        password_of(merge({places.key: "given", places.file_key: a_file(tmp_path, b"x")}), places)


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"x", 0o640, "can be read by others: chmod 600"),
        (b"x", 0o604, "can be read by others"),
        (b"", 0o600, "must hold one line"),
        (b"a\nb\n", 0o600, "must hold one line"),
        (b"\xff\xfe", 0o600, "not UTF-8"),
        (b"x" * 100_000, 0o600, "far too large"),
    ],
)
def test_an_unfit_file_is_refused_with_its_name(
    content: bytes, mode: int, said: str, tmp_path: Path
) -> None:
    file = a_file(tmp_path, content, mode)
    with pytest.raises(InvalidConfigError, match=said) as refused:
        password_of(merge({REDIS.file_key: file}), REDIS)
    assert file in str(refused.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none", "cannot be read"), (tmp_path, "no regular file")):
        with pytest.raises(InvalidConfigError, match=said):
            password_of(merge({REDIS.file_key: str(path)}), REDIS)


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("sparkstorm.redis.password", "geheim", REDIS),
        ("storm.zookeeper.auth.password", "geheim", ZOOKEEPER),
        ("sparkstorm.redis.url", "redis://:geheim@host:6379", REDIS),
    ],
)
def test_a_password_that_others_can_read_is_warned_of(
    key: str, value: str, advice: Places, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: x")
    job.chmod(0o644)
    [typed] = exposed({key: value}, {key: value}, str(job))
    assert typed.startswith(f"{key} on the command line")
    assert advice.file_key in typed
    assert advice.variable in typed
    [written] = exposed({}, {key: value}, str(job))
    assert "chmod 600" in written and key in written
    assert "geheim" not in typed + written
    job.chmod(0o600)
    assert exposed({}, {key: value}, str(job)) == []


def test_addresses_without_a_password_are_no_reason_to_warn() -> None:
    own: dict[str, Any] = {
        "sparkstorm.redis.url": "redis://host:6379",
        "sparkstorm.redis.password": None,
    }
    assert exposed(own, own, "none.yaml") == []


def test_the_command_line_warns_before_it_does_anything_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text("topology: no_such_module:build\n")
    main([str(tmp_path / "job.yaml"), "-c", "sparkstorm.redis.password=geheim"])
    said = capsys.readouterr().err
    assert said.startswith(
        "warning: sparkstorm.redis.password on the command line shows a password"
    )
    assert "geheim" not in said


@pytest.mark.parametrize(
    "argument",
    [
        "sparkstorm.redis.pasword=geheim",
        "sparkstorm.redis.password:geheim",
        "sparkstorm.redis.passwordgeheim",
        "storm.zookeeper.auth.pasword=geheim",
    ],
)
def test_a_mistyped_override_does_not_show_its_password(argument: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_override(argument)
    assert "geheim" not in str(refused.value)


def test_a_redis_address_that_cannot_be_read_shows_no_part_of_it() -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_redis_url("redis://:ge/heim@host:6379")
    shown = "".join(traceback.format_exception(refused.value))
    assert "ge'" not in shown and "heim@" not in shown.replace('"redis://:ge/heim@host:6379"', "")


def test_user_code_finds_no_password_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (REDIS.variable, ZOOKEEPER.variable, "_SPARK_AUTH_SECRET"):
        monkeypatch.setenv(name, "geheim")
    assert "geheim" not in child_environment().values()
    assert set(child_environment()) - {"PYTHONPATH"} <= set(os.environ)
