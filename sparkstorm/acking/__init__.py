"""Owns message tracking: an acker's ledger of open trees, a spout's pending messages, and time-outs by rotation.

Pure: no clock, no random, no I/O. Edges that begin and end inside one epoch never come here; what does come is already
combined per root, as columns.
"""

from sparkstorm.acking.batch import Settled
from sparkstorm.acking.compiled import Kernels, load_kernels
from sparkstorm.acking.ledger import DictLedger
from sparkstorm.acking.pending import Completion, Outcome, Pending
from sparkstorm.acking.rotating import RotatingMap
from sparkstorm.acking.table_ledger import TableLedger

__all__ = [
    "Completion",
    "DictLedger",
    "Kernels",
    "Outcome",
    "Pending",
    "RotatingMap",
    "Settled",
    "TableLedger",
    "load_kernels",
]
