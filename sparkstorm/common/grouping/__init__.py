"""Groupings: the choice of receiving tasks for each tuple. PURE, seeded by arguments."""
