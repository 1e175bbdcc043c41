"""Checks the pauses between two tries of a request to ZooKeeper."""

from __future__ import annotations

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.retry import ForceRetryError, KazooRetry

from sparkstorm.cluster.zookeeper import Pauses


@pytest.mark.parametrize(
    ("error", "back_after_s", "slept_s"),
    [
        (ConnectionLoss, 0.0, 0.1),  # cut, and there again at once
        (ConnectionLoss, 0.3, 0.3),
        (ConnectionLoss, 9.9, 1.0),
        (ForceRetryError, 0.0, 1.0),  # connected and without an answer: the whole pause
    ],
)
def test_a_pause_after_a_cut_ends_with_the_next_connection(error: type[Exception], back_after_s: float, slept_s: float) -> None:
    slept: list[float] = []
    answers = iter([error, None])

    def ask() -> str:
        if raised := next(answers):
            raise raised
        return "answer"

    pauses = Pauses(lambda: sum(slept) >= back_after_s - 0.001, slept.append)
    retry = KazooRetry(max_tries=5, delay=1.0, max_jitter=0.0, sleep_func=pauses.sleep, interrupt=lambda: False)
    assert retry(pauses.watching, ask) == "answer"
    assert sum(slept) == pytest.approx(slept_s)
