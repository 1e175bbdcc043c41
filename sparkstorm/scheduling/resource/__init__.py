"""Owns Storm's ResourceAwareScheduler: placement by memory, CPU and any other named resource."""
