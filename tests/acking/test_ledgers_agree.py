"""The table of the compiled core equals the dict: random histories, messages by the way of few and
by that of many.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from sparkstorm.common.model import compiled
from sparkstorm.data_plane.acking.batch import columns_of
from sparkstorm.data_plane.acking.ledger import DictLedger
from sparkstorm.data_plane.acking.table_ledger import Ledger, TableLedger
from tests.acking.messages import acked, failed, rows_of
from tests.tiers import examples

# Few roots and few values: batches meet, values return to 0, roots come again.
ROOTS = st.integers(1, 60) | st.sampled_from([1 << 62, (1 << 63) - 1])
VALUES = st.integers(0, 7)
TASKS = st.integers(0, 3)
INITS = st.lists(st.tuples(ROOTS, VALUES, TASKS), max_size=40)
ACKS = st.lists(st.tuples(ROOTS, VALUES), max_size=40)
FAILS = st.lists(ROOTS, max_size=5)


def _columns(rows: list[Any], width: int) -> Any:
    return tuple(zip(*rows, strict=True)) if rows else ((),) * width


class LedgersAgree(RuleBasedStateMachine):
    """Says the same to every ledger and compares all that can be seen of them."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: Ledger = DictLedger()
        self.tables: dict[str, Ledger] = {}
        self.journal: dict[str, list[bytes]] = {}
        self.snapshots: dict[str, bytes] = {}

    @initialize()
    def begin(self) -> None:
        self.tables = {"lists": TableLedger(), "columns": TableLedger()}
        self.journal = {name: [] for name in ("dict", *self.tables)}
        self.snapshots = dict.fromkeys(self.journal, b"")

    def ledgers(self) -> dict[str, Ledger]:
        return {"dict": self.plain, **self.tables}

    def _each(self, say: Any) -> None:
        told = {}
        for name, ledger in self.ledgers().items():
            told[name] = say(name, ledger)
        assert all(answer == told["dict"] for answer in told.values()), told

    @rule(inits=INITS, acks=ACKS, fails=FAILS)
    def apply(self, inits: list[Any], acks: list[Any], fails: list[int]) -> None:
        def say(name: str, ledger: Ledger) -> Any:
            columns: Any = [*_columns(inits, 3), *_columns(acks, 2), fails]
            rows = len(inits) + len(acks) + len(fails)
            if name == "columns" and rows:  # else few numbers have their own way
                assert isinstance(ledger, TableLedger)
                settled = ledger._apply_batch(
                    columns_of(columns[:3], columns[3:5], columns[5]), rows
                )
            else:
                settled = ledger.apply(columns[:3], columns[3:5], columns[5])
            return acked(settled), failed(settled)

        self._each(say)

    @rule(first=st.integers(100, 400), count=st.integers(1, 150))
    def begin_many(self, first: int, count: int) -> None:
        roots = range(first, first + count)

        def say(_: str, ledger: Ledger) -> Any:
            settled = ledger.apply(inits=(list(roots), [root + 9 for root in roots], [2] * count))
            return acked(settled), failed(settled)

        self._each(say)

    @rule(first=st.integers(100, 400), count=st.integers(1, 150))
    def ack_many(self, first: int, count: int) -> None:
        roots = range(first, first + count)

        def say(_: str, ledger: Ledger) -> Any:
            settled = ledger.apply(acks=(list(roots), [root + 9 for root in roots]))
            return acked(settled), failed(settled)

        self._each(say)

    @rule()
    def rotate(self) -> None:
        self._each(lambda _, ledger: ledger.rotate())

    @rule(roots=st.lists(ROOTS, max_size=6))
    def reset_timeouts(self, roots: list[int]) -> None:
        # the same roots of the same tasks as well
        self._each(lambda _, ledger: ledger.reset_timeouts(roots))

    @rule()
    def commit(self) -> None:
        def say(name: str, ledger: Ledger) -> int:
            self.journal[name].append(ledger.take_delta())
            return len(self.journal[name][-1])

        self._each(say)

    @rule()
    def snapshot(self) -> None:
        self.commit()
        for name, ledger in self.ledgers().items():
            self.snapshots[name], self.journal[name] = ledger.snapshot(), []

    @rule()
    def restart(self) -> None:
        self.commit()
        for name, ledger in self.ledgers().items():
            before = rows_of(ledger)
            ledger.load(self.snapshots[name], self.journal[name])
            assert rows_of(ledger) == before
            assert ledger.take_delta() == b""

    @rule()
    def read_another_kinds_journal(self) -> None:
        self.commit()
        for name in self.tables:
            self.tables[name].load(self.snapshots["dict"], self.journal["dict"])
        self.plain.load(self.snapshots["dict"], self.journal["dict"])

    @invariant()
    def hold_the_same(self) -> None:
        for ledger in self.tables.values():
            assert len(ledger) == len(self.plain)
            assert rows_of(ledger) == rows_of(self.plain)


@pytest.mark.slow
@pytest.mark.skipif(compiled.core is None, reason=compiled.description)
def test_the_table_says_and_holds_what_the_dict_does() -> None:
    slow = [HealthCheck.too_slow]
    thorough = settings(
        max_examples=examples(40),
        stateful_step_count=25,
        derandomize=True,
        suppress_health_check=slow,
    )
    run_state_machine_as_test(LedgersAgree, settings=thorough)
