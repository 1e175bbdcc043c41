"""The options of a replay that leaves a checkpoint: mistakes are answered before Spark starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import Effects
from sparkstorm.common.errors import InvalidConfigError, ReplayFailedError
from sparkstorm.driver.exit_status import FAILED
from sparkstorm.driver.replay import job as replay_job
from sparkstorm.driver.replay.job_part import NOTE, read_replay
from sparkstorm.driver.replay.run import ReplayRun, passed_over, result_folders

JOB = Path(__file__).parents[2] / "conf" / "wordcount.yaml"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"lines": -1}, r"replay: rows\.lines: expected an integer from 0 to \d+, got -1"),
        ({"lines": True}, r"rows\.lines: expected an integer .*, got True"),
        ({"lines": "9"}, r"rows\.lines: expected an integer .*, got '9'"),
        ([9], r"replay: rows: expected an object, got \[9\]"),
    ],
)
def test_rows_are_numbers_by_spout(rows: Any, said: str) -> None:
    result = read_replay("job.yaml", {"rows": {"lines": 5}, "checkpoint": "half"}).rows
    assert result == {"lines": 5}
    with pytest.raises(InvalidConfigError, match=said):
        read_replay("job.yaml", {"rows": rows})


@pytest.mark.parametrize("rows", ["lines", "lines=", "lines=-1", "lines=1e3", "lines=²"])
def test_rows_on_the_command_line_are_numbers_by_spout(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        str(JOB),
        "--output",
        str(tmp_path / "out"),
        "--checkpoint",
        str(tmp_path / "half"),
        "--rows",
        rows,
    ]
    assert replay_job.main(arguments) == FAILED
    assert f"--rows {rows}: write SPOUT=NUMBER" in capsys.readouterr().err


def test_the_inputs_of_a_replay_with_a_checkpoint_are_the_spouts_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reads_files.py").write_text(
        "from sparkstorm.connectors import FileLines, find_files\ndef build(input):\n    return FileLines(find_files(input))\n"
    )
    (tmp_path / "job.yaml").write_text("topology: reads_files:build\n")
    arguments = [
        str(tmp_path / "job.yaml"),
        "--output",
        "out",
        "--checkpoint",
        "half",
        "--input",
        str(tmp_path / "nowhere"),
    ]
    assert replay_job.main(arguments) == FAILED
    assert (
        f"input {tmp_path / 'nowhere'}: there is no such file or folder" in capsys.readouterr().err
    )


def test_files_that_spark_leaves_out_are_told(tmp_path: Path) -> None:
    for name in ("a.txt", "_SUCCESS", ".a.txt.crc", "day=_1/part.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert (
        passed_over("lines", str(tmp_path))
        == passed_over("lines", str(tmp_path / "a.txt"))
        == passed_over("t", "no")
        == ""
    )
    for name in ("_pydecimal.py", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert passed_over("lines", str(tmp_path)) == (
        "input 'lines': Spark passes over 2 files whose own or folder's name begins with _ or . (as .git/config); "
        "rename them if they are data"
    )


def test_results_have_folders_of_their_own_which_a_later_replay_may_replace(tmp_path: Path) -> None:
    names = ["count", "count!state", "split:late", "a/b", "../up", ".."]
    folders = result_folders(tmp_path / "out", names)
    result = [folders[name].name for name in names]
    assert result == ["count", "count.state", "split.late", "a%2Fb", "%2E.%2Fup", "%2E."]
    assert {folder.parent for folder in folders.values()} == {tmp_path / "out"}
    folders["count"].mkdir()
    assert result_folders(tmp_path / "out", ["count", "dead-letters"])["count"] == folders["count"]
    assert result_folders(tmp_path / "out", ["a/b"]), "what an earlier replay wrote stays noted"


def test_a_folder_that_no_replay_wrote_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "count").mkdir()
    sentence = r"--output .*: count was not written by a replay; name another folder"
    with pytest.raises(InvalidConfigError, match=sentence):
        result_folders(tmp_path, ["lines", "count"])
    result_folders(tmp_path, ["lines"])
    (tmp_path / "lines").symlink_to(tmp_path / "count")
    with pytest.raises(InvalidConfigError, match="lines was not written by a replay"):
        result_folders(tmp_path, ["lines"])


@pytest.mark.parametrize(
    "names", [["a!state", "a.state"], ["a:b", "a.b"], ["dead-letters", "dead-letters"]]
)
def test_two_results_for_one_folder_are_refused(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="would both be written to"):
        result_folders(tmp_path / "out", names)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_output_that_is_a_file_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(JOB.parents[1] / "jobs"))
    (tmp_path / "out").write_text("x")
    assert (
        replay_job.main([str(JOB), "--output", str(tmp_path / "out"), "--input", str(tmp_path)])
        == FAILED
    )
    assert f"--output {tmp_path / 'out'} is no folder" in capsys.readouterr().err


def test_effects_are_words_in_a_job_file_and_members_of_effects_from_there_on() -> None:
    result = read_replay("job.yaml", {"effects": {"alert": "mute"}}).effects
    assert result == {"alert": Effects.MUTE}
    sentence = r"replay: effects\.alert: expected one of run, idempotent, .*got 'muted'"
    with pytest.raises(InvalidConfigError, match=sentence):
        read_replay("job.yaml", {"effects": {"alert": "muted"}})


def test_a_failed_replay_names_the_option_and_leaves_a_folder_that_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(_run: ReplayRun, folder: Path, *_: Any) -> int:
        result_folders(folder, ["count"])
        raise ReplayFailedError("it failed on skip_bad; skip_bad puts such records aside")

    monkeypatch.syspath_prepend(str(JOB.parents[1] / "jobs"))
    monkeypatch.setattr(ReplayRun, "write", write)
    arguments = [str(JOB), "--input", str(JOB), "--output", str(tmp_path / "out")]
    for _ in range(2):
        assert replay_job.main(arguments) == FAILED
        said = capsys.readouterr().err
        assert said.endswith("it failed on skip_bad; --skip-bad puts such records aside\n"), said
    assert (tmp_path / "out" / NOTE).exists()
    (tmp_path / "out" / "count").mkdir()
    assert replay_job.main(arguments) == FAILED
    assert "there is something already" in capsys.readouterr().err
