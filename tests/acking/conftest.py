"""Owns the list of ledgers that must all keep the same laws."""

from __future__ import annotations

import pytest

from sparkstorm.acking import DictLedger
from tests.acking.messages import MakeLedger


@pytest.fixture(params=[DictLedger])
def make(request: pytest.FixtureRequest) -> MakeLedger:
    """Makes an empty ledger of each kind."""
    return request.param  # type: ignore[no-any-return]
