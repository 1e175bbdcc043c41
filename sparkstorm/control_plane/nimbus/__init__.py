"""Nimbus: the master that assigns topologies to slots, and the service that takes requests."""
