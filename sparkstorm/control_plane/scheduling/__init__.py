"""Scheduling decisions as pure functions of a cluster view: no clock, no random numbers, no I/O."""
