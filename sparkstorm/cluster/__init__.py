"""Owns the seam to the cluster's shared state: a small tree store (ZooKeeper or its twin) and Storm's verbs over it."""
