"""Owns how a stream is divided among a component's tasks; pure, seeded by its arguments."""
