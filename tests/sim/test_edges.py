"""Seeds of the simulation at the edge of a commit, and faults of a worker that they must find."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sparkstorm.data_plane.acking.pending import MessageOutcome
from sparkstorm.data_plane.worker.tasks.blocking_spout import ThreadedSpout
from sparkstorm.data_plane.worker.tasks.spout_task import SpoutTask
from sparkstorm.testing import Subject, simulate
from sparkstorm.testing.faults import EDGE_KINDS, kinds_named
from sparkstorm.testing.trial import Trial
from sparkstorm.testing.trials import Trials
from tests.sim import edges
from tests.sim.topologies import subject

pytestmark = pytest.mark.sampled(8)

SUBJECTS = (
    edges.deleting,
    edges.blocking_deleting,
    edges.deleting_at_least_once,
    edges.blocking_at_least_once,
    edges.deleting_at_most_once,
    edges.blocking_at_most_once,
    edges.killed,
    edges.blocking_killed,
    edges.ended,
    edges.blocking_ended,
    edges.by_the_clock,
)


@pytest.mark.parametrize("make", SUBJECTS, ids=lambda make: make.__name__)
def test_nothing_is_lost_at_the_edge_of_a_commit(make: Callable[[], Subject]) -> None:
    assert simulate(make(), range(6)).faults > 10


@pytest.mark.parametrize("kind", EDGE_KINDS, ids=lambda kind: kind.name)
def test_each_kind_strikes(kind: Any) -> None:
    trials = Trials(subject("word_count", 6), [kind])
    assert not trials.problem(1)


def test_a_seed_with_threads_does_the_same_again() -> None:
    runs = [_log_of(edges.blocking_deleting(), 3) for _ in range(2)]
    assert runs[0] == runs[1]


def _log_of(of: Subject, seed: int) -> list[object]:
    trials = Trials(of, kinds_named(of.kinds))
    trial = Trial(of, seed, trials.faults(seed), trials.reference)
    trial.run()
    trial.cluster.end_threads()
    return [trial.cluster.simulation.steps, trial.cluster.now_ms, *trial.cluster.log]


def _close_early(patch: pytest.MonkeyPatch) -> None:
    close = SpoutTask.close

    def early(self: SpoutTask) -> None:
        self._callbacks.due += self.pending.take_callbacks()
        self._callbacks.due += [
            MessageOutcome(0, message_id) for message_id in self.collector.immediate
        ]
        close(self)

    patch.setattr(SpoutTask, "close", early)


def _ack_before_commit(patch: pytest.MonkeyPatch) -> None:
    ask = SpoutTask.ask

    def asked(self: SpoutTask, *arguments: Any) -> bool:
        did = ask(self, *arguments)
        self._callbacks.due += [
            MessageOutcome(0, message_id) for message_id in self.collector.immediate
        ]
        self.collector.immediate.clear()
        return did

    patch.setattr(SpoutTask, "ask", asked)


def _confirm_when_ordered(patch: pytest.MonkeyPatch) -> None:
    call_back = ThreadedSpout.call_back

    def called(self: ThreadedSpout, outcomes: Iterable[MessageOutcome]) -> None:
        told = list(outcomes)
        call_back(self, told)
        self._called += told

    patch.setattr(ThreadedSpout, "call_back", called)


def _end_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpoutTask, "is_waiting", property(lambda self: bool(len(self.pending))))


@pytest.mark.parametrize(
    ("plant", "make", "kinds", "seed"),
    [
        (_close_early, edges.deleting, ("STOP_WHILE_REFUSED",), 0),
        (_close_early, edges.killed, ("KILL_WHILE_REFUSED",), 36),
        (_ack_before_commit, edges.deleting_at_most_once, ("STOP_WHILE_REFUSED", "KILL_WORKER"), 0),
        (_confirm_when_ordered, edges.blocking_at_least_once, edges.WITHOUT_KILLS, 3),
        (_end_early, edges.blocking_ended, edges.WITHOUT_KILLS, 0),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_seeds_find_a_fault_of_callbacks(
    plant: Callable[[pytest.MonkeyPatch], None],
    make: Callable[[], Subject],
    kinds: tuple[str, ...],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = Trials(make(), kinds_named(kinds))
    assert not trials.problem(seed)
    plant(monkeypatch)
    assert trials.problem(seed)
