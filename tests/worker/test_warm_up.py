"""An acker with much to do goes over to compiled kernels without its ledger losing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkstorm.acking import TableLedger
from sparkstorm.model.codec import Codec
from sparkstorm.model.tuples import Source
from sparkstorm.worker.tasks.acker_task import AckerTask
from sparkstorm.worker.tasks.inbox import Inbox
from sparkstorm.worker.tasks.warm_up import AckerWarmUp


def _acker(roots: int) -> AckerTask:
    ledger = TableLedger()
    ids = list(range(1, roots + 1))
    ledger.apply((ids, ids, [7] * roots))
    return AckerTask(1, ledger, Inbox(1, Codec(), lambda task, stream: Source("", task, stream, ())))


def test_an_acker_with_few_open_trees_never_loads_anything() -> None:
    warm_up = AckerWarmUp([_acker(10)])
    warm_up.step()
    assert warm_up._thread is None


@pytest.mark.slow
def test_a_busy_acker_goes_over_to_kernels_and_keeps_its_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    acker = _acker(5000)
    warm_up = AckerWarmUp([acker])
    warm_up.step()
    assert warm_up._thread is not None
    warm_up._thread.join()
    warm_up.step()
    ids = list(range(1, 5001))
    settled = acker.ledger.apply(acks=(ids, ids))
    assert sorted(settled.acked_roots.tolist()) == ids
    assert len(acker.ledger) == 0
