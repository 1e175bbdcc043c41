"""The end of a worker's log, as its slot reads it after a death."""

from __future__ import annotations

from pathlib import Path

from sparkstorm.control_plane.supervisor.worker_process import last_lines


def test_the_last_lines_are_those_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "w.log"
    log.write_text("".join(f"{n}\n" for n in range(50)))
    assert last_lines(log, 3) == ["47", "48", "49"] and last_lines(tmp_path / "none") == []


def test_a_crash_report_begins_with_its_first_line(tmp_path: Path) -> None:
    log = tmp_path / "w.log"
    frames = [f'  File "f{n}.py", line {n} in g' for n in range(40)]
    log.write_text(
        "\n".join(
            [
                "Fatal Python error: Bus error",
                "of another process",
                "Fatal Python error: Aborted",
                *frames,
            ]
        )
    )
    assert last_lines(log, 4, has_crashed=True) == ["Fatal Python error: Aborted", *frames[:3]]
    assert last_lines(log, 2) == frames[-2:]
