"""List of ledgers that must all keep the same laws."""

from __future__ import annotations

import pytest

from sparkstorm.data_plane.acking.ledger import Ledger
from sparkstorm.data_plane.acking.tree_batches import TreeBatches
from tests.acking.messages import MakeLedger


@pytest.fixture(params=[Ledger, TreeBatches])
def make(request: pytest.FixtureRequest) -> MakeLedger:
    """Makes an empty ledger of each kind."""
    kind: MakeLedger = request.param
    return kind
