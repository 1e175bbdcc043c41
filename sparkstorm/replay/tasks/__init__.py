"""Code that runs in one partition of a replay: the tasks of its bolts and the rows between them."""
