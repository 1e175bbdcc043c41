"""Entry of `python -m sparkstorm.extensions.embedded`: finds the Java of the embedded ZooKeeper and Spark (see
java.main).
"""

import sys

from sparkstorm.extensions.embedded.java import main

sys.exit(main(sys.argv[1:]))
