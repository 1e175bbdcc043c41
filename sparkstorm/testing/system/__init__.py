"""Helpers of system tests: real processes, servers and connections, watched and harmed from
outside.
"""
