"""Helpers of system tests: real processes, servers and connections, watched and put under faults
from outside.
"""
