"""SparkStorm: Storm topologies in plain Python, hosted on Spark."""
