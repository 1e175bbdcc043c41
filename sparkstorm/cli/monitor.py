"""The verb `monitor`: a line of rates for each interval, as Storm's `storm monitor` writes them."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkstorm.cli.common import OK, add_topology_verb, at_least, clock_time, opened, write_json
from sparkstorm.client import TopologyHandle
from sparkstorm.client.logs import shown
from sparkstorm.clock import SystemClock
from sparkstorm.errors import InvalidConfigError
from sparkstorm.worker.progress import percentile_ms

_RATES = ("emitted", "executed", "acked", "failed")
_WIDTHS = {"time": 12, **{f"{name}/s": 12 for name in _RATES}, "pending": 10, "p50 ms": 8, "p99 ms": 8}


@dataclass(frozen=True, slots=True)
class Look:
    """Sums of a topology's counts, or of one component's, at a moment; `buckets` of the complete latencies."""

    time_ms: int
    counts: Mapping[str, int]
    buckets: Mapping[int, int]


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = add_topology_verb(verbs, "monitor", monitor, "rates of a topology, a line for each interval")
    verb.add_argument("--component", metavar="ID", help="of this component alone")
    verb.add_argument(
        "-i", "--interval", type=at_least(0.2, float), default=4.0, metavar="SECONDS", help="time between two lines (4)"
    )
    verb.add_argument("--lines", type=at_least(1), metavar="N", help="end after so many lines (default: at Ctrl-C)")


def monitor(arguments: argparse.Namespace) -> int:
    """Write what a topology emits, executes, acks and fails in a second, and the complete latencies of each interval."""
    with opened(arguments) as cluster:
        handle = cluster.topology(arguments.name)
        if arguments.component:
            known = {info.component_id for info in handle.tasks().values()}
            if arguments.component not in known:
                raise InvalidConfigError(
                    f"{handle.name} has no component {shown(arguments.component)}, only {', '.join(sorted(known))}"
                )
        if not arguments.json:
            print("  ".join(title.rjust(width) for title, width in _WIDTHS.items()), flush=True)
        last = look(handle, arguments.component)
        number = 0
        while arguments.lines is None or number < arguments.lines:
            time.sleep(arguments.interval)
            now = look(handle, arguments.component)
            record = rates(last, now)
            if arguments.json:
                write_json(record)
            else:
                print(rates_text(record), flush=True)
            if handle.status() is None:
                print(f"{handle.topology_id} is gone", file=sys.stderr)
                break
            last = now
            number += 1
    return OK


def look(handle: TopologyHandle, component: str | None) -> Look:
    """Read a topology's counts; latencies are those of whole trees, also where one component is asked for."""
    sums = dict.fromkeys((*_RATES, "pending"), 0)
    for each in handle.counts().values():
        if component in (None, each.component) and not each.component.startswith("__"):
            for name in sums:
                sums[name] += getattr(each, name)
    buckets: Counter[int] = Counter()
    for progress in handle.progress_by_worker().values():
        buckets.update(progress.latency_buckets)
    return Look(SystemClock().now_ms(), sums, buckets)


def rates(before: Look, now: Look) -> dict[str, Any]:
    """Return the rates between two looks, in tuples per second; counts that went back, as of a new run, are 0."""
    seconds = max(1, now.time_ms - before.time_ms) / 1000
    grown = {bucket: count - before.buckets.get(bucket, 0) for bucket, count in now.buckets.items()}
    new = {bucket: count for bucket, count in grown.items() if count > 0}
    return {
        "time_ms": now.time_ms,
        **{name: round(max(0, now.counts[name] - before.counts[name]) / seconds, 1) for name in _RATES},
        "pending": now.counts["pending"],
        "p50_ms": percentile_ms(new, 0.50),
        "p99_ms": percentile_ms(new, 0.99),
    }


def rates_text(record: Mapping[str, Any]) -> str:
    """Return a line of rates for people."""
    latencies = ["-" if record[name] is None else f"{record[name]:,.0f}" for name in ("p50_ms", "p99_ms")]
    figures = [*(f"{record[name]:,.0f}" for name in _RATES), f"{record['pending']:,}", *latencies]
    cells = [clock_time(record["time_ms"]), *figures]
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS.values(), strict=True))
