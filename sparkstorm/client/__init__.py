"""Client of a cluster that runs, without Spark and without Java."""

from sparkstorm.client.cluster import ClusterClient
from sparkstorm.client.connect import connect
from sparkstorm.client.handle import TopologyHandle, TopologyProgress

__all__ = ["ClusterClient", "TopologyHandle", "TopologyProgress", "connect"]
