"""Placement by traffic: executors that talk share a node, within limits of CPU and memory."""
