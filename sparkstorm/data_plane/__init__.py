"""The data plane: what runs in a worker process and moves, executes, acks and commits tuples."""
