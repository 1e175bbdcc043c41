"""What running topologies and hosts have been measured to do, for schedulers that ask."""
