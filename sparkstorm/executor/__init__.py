"""User code inside a worker: emitters, runners of bolts, state, windows, watermarks. Shared with
batch replay.
"""
