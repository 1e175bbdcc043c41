"""A sink around any other, whose worker dies at the n-th phase; and a run of a sink under every
such death.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from sparkstorm.api import TopologyBuilder, TransactionalSink
from sparkstorm.common.model.dead_letter import DeadLetter
from sparkstorm.testing import FeederSpout, LocalCluster, Shared, die

CONF = {
    "topology.epoch.rows": 4,
    "topology.max.worker.deaths": 1000,
    "topology.sink.patience.secs": 1,
}


class CrashingSink(TransactionalSink):
    """Counts phases down and dies before or after one; its connections are closed then, as by the
    end of a process.
    """

    opened: ClassVar[list[TransactionalSink]] = []

    def __init__(self, inner: TransactionalSink, left: Shared[list[int]]) -> None:
        self.inner, self.left = inner, left

    def step(self) -> None:
        self.left.value[0] -= 1
        if self.left.value[0] == 0:
            self.inner.cleanup()
            die()

    def open(self, conf: Any, context: Any) -> None:
        self.opened.append(self.inner)
        self.inner.open(conf, context)

    def begin(self, epoch: int) -> None:
        self.inner.begin(epoch)

    def write(self, tup: Any) -> None:
        self.inner.write(tup)

    def prepare(self, epoch: int) -> Any:
        prepared = self.inner.prepare(epoch)
        self.step()
        return prepared

    def commit(self, epoch: int, prepared: Any) -> None:
        self.step()
        self.inner.commit(epoch, prepared)
        self.step()

    def recover(self, epoch: int, prepared: Any) -> None:
        self.inner.recover(epoch, prepared)
        self.step()

    def cleanup(self) -> None:
        self.inner.cleanup()


def feed(
    sink: TransactionalSink,
    fields: Sequence[str],
    rows: Sequence[Sequence[Any]],
    conf: Mapping[str, Any] | None = None,
) -> list[DeadLetter]:
    """Write rows on a simulated cluster; the dead letters."""
    spout, builder = FeederSpout(list(fields)), TopologyBuilder()
    builder.set_spout("feed", spout)
    builder.set_bolt(
        "sink",
        sink if isinstance(sink, CrashingSink) else CrashingSink(sink, Shared([0])),
        inputs="feed",
    )
    try:
        with LocalCluster() as cluster:
            cluster.submit(builder.build(), {**CONF, **(conf or {})})
            for row in rows:
                spout.feed(row)
            cluster.run_until_idle()
            return cluster.dead_letters
    finally:
        while CrashingSink.opened:
            CrashingSink.opened.pop().cleanup()


def die_everywhere(
    make: Callable[[int], tuple[TransactionalSink, Callable[[], None]]], rows: int = 20
) -> int:
    """Run once for each phase, with a death there; `make` returns a fresh sink for (n, text) and
    the check of its target.
    """
    data = [(n, f"text {n}") for n in range(rows)]
    sink, check = make(0)
    clean = Shared([0])
    feed(CrashingSink(sink, clean), ["n", "text"], data)
    check()
    for number in range(1, -clean.value[0] + 1):
        sink, check = make(number)
        feed(CrashingSink(sink, Shared([number])), ["n", "text"], data)
        try:
            check()
        except AssertionError as error:
            raise AssertionError(f"death at phase {number}: {error}") from error
    return -clean.value[0]
