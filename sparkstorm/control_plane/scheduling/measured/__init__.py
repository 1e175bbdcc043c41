"""Measurements of running topologies and of hosts, for schedulers that ask for them."""
