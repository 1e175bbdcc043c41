"""Owns the frozen records every layer speaks in."""
