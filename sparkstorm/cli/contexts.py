"""Verb `sparkstorm context`: clusters by name, so that a verb needs no path of a connection
file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sparkstorm.cli.common import EXITS, OK, add_formats, add_json, say, write
from sparkstorm.cli.terminal import columns, show, table
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.names import shown
from sparkstorm.common.stores.connection import Connection, load_any_connection
from sparkstorm.common.stores.contexts import (
    Contexts,
    add_context,
    contexts_file,
    read_contexts,
    remove_context,
    use_context,
)


def add_verbs(verbs: Any) -> None:
    """Add it to the command line."""
    verb = verbs.add_parser("context", epilog=EXITS)
    actions = verb.add_subparsers(required=True, metavar="ACTION")
    action = actions.add_parser(
        "list", help="all contexts; the current one has a *", description=list_contexts.__doc__
    )
    add_formats(action)
    action.set_defaults(run=list_contexts)
    action = actions.add_parser(
        "add", help="name the connection file of a cluster", description=add.__doc__
    )
    action.add_argument("which", metavar="CONTEXT", help="a name of your choice")
    action.add_argument("file", metavar="FILE", help="connection file of the cluster")
    action.add_argument("--force", action="store_true", help="replace a context of that name")
    add_json(action)
    action.set_defaults(run=add)
    for name, run in (("use", use), ("remove", remove)):
        action = actions.add_parser(
            name,
            help=str(run.__doc__).partition(";")[0].lower().rstrip("."),
            description=run.__doc__,
        )
        action.add_argument("which", metavar="CONTEXT", help="its name")
        add_json(action)
        action.set_defaults(run=run)


def list_contexts(arguments: argparse.Namespace) -> int:
    """List contexts with their connection files, and what a connection may do."""
    contexts = read_contexts()
    rows = [
        {
            "current": name == contexts.current,
            "context": name,
            "rights": _rights(file),
            "connection": file,
        }
        for name, file in contexts.files.items()
    ]
    if write(arguments, {"contexts": rows}, rows):
        return OK
    cells = [
        (
            "*" if row["current"] else "",
            row["context"],
            row["rights"],
            shown(str(row["connection"])),
        )
        for row in rows
    ]
    none = f"no context is in {contexts_file()}: sparkstorm context add NAME FILE"
    show(table(("", "context", "rights", "connection"), cells, columns()) if rows else none)
    return OK


def _rights(file: str) -> str:
    try:
        return "all" if isinstance(load_any_connection(Path(file)), Connection) else "read only"
    except InvalidConfigError as error:
        return f"none: {error}"


def add(arguments: argparse.Namespace) -> int:
    """Name the connection file of a cluster; the first context is the current one at once."""
    contexts = add_context(arguments.which, arguments.file, arguments.force)
    return _said(arguments, contexts, f"{arguments.which} is {contexts.files[arguments.which]}")


def use(arguments: argparse.Namespace) -> int:
    """Make a context the current one; verbs without --cluster and --context ask its cluster."""
    contexts = use_context(arguments.which)
    return _said(
        arguments,
        contexts,
        f"{arguments.which} is the current context: {contexts.files[arguments.which]}",
    )


def remove(arguments: argparse.Namespace) -> int:
    """Forget a context; its connection file stays."""
    contexts = remove_context(arguments.which)
    return _said(arguments, contexts, f"{arguments.which} is forgotten; its connection file stays")


def _said(arguments: argparse.Namespace, contexts: Contexts, text: str) -> int:
    say(arguments, shown(text), {"contexts": dict(contexts.files), "current": contexts.current})
    return OK
