"""Examples of docs/laboratory.md, run as printed, and the laboratory's errors."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.extensions.laboratory import Scene, compare, generate

PAGE = Path(__file__).parents[2] / "docs" / "laboratory.md"


@pytest.mark.slow
def test_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, words)
    said = capsys.readouterr().out
    assert "resource-aware" in said and "node-00003:" in said and "topology-00002" in said
    assert words["scene"].measures()["unplaced"] == 0

    packed = words["scene"].scheduled("default").view()
    packed.free_slots(list(packed.used_slots()))
    words["Packed"]().schedule(packed.topologies, packed)
    nodes = {slot.node for placed in packed.assignments().values() for slot in placed.values()}
    assert nodes == {"node-00000", "node-00001", "node-00002"}


def test_who_has_no_place_is_told_with_the_schedulers_reason() -> None:
    small = generate(num_nodes=1, num_topologies=2, executors_each=9, workers_each=3)
    (row,) = compare(small, ["jstorm"])
    words = "there's no enough worker. allocWorkerNum=3, availableWorkerNum=1,reserveWorkerNum=0"
    assert (row["placed"], row["unplaced"], row["reason"]) == (9, 9, words)
    result = small.scheduled("jstorm").unplaced()
    assert result == [{"topology": "topology-00001", "unplaced": 9, "reason": words}]
    (fits,) = compare(small, ["default"])
    assert (fits["unplaced"], fits["reason"]) == (0, None)


def test_what_is_misspelt_is_named() -> None:
    scene = generate(2, 1, 3, 1)
    sentence = r"no supervisor 'nobody', only node-00000, node-00001"
    with pytest.raises(InvalidConfigError, match=sentence):
        scene.without("nobody")
    sentence = r"JStorm's form is no scene: `sparkstorm schedule` answers it"
    with pytest.raises(InvalidConfigError, match=sentence):
        Scene.from_text('{"scheduler": "jstorm", "assign_type": "NEW"}')


@pytest.mark.slow
def test_a_reader_who_has_enough_is_no_fault() -> None:
    problem = generate(2, 1, 3, 1).to_text().encode()
    command = [sys.executable, "-m", "sparkstorm.cli", "schedule", "-", "--lines"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as asked:
        assert asked.stdin and asked.stdout and asked.stderr
        asked.stdout.close()
        asked.stdin.write(b"\n".join([problem] * 3))
        asked.stdin.close()
        assert asked.stderr.read() == b""
