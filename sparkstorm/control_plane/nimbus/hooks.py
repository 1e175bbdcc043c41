"""Hooks of a Nimbus: functions and listeners of the process around it, in one record that outlives
its leaderships.

Law: nothing here is needed to go on: a Nimbus without hooks does all its work in the state store.
So tests and simulations leave out what they do not watch. Left out: attributes that are set on the
finished Nimbus, of which some outlived the parts that are made anew with each leadership and some
did not.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sparkstorm.common.errors import OneStoreAwayError, StoreUnavailableError
from sparkstorm.common.model.worker_spec import unknown_store
from sparkstorm.control_plane.cluster.nimbus_state import DriverInfo, NimbusInfo
from sparkstorm.control_plane.nimbus.measurer import ReadCounts, no_counts

_LOG = logging.getLogger(__name__)


class TopologyActionListener(Protocol):
    """Listener that is called after an action on a topology; its errors are logged and change
    nothing.
    """

    def notify(self, topology_name: str, action: str) -> None:
        """Take in "submitTopology", "killTopology", "activate", "deactivate", "rebalance",
        "removeTopology", …
        """
        ...


class TopologyRetirement(Protocol):
    """Clean-up that is called when a topology is removed, to delete what it left elsewhere (streams
    and state).

    Each call ends an id for good, and may come again at any later time from a leader that was
    deposed: it changes nothing then.
    """

    def retire(self, topology_id: str) -> None:
        """Delete what the topology left."""

    def hand_over(self, old_id: str, new_id: str) -> None:
        """Give what the old topology left to its successor (hot deploy), once: a second successor
        gets nothing.
        """

    def unended(self) -> Mapping[str, int]:
        """Return how many keys are kept of each topology that workers have claimed and that has not
        ended, by id.
        """

    def ended(self, topology_ids: Collection[str]) -> Collection[str]:
        """Return those of these ids that have ended."""


# The default, so that a Nimbus of tests and simulations needs no data plane.
class NothingToRetire:
    """Cleanup for clusters that keep nothing outside the state store."""

    def retire(self, topology_id: str) -> None:
        """Do nothing."""

    def hand_over(self, old_id: str, new_id: str) -> None:
        """Do nothing."""

    def unended(self) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def ended(self, topology_ids: Collection[str]) -> Collection[str]:
        """Return nothing."""
        return ()


class _OneOfSeveral:
    """Retirement of one of several stores: one that does not answer must not end Nimbus's turn,
    which serves them all.
    """

    def __init__(self, store: TopologyRetirement) -> None:
        self._store = store

    def retire(self, topology_id: str) -> None:
        with _said_apart():
            self._store.retire(topology_id)

    def hand_over(self, old_id: str, new_id: str) -> None:
        with _said_apart():
            self._store.hand_over(old_id, new_id)

    def unended(self) -> Mapping[str, int]:
        with _said_apart():
            return self._store.unended()

    def ended(self, topology_ids: Collection[str]) -> Collection[str]:
        with _said_apart():
            return self._store.ended(topology_ids)


@contextlib.contextmanager
def _said_apart() -> Iterator[None]:
    try:
        yield
    except StoreUnavailableError as error:
        raise OneStoreAwayError(str(error)) from error


def _never(_leader: NimbusInfo) -> bool:
    return False


def _all_are_durable(_durability: str, _stores: Sequence[str]) -> None:
    pass


@dataclass(slots=True)
class NimbusHooks:
    """Hooks of one Nimbus; the fields may be set until it takes its first turn, `listeners` and
    `retirement` at any time.
    """

    wake: Callable[[], None] = lambda: None
    """Called, by any thread, when a turn is due before its time."""
    on_lead: Callable[[], None] = lambda: None
    """Called when this Nimbus begins to lead."""
    depose: Callable[[NimbusInfo], bool] = _never
    """Asked whether the leader is known to be dead; ends its leadership before its session does."""
    driver: DriverInfo | None = None
    """The driver in whose process it runs, which others see next to the leader's name."""
    # May be set later too: the clean-up asks for it at each call, since tests look at the calls to
    # a store.
    retirement: TopologyRetirement = field(default_factory=NothingToRetire)
    """Of the home store, which is the only one as a rule; its name is `home`."""
    home: str = ""
    other_stores: Mapping[str, TopologyRetirement] = field(default_factory=dict)
    """Of the other stores by name, in the order of sparkstorm.redis.urls."""
    require_durable: Callable[[str, Sequence[str]], None] = _all_are_durable
    """Called with `topology.cells.durability` and the names of a topology's stores; raises
    InvalidConfigError for one that cannot keep that, StoreUnavailableError for one that is away.
    """
    read_counts: ReadCounts = no_counts
    """Reads the counts of a topology from its stores, for schedulers that ask for measurements."""
    listeners: list[TopologyActionListener] = field(default_factory=list)

    @property
    def store_names(self) -> tuple[str, ...]:
        """Names of the stores, the home store's first."""
        return (self.home, *self.other_stores)

    def store(self, topology_id: str, name: str) -> TopologyRetirement:
        """Return the retirement of a topology's store; StoreInconsistentError when its driver knows
        no store of that name.
        """
        if not self.other_stores and name in ("", self.home):
            return self.retirement
        if name in ("", self.home):
            return _OneOfSeveral(self.retirement)
        if name not in self.other_stores:
            raise unknown_store(topology_id, name, self.store_names)
        return _OneOfSeveral(self.other_stores[name])

    def check_durable(self, durability: str, stores: Sequence[str]) -> None:
        """Raise InvalidConfigError for a store that cannot keep what `topology.cells.durability`
        says; OneStoreAwayError for one that cannot be asked.
        """
        with _said_apart():
            self.require_durable(durability, [store or self.home for store in stores])

    def all_stores(self) -> list[TopologyRetirement]:
        """Return the retirement of every store."""
        return [self.store("", name) for name in self.store_names]

    def notify(self, topology_name: str, action: str) -> None:
        """Call the listeners; their errors are logged (S0.51)."""
        for listener in self.listeners:
            try:
                listener.notify(topology_name, action)
            # User code: a listener must not keep a topology from being killed.
            except Exception:
                _LOG.exception(
                    "a topology action listener failed on %s of %s", action, topology_name
                )
