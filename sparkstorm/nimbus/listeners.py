"""Callbacks of Nimbus: action listeners (S0.51, JStorm's ITopologyActionListener) and clean-up of data outside the store."""

from typing import Protocol


class TopologyActionListener(Protocol):
    """Told after something was done to a topology; what it raises is logged and changes nothing."""

    def notify(self, topology_name: str, action: str) -> None:
        """Hear of "submitTopology", "killTopology", "activate", "deactivate", "rebalance", "removeTopology", …"""
        ...


class TopologyRetirement(Protocol):
    """Told when a topology is removed, to delete what it left elsewhere (streams and state).

    Each call ends an id for good, and may come again at any later time from a leader that was deposed: it changes nothing then.
    """

    def retire(self, topology_id: str) -> None:
        """Delete what the topology left."""
        ...

    def hand_over(self, old_id: str, new_id: str) -> None:
        """Give what the old topology left to its successor (hot deploy), once: a second heir gets nothing."""
        ...


class NothingToRetire:
    """For clusters that keep nothing outside the state store."""

    def retire(self, topology_id: str) -> None:
        """Nothing to do."""

    def hand_over(self, old_id: str, new_id: str) -> None:
        """Nothing to do."""
