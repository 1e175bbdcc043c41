"""Live shadow of a gray upgrade: which task is shadowed, and the figures of its worker's heartbeats
about the new code. PURE.

Laws: a worker is upgraded only after one process has compared as many tuples as the bar asks for
and found no difference; the first difference, or new code that cannot run, takes the upgrade back
before any worker was touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparkstorm.common.model.heartbeats import WorkerBeat
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.upgrade import GrayUpgrade

STATS = "shadow"
"""Name of the shadow's figures in a worker's heartbeat."""
_MOST_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """Figures of a live shadow; `skipped` tuples were not compared because it fell behind.
    `problem`: why it cannot go on.
    """

    component: str
    task: int
    code_key: str
    compared: int = 0
    different: int = 0
    skipped: int = 0
    first: tuple[str, ...] = ()
    problem: str = ""

    def __str__(self) -> str:
        return (
            f"{self.component}#{self.task}: {counted(self.compared, 'tuple')} compared, {self.different:,} come out differently, "
            f"{self.skipped:,} skipped"
        )


def shadowed_task(component: str, component_by_task: Mapping[int, str]) -> int | None:
    """Return the task next to which the new code runs: the first of the component; None when it has
    none.
    """
    return min(
        (task for task, name in component_by_task.items() if name == component), default=None
    )


def shadow_figures(upgrade: GrayUpgrade, beats: Iterable[WorkerBeat]) -> ShadowFigures | None:
    """Return the newest figures about the new code of an upgrade; None when no worker has reported
    any.
    """
    reports = [
        (beat.time_ms, figures)
        for beat in beats
        if (figures := _read(beat.stats.get(STATS))) is not None
    ]
    own = [
        (ms, figures)
        for ms, figures in reports
        if upgrade.shadow and figures.code_key == upgrade.code.code_key
    ]
    return max(own, key=lambda pair: pair[0])[1] if own else None


def judge_shadow(upgrade: GrayUpgrade, beats: Iterable[WorkerBeat]) -> tuple[bool, str]:
    """Return whether the bar is passed, and why the upgrade is to be taken back (a sentence, then
    the first differences).
    """
    bar = upgrade.unpassed_bar
    figures = shadow_figures(upgrade, beats)
    if bar is None or figures is None:
        return False, ""
    if figures.different:
        words = (
            f"{figures.different:,} of {figures.compared:,} tuples come out differently in the shadow of "
            f"{figures.component}#{figures.task}, before any worker was upgraded; the first:"
        )
        return False, "\n".join([words, *figures.first])[:_MOST_TEXT]
    if figures.problem:
        return (
            False,
            f"the shadow of {figures.component}#{figures.task} ended: {figures.problem[:_MOST_TEXT]}",
        )
    return figures.compared >= bar.tuples, ""


def _read(value: object) -> ShadowFigures | None:
    """Figures out of a heartbeat, which user code might have written; None when they are none."""
    if not isinstance(value, Mapping):
        return None
    texts = [value.get(name) for name in ("component", "code_key", "problem")]
    numbers = [value.get(name) for name in ("task", "compared", "different", "skipped")]
    first = value.get("first")
    if not all(isinstance(text, str) for text in texts) or not all(
        type(n) is int and n >= 0 for n in numbers
    ):
        return None
    if not isinstance(first, list | tuple) or not all(isinstance(text, str) for text in first):
        return None
    (component, code_key, problem), (task, compared, different, skipped) = (
        map(str, texts),
        map(int, numbers),  # type: ignore[arg-type]
    )
    return ShadowFigures(
        component, task, code_key, compared, different, skipped, tuple(first), problem
    )
