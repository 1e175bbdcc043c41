"""Office of the one driver of a ZooKeeper root: an ephemeral node that a second driver finds held, and is refused."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparkstorm.cluster import paths
from sparkstorm.cluster.base import StateStore
from sparkstorm.embedded.tether import started_at
from sparkstorm.errors import RootInUseError, SparkStormError, StoreUnavailableError
from sparkstorm.model.records import decode_record, encode_record

_LOG = logging.getLogger(__name__)
_BEYOND_SESSION_S = 2.0


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """The driver of a root: its id, and its process as host, process id, start (ticks since boot) and place (boot, container)."""

    id: str
    host: str
    pid: int
    start: str
    place: str


class DriverOffice:
    """Holds the office from `take` to `leave`; a thread writes the node again after a lost session."""

    def __init__(self, store: StateStore, say: Callable[[str], None], look_every_s: float = 0.5) -> None:
        self._store, self._say, self._look_every_s = store, say, look_every_s
        self.me = this_driver()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="driver-office", daemon=True)

    def take(self, session_ms: int, is_embedded: bool = False) -> None:
        """Take the office; RootInUseError when another driver holds it.

        A dead holder is replaced at once: a process of this machine that is gone, and any holder when ZooKeeper is embedded
        here, since one run at a time uses its folder. The end of another machine's driver shows by the end of its session,
        which is waited for.
        """
        deadline: float | None = None
        while not self._try():
            holder = self.holder()
            if holder is None:  # it left a moment ago
                continue
            if is_embedded or is_dead(holder):
                self._store.delete(paths.DRIVER)
                continue
            if is_here(holder) or (deadline is not None and time.monotonic() > deadline):
                raise RootInUseError(refusal(self._store.address, holder))
            if deadline is None:
                deadline = time.monotonic() + session_ms / 1000 + _BEYOND_SESSION_S
                self._say(
                    f"{_of(holder)} holds ZooKeeper root {self._store.address}: "
                    f"waiting up to {deadline - time.monotonic():.0f} s for the end of its session, in case it is dead"
                )
            time.sleep(self._look_every_s)
        self._thread.start()

    def holder(self) -> DriverInfo | None:
        """Return who holds the office; StoreInconsistentError when the node is damaged."""
        found = self._store.get(paths.DRIVER)
        return decode_record(DriverInfo, found.data, paths.DRIVER) if found is not None else None

    def leave(self) -> None:
        """Give the office up; calling it twice or without `take` is fine."""
        self._left.set()
        if not self._thread.is_alive():
            return
        self._thread.join()
        with contextlib.suppress(SparkStormError):  # the session's end removes it as well
            if self.holder() == self.me:
                self._store.delete(paths.DRIVER)

    def _try(self) -> bool:
        return self._store.try_ephemeral(paths.DRIVER, encode_record(self.me))

    def _keep(self) -> None:
        rival: DriverInfo | None = None
        while not self._left.wait(self._look_every_s):
            try:
                if self._try():
                    rival = None
                elif (holder := self.holder()) is not None and holder != rival:
                    rival = holder
                    self._say(
                        f"{_of(holder)} has taken ZooKeeper root {self._store.address} while this driver's session "
                        "was lost: stop one of the two"
                    )
            except StoreUnavailableError:
                continue  # ZooKeeper is away: others cannot take the office either
            except Exception:  # the top of the thread
                _LOG.exception("the driver's node cannot be kept")


def this_driver() -> DriverInfo:
    """Return a new identity for a driver in this process."""
    pid = os.getpid()
    return DriverInfo(uuid.uuid4().hex, os.uname().nodename, pid, started_at(pid), _place())


def is_here(driver: DriverInfo) -> bool:
    """Return whether its process id means a process that this one can see: the same boot and the same container."""
    return driver.place == _place() and driver.host == os.uname().nodename


def is_dead(driver: DriverInfo) -> bool:
    """Return whether that was a process here and is gone; its start time tells it from a later one with its number."""
    return is_here(driver) and (not driver.start or started_at(driver.pid) != driver.start)


def refusal(root: str, holder: DriverInfo) -> str:
    """Return the sentence for a second driver."""
    return (
        f"ZooKeeper root {root} belongs to {_of(holder)}, which still runs; one driver at a time may use a root: "
        "stop that one, or set storm.zookeeper.root to another path for this one"
    )


def _of(driver: DriverInfo) -> str:
    return f"driver process {driver.pid} on host {driver.host}"


def _place() -> str:
    """Return the boot and the namespace of process ids; empty parts where the system has none."""
    boot = pids = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        pids = os.readlink("/proc/self/ns/pid")
    return f"{boot} {pids}"
