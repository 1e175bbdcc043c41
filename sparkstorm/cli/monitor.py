"""Verbs that go on: `monitor`, a line of rates for each interval as Storm's `storm monitor` writes
them, `top`, a screen, and `web`, the page of a cluster.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkstorm.cli.cluster_verbs import opened, sampled
from sparkstorm.cli.common import (
    EXITS,
    NAME_HELP,
    OK,
    add_cluster,
    add_topology_verb,
    at_least,
    clock_time,
    is_for_programs,
    write_json,
)
from sparkstorm.cli.terminal import columns
from sparkstorm.common.errors import InvalidConfigError, NotAliveError, StoreUnavailableError
from sparkstorm.common.model.names import shown
from sparkstorm.control_plane.insight.records import TopologyReport
from sparkstorm.control_plane.insight.sampler import check_component
from sparkstorm.data_plane.transport.progress import percentile_ms
from sparkstorm.driver.hosting.tied_child import end_with_input

_RATES = ("emitted", "executed", "acked", "failed")
_WIDTHS = {
    "time": 12,
    **{f"{name}/s": 12 for name in _RATES},
    "pending": 10,
    "p50 ms": 8,
    "p99 ms": 8,
}
_GAP = "  "
# Where a line of those does not fit: each column as wide as its title, whole seconds. 77 columns.
_NARROW_WIDTHS = {**{title: len(title) for title in _WIDTHS}, "time": 8}


@dataclass(frozen=True, slots=True)
class CountsAt:
    """Sums of a topology's counts, or of one component's, at a moment; `buckets` of the complete
    latencies.
    """

    time_ms: int
    counts: Mapping[str, int]
    buckets: Mapping[int, int]


def add_verbs(verbs: Any) -> None:
    """Add them to the command line."""
    _add_web(verbs)
    verb = add_topology_verb(verbs, "monitor", monitor)
    verb.add_argument("-m", "--component", metavar="ID", help="of this component alone")
    verb.add_argument(
        "-i",
        "--interval",
        type=at_least(0.2, float),
        default=4.0,
        metavar="SECONDS",
        help="time between two lines (4)",
    )
    verb.add_argument(
        "--lines",
        type=at_least(1),
        metavar="N",
        help="end after so many lines (default: at Ctrl-C)",
    )
    verb = verbs.add_parser("top", description=top.__doc__)
    verb.add_argument("name", metavar="NAME", nargs="?", help=NAME_HELP)
    add_cluster(verb)
    verb.set_defaults(run=top)


def top(arguments: argparse.Namespace) -> int:
    """Show the cluster, or one topology, until q: rates, load and faults by component, state of
    workers, each second.
    """
    try:
        from sparkstorm.cli.top import Top
    except ModuleNotFoundError as error:
        raise InvalidConfigError(
            f"top needs one more package ({error}): pip install 'sparkstorm[cli]'"
        ) from error

    with opened(arguments) as cluster:
        model = sampled(arguments, cluster)
        name = model.topology(arguments.name).name if arguments.name else None
        Top(model, name, model.step).run()
    return OK


def _add_web(verbs: Any) -> None:
    verb = verbs.add_parser("web", description=web.__doc__, epilog=EXITS)
    add_cluster(verb)
    verb.add_argument("--port", type=int, default=8080, help="port to listen on (8080)")
    verb.add_argument("--address", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    verb.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="name by which browsers ask for it",
    )
    verb.add_argument(
        "--certificate", default="", metavar="FILE", help="TLS certificate, with its chain"
    )
    verb.add_argument("--key", default="", metavar="FILE", help="key of the certificate")
    verb.add_argument(
        "--behind-proxy",
        action="store_true",
        help="a reverse proxy on the same host or network does TLS",
    )
    verb.add_argument(
        "--otlp",
        default="",
        metavar="URL",
        help="push the metrics to this OpenTelemetry collector every 10 s",
    )
    verb.add_argument(
        "--traces",
        action="store_true",
        help="push traces of a sample of messages to that collector too",
    )
    verb.add_argument(
        "--until-input-ends",
        action="store_true",
        help="also end when standard input does, as with its starter",
    )
    verb.set_defaults(run=web)


def monitor(arguments: argparse.Namespace) -> int:
    """Write what a topology emits, executes, acks and fails in a second, and the complete latencies
    of each interval.
    """
    with opened(arguments) as cluster:
        model = sampled(arguments, cluster, arguments.name)
        view = model.topology(arguments.name)
        if view.problem:
            raise StoreUnavailableError(view.problem)
        if arguments.component:
            check_component(view, arguments.component)
        if not is_for_programs(arguments):
            print(titles_text(columns()), flush=True)
        last = look(view, arguments.component)
        number = 0
        while arguments.lines is None or number < arguments.lines:
            time.sleep(arguments.interval)
            model.step()
            try:
                view = model.topology(view.id)
            except NotAliveError:
                print(f"{view.id} is gone", file=sys.stderr)
                break
            # the next line is of the time until the stores answer
            if problem := view.problem or model.cluster().stale_reason:
                print(f"no counts: {shown(problem)}", file=sys.stderr)
                continue
            now = look(view, arguments.component)
            record = rates(last, now)
            if is_for_programs(arguments):
                write_json(record)
            else:
                print(rates_text(record, columns()), flush=True)
            last = now
            number += 1
    return OK


def look(view: TopologyReport, component: str | None) -> CountsAt:
    """Return a topology's counts, of which acked and failed are trees; latencies are those of whole
    trees, also for a component.
    """
    of = view.components[component] if component else view
    counts = {name: getattr(of.counts, name) for name in _RATES}
    return CountsAt(view.read_ms, {**counts, "pending": of.pending}, view.latency_buckets)


def rates(before: CountsAt, now: CountsAt) -> dict[str, Any]:
    """Return the rates between two looks, in tuples per second; counts that went back, as of a new
    run, are 0.
    """
    seconds = max(1, now.time_ms - before.time_ms) / 1000
    grown = {bucket: count - before.buckets.get(bucket, 0) for bucket, count in now.buckets.items()}
    new = {bucket: count for bucket, count in grown.items() if count > 0}
    return {
        "time_ms": now.time_ms,
        **{
            name: round(max(0, now.counts[name] - before.counts[name]) / seconds, 1)
            for name in _RATES
        },
        "pending": now.counts["pending"],
        "p50_ms": percentile_ms(new, 0.50),
        "p99_ms": percentile_ms(new, 0.99),
    }


def titles_text(width: int | None = None) -> str:
    """Return the titles of lines of rates, for a terminal of that width or for a pipe."""
    return _GAP.join(title.rjust(size) for title, size in _widths(width).items())


def _widths(width: int | None) -> Mapping[str, int]:
    full_width = sum(_WIDTHS.values()) + len(_GAP) * (len(_WIDTHS) - 1)
    return _WIDTHS if width is None or width >= full_width else _NARROW_WIDTHS


def rates_text(record: Mapping[str, Any], width: int | None = None) -> str:
    """Return a readable line of rates, for a terminal of that width or for a pipe."""
    latencies = [
        "-" if record[name] is None else f"{record[name]:,.0f}" for name in ("p50_ms", "p99_ms")
    ]
    figures = [*(f"{record[name]:,.0f}" for name in _RATES), f"{record['pending']:,}", *latencies]
    widths = _widths(width)
    cells = [clock_time(record["time_ms"])[: widths["time"]], *figures]
    return _GAP.join(cell.rjust(size) for cell, size in zip(cells, widths.values(), strict=True))


def web(arguments: argparse.Namespace) -> int:
    """Serve a cluster's web UI until Ctrl-C, at an address with a token that it prints; a read-only
    connection changes nothing.
    """
    try:
        from sparkstorm.web.serve import Pushed, ServePlace, serve
    except ModuleNotFoundError as error:
        raise InvalidConfigError(
            f"the web UI needs two more packages ({error}): pip install 'sparkstorm[web]'"
        ) from error

    if arguments.until_input_ends:
        end_with_input()
    names = tuple(arguments.name)
    place = ServePlace(
        arguments.address,
        arguments.port,
        names,
        arguments.certificate,
        arguments.key,
        arguments.behind_proxy,
    )
    if arguments.traces and not arguments.otlp:
        raise InvalidConfigError("--traces needs --otlp URL, the collector to push them to")
    pushed = Pushed(arguments.otlp, arguments.traces)
    serve(arguments.cluster, place, lambda line: print(line, flush=True), pushed)
    return OK
