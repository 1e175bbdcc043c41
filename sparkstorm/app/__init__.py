"""Owns the wiring of the real parts: a cluster inside a Spark driver, and the job that runs one topology on it."""
