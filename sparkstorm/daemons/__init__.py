"""Owns the long-running roles: nimbus, supervisor, slot, worker."""
