"""Verb `sparkstorm web`: the page of a cluster."""

from __future__ import annotations

import argparse
from typing import Any

from sparkstorm.cli.common import EXITS, OK, add_cluster
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.driver.hosting.tied_child import end_with_input


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = verbs.add_parser(
        "web", help="serve the page of a cluster", description=web.__doc__, epilog=EXITS
    )
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


def web(arguments: argparse.Namespace) -> int:
    """Serve a cluster's page until Ctrl-C, at an address with a token that it prints; a read-only
    connection changes nothing.
    """
    try:
        from sparkstorm.web.serve import Pushed, ServePlace, serve
    except ModuleNotFoundError as error:
        raise InvalidConfigError(
            f"the page needs two more packages ({error}): pip install 'sparkstorm[web]'"
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
