"""Owns event time as pure rules: which windows an event belongs to, when they are complete, which events are late.

Nothing here reads a clock: time comes in as rows (each with its own time), as marks of the tasks that send them, and
as calls. What a live worker and a replay do with the same rows and marks is therefore the same. PURE.
"""
