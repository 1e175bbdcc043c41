"""Owns the event by which a submitter asks Nimbus for a first assignment and hears the answer (S0.59-S0.61)."""

from sparkstorm.errors import SparkStormError
from sparkstorm.model.assignment import TopologyBase


class AssignEvent:
    """A submitted topology without a base in the store yet; Nimbus settles the event exactly once."""

    def __init__(self, base: TopologyBase) -> None:
        self.base = base
        self.error: SparkStormError | None = None
        self.is_settled = False

    def settle(self, error: SparkStormError | None = None) -> None:
        """Answer: None when the topology is assigned and recorded."""
        self.error = error
        self.is_settled = True  # last: the submitter's thread reads the error after it has seen this
