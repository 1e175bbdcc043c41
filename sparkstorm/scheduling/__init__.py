"""Owns every scheduling decision, as pure functions of a cluster view: no clock, no random, no I/O."""
