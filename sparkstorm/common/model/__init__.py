"""Frozen records that all packages share; their methods only derive values."""
