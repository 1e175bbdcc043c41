"""The board of Nimbus's problems: what a finder does not find any more is gone, and only changes
are written.
"""

from __future__ import annotations

from sparkstorm.control_plane.cluster.local import LocalStateStore, LocalStateTree
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.nimbus.error_reports import ProblemBoard
from tests.nimbus.nimbus_bench import KEY


def made() -> tuple[ProblemBoard, StormState]:
    state = StormState(LocalStateStore(LocalStateTree()), KEY)
    return ProblemBoard(state), state


def test_a_finder_replaces_its_own_sentences_alone() -> None:
    board, _ = made()
    board.put("pauses", {"words-1": "paused for its failures"})
    board.put("round", {"words-1": "a worker cannot start", "scheduler": "no answer"})
    assert board.problems == {"words-1": "paused for its failures", "scheduler": "no answer"}
    board.put("pauses", {})
    assert board.problems == {"words-1": "a worker cannot start", "scheduler": "no answer"}


def test_only_changes_are_written() -> None:
    board, state = made()
    written: list[tuple[int, dict[str, str]]] = []
    turns: list[tuple[int, dict[str, str]]] = [
        (1, {}),
        (2, {}),
        (3, {"turn": "broke off"}),
        (4, {"turn": "broke off"}),
        (5, {}),
    ]
    for now_ms, problems in turns:
        board.put("turn", problems)
        board.show(now_ms)
        found = state.read_problems()
        assert found is not None
        written.append((found.time_ms, dict(found.by_subject)))
    assert written == [
        (1, {}),
        (1, {}),
        (3, {"turn": "broke off"}),
        (3, {"turn": "broke off"}),
        (5, {}),
    ]
