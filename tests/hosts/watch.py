"""Watches a topology from a client's host: a line of JSON each quarter of a second, and its sums when it has drained.

`watch.py NAME`, with SPARKSTORM_CLUSTER set. A look that fails is a line too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from sparkstorm.cli.topologies import status_of
from sparkstorm.client import connect
from sparkstorm.errors import SparkStormError

EVERY_S = 0.25


def main(name: str) -> None:
    """Look until it has drained."""
    with connect() as cluster:
        while True:
            line: dict[str, Any] = {"at": time.time()}
            try:
                handle = cluster.topology(name)  # an update gives it another id
                found = status_of(handle)
                line |= {"done": found["progress"]["acked"], "parked": found["progress"]["parked"], "problems": found["problems"]}
                line["workers"] = {each["slot"]: each["state"] for each in found["workers"]}
                if found["progress"]["is_drained"]:
                    line["sums"] = {str(key): value for key, value in handle.key_values("count")}
            except SparkStormError as error:
                line["error"] = str(error)
            print(json.dumps(line), flush=True)
            if "sums" in line:
                return
            time.sleep(EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1])
