"""Storm's MultitenantScheduler: pools of nodes for listed users, and a default pool for all
others.
"""
