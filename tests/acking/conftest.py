"""List of ledgers that must all keep the same laws."""

from __future__ import annotations

import pytest

from sparkstorm.acking import DictLedger, TableLedger
from sparkstorm.model import compiled
from tests.acking.messages import MakeLedger


@pytest.fixture(params=["dict", "table"])
def make(request: pytest.FixtureRequest) -> MakeLedger:
    """Makes an empty ledger of each kind."""
    if request.param == "dict":
        return DictLedger
    if compiled.core is None:
        pytest.skip(compiled.description)
    return TableLedger
