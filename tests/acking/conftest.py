"""List of ledgers that must all keep the same laws."""

from __future__ import annotations

import pytest

from sparkstorm.common.model import compiled
from sparkstorm.data_plane.acking.ledger import DictLedger
from sparkstorm.data_plane.acking.table_ledger import TableLedger
from sparkstorm.data_plane.acking.tree_batches import TreeBatches
from tests.acking.messages import MakeLedger


@pytest.fixture(params=["dict", "table", "batches"])
def make(request: pytest.FixtureRequest) -> MakeLedger:
    """Makes an empty ledger of each kind."""
    if request.param == "dict":
        return DictLedger
    if request.param == "batches":
        return TreeBatches
    if compiled.core is None:
        pytest.skip(compiled.description)
    return TableLedger
