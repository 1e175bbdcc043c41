"""Owns the protocol that every scheduler, built in or plugged in, follows (S4.1, S4.5)."""

from typing import Protocol

from sparkstorm.scheduling.records import Conf, Topologies
from sparkstorm.scheduling.view import ClusterView


class Scheduler(Protocol):
    """Storm's IScheduler. Laws: results go through the cluster's verbs only; equal input gives equal output."""

    def prepare(self, conf: Conf) -> None:
        """Read the cluster's configuration, once, before the first round; InvalidConfigError when it is unfit."""

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Place what `topologies` lack in `cluster`; topologies that need nothing are in both all the same."""
