"""Memory of the acker's table: bytes for an open root, and memory given back."""

from __future__ import annotations

import numpy as np
import pytest

from sparkstorm.common.model import compiled
from sparkstorm.data_plane.acking.table_ledger import TableLedger


@pytest.mark.skipif(compiled.core is None, reason=compiled.description)
def test_an_open_root_costs_at_most_what_is_promised() -> None:
    ledger = TableLedger()
    roots = np.random.default_rng(2).integers(1, 1 << 62, 100_000)
    parts = [part.tolist() for part in np.split(roots, 100)]
    for part in parts:
        ledger.apply((part, part, [2] * len(part)))
        ledger.take_delta()
        if len(ledger) >= 10_000:
            assert ledger.bytes_per_root() <= 45
    for part in parts:
        ledger.apply(acks=(part, part))
        ledger.take_delta()
    ledger.rotate()
    assert len(ledger) == 0
    ledger.apply(([1], [2], [3]))
    assert ledger.bytes_per_root() < 4000  # memory is given back
