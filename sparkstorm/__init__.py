"""SparkStorm: Storm topologies of plain Python, hosted on Spark."""

__version__ = "0.1.0"
