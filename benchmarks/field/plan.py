"""Events of a run, by case and kind of system: on a quiet machine of two cores a run takes two to
six seconds, one on Spark ten to thirty: a job of a replay by event time costs 2 to 4 s of CPU however
few events it has, which made a third of the CPU of 300,000.

Queries of Nexmark share the sizes, since they share the events: each further size is generated,
written and answered once more.
"""

from __future__ import annotations

_LEAST = 30_000
_LITTLE = 100_000
_FEW = 300_000
_HALF = 500_000
_SOME = 1_000_000
_MANY = 2_000_000
_OF_SPARK = 4_000_000  # of batches and replays

# Events by case: of systems by rows; by columns and in SQL, where an event costs a fraction; of
# Storm, whose run has three phases of them; and of Flink's DataStream in Python, where it costs most
_EVENTS = {
    "nexmark q0": (_SOME, _MANY, _HALF, _LITTLE),
    "nexmark q1": (_SOME, _SOME, _HALF, _LITTLE),
    "nexmark q2": (_SOME, _MANY, _HALF, _LITTLE),
    "nexmark q3": (_MANY, _MANY, _SOME, _FEW),
    "nexmark q4": (_FEW, _FEW, _SOME, _FEW),
    "nexmark q5": (_FEW, _HALF, _SOME, _FEW),
    "nexmark q7": (_SOME, _SOME, _SOME, _LEAST),
    "nexmark q8": (_MANY, _MANY, _SOME, _FEW),
    "yahoo": (_FEW, _SOME, _FEW, _LEAST),
    "id bolt": (_MANY, _MANY, _HALF, _LITTLE),
    "word count": (_SOME, _MANY, _FEW, _LEAST),
}
# Bytewax's windows take twenty times as long as ours: q8 was more than a minute of each round
_OF_BYTEWAX = {"nexmark q8": _FEW}


def events_of(case: str, system: str) -> int:
    """Return the events of a run."""
    rows, columns, storm, datastream = _EVENTS[case]
    if system.startswith("Storm "):
        return storm
    if "DataStream" in system:
        return datastream
    if "replay on Spark" in system or (system.startswith("Spark ") and "batch" in system):
        return _OF_SPARK
    if system.startswith("Bytewax") and case in _OF_BYTEWAX:
        return _OF_BYTEWAX[case]
    is_cheap = "columns" in system or "SQL" in system or system.startswith("Spark ")
    return columns if is_cheap else rows
