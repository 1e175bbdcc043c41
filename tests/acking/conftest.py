"""Owns the list of ledgers that must all keep the same laws."""

from __future__ import annotations

import pytest

from sparkstorm.acking import DictLedger, Kernels, TableLedger, load_kernels
from tests.acking.messages import MakeLedger


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    """Compiled once for the whole run."""
    pytest.importorskip("numba")
    loaded = load_kernels(tmp_path_factory.mktemp("kernels"))
    assert loaded is not None
    return loaded


@pytest.fixture(params=["dict", "rows", "columns", "compiled"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeLedger:
    """Makes an empty ledger of each kind; the table once with each of its three ways for every batch."""
    if request.param == "dict":
        return DictLedger
    monkeypatch.setattr("sparkstorm.acking.table_ledger._COLUMNS_FROM", 1 if request.param == "columns" else 1 << 60)
    monkeypatch.setattr("sparkstorm.acking.table_ledger._COMPILED_FROM", 1)
    monkeypatch.setattr("sparkstorm.acking.table_ledger._ROWS_BELOW", 60 if request.param == "rows" else 1)
    if request.param == "compiled":
        kernels = request.getfixturevalue("kernels")
        return lambda: TableLedger(kernels)
    return TableLedger
