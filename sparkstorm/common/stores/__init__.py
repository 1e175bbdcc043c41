"""Access to the stores of a cluster, for each of its processes: connection file, passwords,
addresses, clients, folders.
"""
