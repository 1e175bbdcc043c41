"""List of ledgers that must all keep the same laws."""

from __future__ import annotations

import pytest

from sparkstorm.acking import DictLedger, TableLedger
from sparkstorm.model import compiled
from tests.acking.messages import MakeLedger


@pytest.fixture(params=["dict", "rows", "columns", "compiled"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeLedger:
    """Makes an empty ledger of each kind; the table once with each of its ways for every batch."""
    if request.param == "dict":
        return DictLedger
    if request.param == "compiled":
        if compiled.core is None:
            pytest.skip(compiled.description)
        return TableLedger
    monkeypatch.setattr("sparkstorm.acking.table_ledger.core", None)
    monkeypatch.setattr("sparkstorm.acking.table_ledger._COLUMNS_FROM", 1 if request.param == "columns" else 1 << 60)
    monkeypatch.setattr("sparkstorm.acking.table_ledger._ROWS_BELOW", 60 if request.param == "rows" else 1)
    return TableLedger
