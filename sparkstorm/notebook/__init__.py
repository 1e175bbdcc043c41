"""Displays for notebooks and pages: tables and pictures of a cluster. `%load_ext sparkstorm.notebook` shows values by them."""

from __future__ import annotations

from typing import Any


def load_ipython_extension(shell: Any) -> None:
    """Show topologies, clusters, handles, plans, failures, replays and scenes as HTML in this notebook."""
    from sparkstorm.notebook.displays import register

    register(shell.display_formatter.formatters["text/html"])
