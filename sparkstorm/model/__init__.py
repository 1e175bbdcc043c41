"""Owns the frozen records that every other part speaks in; behaviour here is derivation only."""
