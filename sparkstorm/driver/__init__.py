"""Wiring of the real parts: a cluster inside a Spark driver, and the jobs that run on it."""
