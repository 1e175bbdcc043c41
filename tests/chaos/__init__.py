"""Chaos kit: topologies under faults drawn from a seed, simulated or in real processes, with
recovery times and exactness.
"""
