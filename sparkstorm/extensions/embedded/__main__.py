"""Entry of `python -m sparkstorm.embedded`: finds the Java of the embedded ZooKeeper and Spark (see
java.main).
"""

import sys

from sparkstorm.embedded.java import main

sys.exit(main(sys.argv[1:]))
