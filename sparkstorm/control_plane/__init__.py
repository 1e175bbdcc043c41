"""The control plane: schedulers, Nimbus, supervisors, and the cluster state in ZooKeeper."""
