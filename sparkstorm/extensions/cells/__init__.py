"""A topology over several Redis servers: each server with its tasks is a cell."""
