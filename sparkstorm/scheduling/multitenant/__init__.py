"""Owns Storm's MultitenantScheduler: users with pools of nodes of their own beside one pool for everybody."""
