"""Owns what lives inside one worker: executors, the epoch and the loop that drives them."""
