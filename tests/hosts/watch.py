"""Watches a topology from a client's host: a line of JSON each quarter of a second, and its sums
when it has drained.

`watch.py NAME`, with SPARKSTORM_CLUSTER set. A look that fails is a line too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from sparkstorm.client import connect
from sparkstorm.common.errors import SparkStormError, StoreUnavailableError
from sparkstorm.control_plane.insight.sampler import Sampler

EVERY_S = 0.25


def main(name: str) -> None:
    """Look until it has drained."""
    with connect() as cluster:
        model = Sampler(cluster.source())
        while True:
            line: dict[str, Any] = {"at": time.time()}
            try:
                handle = cluster.topology(name)  # an update gives it another id
                model.step()
                model.cluster()
                found = model.topology(handle.topology_id)
                if found.problem:
                    raise StoreUnavailableError(found.problem)
                parked = found.counts.parked - found.counts.replayed
                line |= {"done": found.counts.acked, "parked": parked, "problems": found.problems}
                line["workers"] = {slot: each.state for slot, each in found.workers.items()}
                if found.is_drained:
                    line["sums"] = {str(key): value for key, value in handle.key_values("count")}
            except SparkStormError as error:
                line["error"] = str(error)
            print(json.dumps(line), flush=True)
            if "sums" in line:
                return
            time.sleep(EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1])
