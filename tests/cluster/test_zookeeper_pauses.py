"""Checks the pauses between two tries of a request to ZooKeeper, and the time limits of
requests.
"""

from __future__ import annotations

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError
from kazoo.retry import ForceRetryError, KazooRetry, RetryFailedError

from sparkstorm.control_plane.cluster.zookeeper_patience import Pauses, SessionPatience


@pytest.mark.parametrize(
    ("error", "back_after_s", "slept_s"),
    [
        (ConnectionLoss, 0.0, 0.1),  # cut, and there again at once
        (ConnectionLoss, 0.3, 0.3),
        (ConnectionLoss, 9.9, 1.0),
        (ForceRetryError, 0.0, 1.0),  # connected and without an answer: the whole pause
    ],
)
def test_a_pause_after_a_cut_ends_with_the_next_connection(
    error: type[Exception], back_after_s: float, slept_s: float
) -> None:
    slept: list[float] = []
    answers = iter([error, None])

    def ask() -> str:
        if raised := next(answers):
            raise raised
        return "answer"

    pauses = Pauses(lambda: sum(slept) >= back_after_s - 0.001, slept.append)
    retry = KazooRetry(
        max_tries=5, delay=1.0, max_jitter=0.0, sleep_func=pauses.sleep, interrupt=lambda: False
    )
    assert retry(pauses.watching, ask) == "answer"
    assert sum(slept) == pytest.approx(slept_s)


def test_unanswered_requests_of_an_ending_owner_share_one_time_limit() -> None:
    now_s, given = [0.0], list[float]()
    patience = SessionPatience(10.0, lambda: now_s[0])

    def ask(error: type[Exception] | None, took_s: float = 99.0) -> None:
        try:
            with patience as limit_s:
                given.append(limit_s)
                now_s[0] += min(took_s, limit_s)
                if error:
                    raise error
        except (RetryFailedError, NoNodeError):
            return

    ask(RetryFailedError)
    ask(RetryFailedError)
    patience.bound(2.0)
    for error, took_s in (
        (None, 1.5),
        (NoNodeError, 1.5),
        (RetryFailedError, 0.5),
        (RetryFailedError, 99.0),
        (RetryFailedError, 99.0),
    ):
        ask(error, took_s)
    patience.bound(2.0)
    ask(RetryFailedError)
    assert given == [10.0, 10.0, 2.0, 2.0, 2.0, 1.5, 0.1, 0.1]
