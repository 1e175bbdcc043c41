"""Interface by which an optional feature plugs into a leading Nimbus.

Law: an extension belongs to one leadership, and its verbs are as those of RequestVerbs: each may be
repeated with the same outcome record, to the same end.
"""

from __future__ import annotations

from collections.abc import Callable

from sparkstorm.common.extension_points import extensions_at
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.outline import TopologyOutline
from sparkstorm.common.model.requests import Outcome, Request, RequestKind
from sparkstorm.control_plane.nimbus.cluster_reader import Reading
from sparkstorm.control_plane.nimbus.parts import NimbusParts


class NimbusExtension:
    """An optional feature of Nimbus; every method may be left out."""

    kinds: tuple[RequestKind, ...] = ()
    """Kinds of requests about a topology that it carries out."""

    def __init__(self, parts: NimbusParts, ask: Callable[[], None]) -> None:
        self.parts = parts
        self.ask = ask  # for watches: has Nimbus take a turn at once

    def check(
        self,
        request: Request,
        base: TopologyBase,
        outline: TopologyOutline | None,
        reading: Reading,
        now_ms: int,
    ) -> None:
        """Refuse a request of its kinds that does not fit what runs; `outline` is that of the code
        that the request brings.
        """

    def carry_out(
        self,
        request: Request,
        outcome: Outcome,
        outline: TopologyOutline | None,
        reading: Reading,
        now_ms: int,
    ) -> bool:
        """Do what can be done now for an accepted request; whether something was changed."""
        return False

    def advance(self, reading: Reading, now_ms: int) -> bool:
        """Do what is due in each turn; whether something was written."""
        return False


def nimbus_extensions(parts: NimbusParts, ask: Callable[[], None]) -> tuple[NimbusExtension, ...]:
    """Return the extensions of one leadership."""
    return tuple(made(parts, ask) for made in extensions_at("nimbus"))
