"""spark-submit jobs/run_topology.py CONF.yaml [--input PATH...] [-c key=value ...] [--name N]
[--from CHECKPOINT] [--fresh]
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - anyone who starts it with an older one shall be told
    sys.exit(
        f"SparkStorm needs Python 3.11 or newer; this is {sys.version.split()[0]} (set PYSPARK_PYTHON)"
    )
try:
    from sparkstorm.driver.job import main
except ImportError as error:
    advice = "run `make install`, then `. .venv/bin/activate`"
    sys.exit(f"{sys.executable} cannot import what SparkStorm needs: {error}; {advice}")
except KeyboardInterrupt:
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
