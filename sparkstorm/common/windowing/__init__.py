"""Event time as pure rules: the windows of an event, when they are complete, which events are late.

Nothing here reads a clock: time is an argument, of rows, watermarks and calls. So a live worker and
a replay do the same with the same rows and watermarks. PURE.
"""
