"""The benchmarks by which the field compares stream processors, each against an oracle, next to
other systems.
"""
