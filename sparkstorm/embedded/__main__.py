"""Owns `python -m sparkstorm.embedded`: which Java the embedded ZooKeeper and Spark will use (see java.main)."""

import sys

from sparkstorm.embedded.java import main

sys.exit(main(sys.argv[1:]))
