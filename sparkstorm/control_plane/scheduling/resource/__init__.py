"""Storm's ResourceAwareScheduler: placement by memory, CPU and other named resources."""
