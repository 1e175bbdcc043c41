"""One worker process: its loop, the epoch and its commit, back-pressure, retries, timers and
counts.
"""
