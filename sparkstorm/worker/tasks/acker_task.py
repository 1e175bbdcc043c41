"""One acker task: its ledger, the messages of an epoch, and the settled roots for the spouts."""

from __future__ import annotations

import numpy as np

from sparkstorm.acking.batch import Settled
from sparkstorm.acking.table_ledger import TableLedger
from sparkstorm.model.failure import Failure, FailureKind
from sparkstorm.transport.frames import AckerMessages, SettledRoots
from sparkstorm.worker.tasks.inbox import Inbox

UNKNOWN = Failure(FailureKind.FAILED, "failed; its acker was started again since, and does not know why")
_FEW_ROOTS = 48  # below it a plain loop is faster than numpy
_COLUMNS = ("init_roots", "init_values", "init_tasks", "ack_roots", "ack_values", "renewed")


class AckerTask:
    """One `__acker` task, after Storm's Acker."""

    def __init__(self, task: int, ledger: TableLedger, inbox: Inbox) -> None:
        self.task = task
        self.ledger = ledger
        self.inbox = inbox
        self.executed = 0
        self._failure_by_root: dict[int, Failure] = {}

    def apply(self, messages: list[AckerMessages]) -> dict[int, SettledRoots]:
        """Apply an epoch's messages as one batch; verdicts by spout task."""
        if not messages:
            return {}
        m = messages[0] if len(messages) == 1 else _joined(messages)
        self.executed += len(m)
        self._failure_by_root.update(m.failures)
        settled = self.ledger.apply((m.init_roots, m.init_values, m.init_tasks), (m.ack_roots, m.ack_values), list(m.failures))
        oldest_ms = min(m.oldest_ms for m in messages)
        verdicts = self._verdicts(settled, oldest_ms) if settled else {}
        if len(m.renewed):
            for task, roots in self.ledger.reset_timeouts(m.renewed).items():
                verdicts.setdefault(task, SettledRoots([], {}, oldest_ms)).renewed.extend(roots)
        return verdicts

    def rotate(self, keeps_begun: bool = False) -> None:
        """Age the ledger by one bucket; what drops out is forgotten silently (S1.19)."""
        if keeps_begun:
            self.ledger.renew_begun()
        self.ledger.rotate()
        self._failure_by_root = {r: why for r, why in self._failure_by_root.items() if r in self.ledger}

    def _verdicts(self, settled: Settled, oldest_ms: int) -> dict[int, SettledRoots]:
        verdicts: dict[int, SettledRoots] = {}
        if len(settled.acked_roots) <= _FEW_ROOTS:
            for root, task in zip(settled.acked_roots.tolist(), settled.acked_tasks.tolist(), strict=True):
                verdicts.setdefault(task, SettledRoots([], {}, oldest_ms)).acked.append(root)
        else:
            for task in np.unique(settled.acked_tasks).tolist():
                verdicts[task] = SettledRoots(settled.acked_roots[settled.acked_tasks == task].tolist(), {}, oldest_ms)
        for root, task in zip(settled.failed_roots.tolist(), settled.failed_tasks.tolist(), strict=True):
            verdicts.setdefault(task, SettledRoots([], {}, oldest_ms)).failed[root] = self._failure_by_root.pop(root, UNKNOWN)
        return verdicts


def _joined(messages: list[AckerMessages]) -> AckerMessages:
    joined = AckerMessages(failures={root: why for m in messages for root, why in m.failures.items()})
    for name in _COLUMNS:
        columns = [column for m in messages if len(column := getattr(m, name))]
        if len(columns) > 1 and all(type(column) is list for column in columns):
            columns = [[number for column in columns for number in column]]
        elif len(columns) > 1:
            columns = [np.concatenate([np.asarray(column, np.uint64) for column in columns])]
        if columns:
            setattr(joined, name, columns[0])
    return joined
