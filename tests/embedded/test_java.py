"""Search for a Java runtime and its installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkstorm.common.errors import EmbeddedServerError
from sparkstorm.extensions.embedded.java import (
    DEBIAN_PACKAGE,
    find_java,
    install_java,
    java_version,
    main,
)


def a_java(folder: Path, version: str) -> Path:
    """A program that says what java would."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("said", "major"),
    [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("1.8.0_392", 8), ("11.0.2", 11)],
)
def test_versions_of_every_age_are_understood(tmp_path: Path, said: str, major: int) -> None:
    assert java_version(str(a_java(tmp_path, said))) == major


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, on_path = a_java(tmp_path / "home" / "bin", "21"), a_java(tmp_path / "path", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert find_java(environ) == str(home)
    assert find_java({**environ, "JAVA_HOME": ""}) == str(on_path)


def test_an_old_java_home_gives_way_to_a_newer_one_on_the_path(tmp_path: Path) -> None:
    a_java(tmp_path / "home" / "bin", "11.0.2")
    on_path = a_java(tmp_path / "path", "17.0.1")
    result = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")})
    assert result == str(on_path)


def test_only_old_ones_are_an_error_that_names_them_and_the_package(tmp_path: Path) -> None:
    old = a_java(tmp_path, "1.8.0_392")
    with pytest.raises(EmbeddedServerError, match=rf"{old} is version 8\): .*{DEBIAN_PACKAGE}"):
        find_java({"PATH": str(tmp_path)})


def test_no_java_is_one_line_that_says_what_to_install(tmp_path: Path) -> None:
    sentence = rf"none was found\): .*{DEBIAN_PACKAGE}\) or set JAVA_HOME"
    with pytest.raises(EmbeddedServerError, match=sentence) as caught:
        find_java({"PATH": str(tmp_path)})
    assert "\n" not in str(caught.value)


def without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apt: str) -> None:
    """A machine with no Java, whose apt-get is the given script."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "apt-get"
    program.write_text(f"#!/bin/sh\n{apt}\n")
    program.chmod(0o755)
    (tmp_path / "bin" / "cp").symlink_to("/bin/cp")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_where_there_is_none_root_gets_debians(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    debians = a_java(tmp_path / "archive", "17.0.15")
    wanted = f'if [ "$*" = "install -y --no-install-recommends {DEBIAN_PACKAGE}" ]; then cp {debians} {tmp_path}/bin; fi'
    without_java(tmp_path, monkeypatch, wanted)
    assert install_java(is_root=True) == f"{tmp_path}/bin/java"
    assert f"installing {DEBIAN_PACKAGE}" in capsys.readouterr().err
    assert main(["--install", "--home"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"


def test_a_failed_installation_shows_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_java(tmp_path, monkeypatch, "echo a; echo 'E: no route to the archive' >&2; exit 100")
    sentence = r"apt-get update failed \(E: no route to the archive\)"
    with pytest.raises(EmbeddedServerError, match=sentence):
        install_java(is_root=True)


def test_without_install_nothing_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_java(tmp_path, monkeypatch, f"echo asked > {tmp_path}/asked")
    assert main([]) == 1
    assert not (tmp_path / "asked").exists()
    assert "Java 17 or newer is needed" in capsys.readouterr().err


def test_who_may_not_install_is_told_what_to_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_java(tmp_path, monkeypatch, f"echo asked > {tmp_path}/asked")
    with pytest.raises(EmbeddedServerError, match=DEBIAN_PACKAGE):
        install_java(is_root=False)
    assert not (tmp_path / "asked").exists()
