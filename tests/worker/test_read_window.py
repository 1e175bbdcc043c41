"""Windows that follow the distance: frames read at once, bytes read ahead, and the length of an
epoch.
"""

from __future__ import annotations

import pytest

from sparkstorm.common.config import merge
from sparkstorm.common.settings import EpochSettings
from sparkstorm.data_plane.transport.base import Entry
from sparkstorm.data_plane.worker.epoch import Epoch, RandomIds
from sparkstorm.data_plane.worker.epoch_budget import Budget
from sparkstorm.data_plane.worker.read_window import (
    LEAST_FRAMES,
    MOST_FRAMES,
    WINDOW_BYTES,
    ReadWindow,
)


def answer(count: int, size: int = 60, task: int = 1) -> list[Entry]:
    """Return an answer of so many frames for a task."""
    return [Entry(task, f"{number}-0", b"x" * size) for number in range(count)]


def grown(size: int = 60) -> ReadWindow:
    window = ReadWindow()
    for _ in range(20):
        assert window.note(answer(window.frames, size))
    return window


def test_full_answers_double_the_window_up_to_its_bounds() -> None:
    window = ReadWindow()
    window.note(answer(LEAST_FRAMES))
    assert window.frames == 2 * LEAST_FRAMES
    assert grown().frames == MOST_FRAMES
    assert grown(64 << 10).frames == WINDOW_BYTES // (64 << 10)
    assert grown(512 << 10).frames == LEAST_FRAMES


@pytest.mark.parametrize("size", [60, 5 << 20])
def test_an_answer_that_is_not_full_leaves_the_least_window_as_it_is(size: int) -> None:
    window = ReadWindow()
    for count in range(LEAST_FRAMES):
        assert not window.note(answer(count, size))
        assert window.frames == LEAST_FRAMES


def test_many_tasks_with_few_frames_each_are_no_full_answer() -> None:
    window = ReadWindow()
    assert not window.note([entry for task in range(20) for entry in answer(2, task=task)])
    assert window.frames == LEAST_FRAMES


def test_larger_frames_and_small_answers_let_it_shrink_and_none_leaves_it() -> None:
    window = grown()
    window.note(answer(MOST_FRAMES // 2, 2048))
    assert window.frames == WINDOW_BYTES // 2048
    assert not window.note([])
    assert window.frames == WINDOW_BYTES // 2048
    for _ in range(12):
        window.note(answer(1))
    assert window.frames == LEAST_FRAMES


def test_a_task_reads_ahead_so_many_frames_and_bytes() -> None:
    window = grown()
    assert window.has_room(MOST_FRAMES - 1, 0)
    assert not window.has_room(MOST_FRAMES, 0)
    assert not window.has_room(1, WINDOW_BYTES)


def loaded_ms(commit_ms: float) -> int:
    """Length to which epochs grow that never come to an end by themselves."""
    budget, epoch = Budget(EpochSettings.of(merge({}))), Epoch(RandomIds(), False)
    for _ in range(100):
        budget.note_commit(commit_ms)
        budget.end(was_over=True)
    budget.begin(0)
    return next(ms for ms in range(10_000) if budget.is_over(epoch, ms))


def test_an_epoch_under_load_is_as_long_as_a_slow_commit() -> None:
    assert loaded_ms(1) == 50
    assert loaded_ms(200) == 200
    assert loaded_ms(5_000) == 500
