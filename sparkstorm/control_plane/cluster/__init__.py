"""Shared state of the cluster: a small tree store (ZooKeeper or its twin) and Storm's verbs over
it.
"""
