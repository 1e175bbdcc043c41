"""Counts and statistics of one worker: what its tasks have counted, and meters of their calls."""
