"""Owns JStorm's topology scheduler: workers go to supervisors first, then tasks to workers (S0.81)."""
