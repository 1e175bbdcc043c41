"""Supervisor of a node and its slots: each slot keeps one worker process as its assignment asks
for.
"""
