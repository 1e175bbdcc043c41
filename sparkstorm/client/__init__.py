"""Client of a cluster that runs: submits topologies, looks at them and changes them, without Spark and without Java."""
