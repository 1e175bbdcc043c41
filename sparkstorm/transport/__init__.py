"""Owns the seam that carries frames between tasks and makes an epoch's commit one atomic step."""
