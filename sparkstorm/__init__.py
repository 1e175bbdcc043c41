"""SparkStorm: Storm topologies of plain Python, hosted on Spark."""

__version__ = "0.2.0"
