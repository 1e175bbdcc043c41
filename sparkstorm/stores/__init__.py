"""What every process of a cluster needs to reach its stores: connection file, passwords, addresses, clients, folders."""
