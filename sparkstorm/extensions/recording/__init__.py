"""Recordings: the input rows of live bolts in segments on disk."""
