"""Drivers of one ZooKeeper root: each registers as an ephemeral node; one that shares the root with
no other refuses others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sparkstorm.common.clock import SystemClock
from sparkstorm.common.errors import RootInUseError, SparkStormError, StoreUnavailableError
from sparkstorm.common.model.records import decode_record, encode_record
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.nimbus_state import DriverInfo, DriverNumber, NimbusInfo
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.extensions.embedded.tether import started_at

_LOG = logging.getLogger(__name__)
_BEYOND_SESSION_S = 2.0
_MOST_NUMBERS = 32  # kept for folders whose drivers are not there
_FOLDER_ID = re.compile("[0-9a-f]{32}")


class DriverOffice:
    """Registration of this driver from `take` to `leave`; a thread writes its nodes again after a
    lost session.

    Drivers come in one at a time: each holds the node `nimbus/driver` while it looks at the others,
    claims its number and registers. A driver that is alone on its root keeps that node.
    """

    def __init__(
        self, state: StormState, say: Callable[[str], None], look_every_s: float = 0.5
    ) -> None:
        self._state = state
        self._store = state.store
        self._say = say
        self._look_every_s = look_every_s
        self.me = this_driver()
        self._is_embedded = False
        self._deadline: float | None = None
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="driver-office", daemon=True)

    def take(
        self, session_ms: int, folder: Path, is_alone: bool = True, is_embedded: bool = False
    ) -> None:
        """Register this driver, `folder` is its storm.local.dir; RootInUseError when another driver
        does not admit it.

        A dead driver is no obstacle: a process of this machine that is gone, and any other when
        ZooKeeper is embedded here, since one run at a time uses its folder. The end of another
        machine's driver is known by the end of its session, which is waited for.
        """
        now_ms = SystemClock().now_ms()
        path = str(folder.resolve())
        self.me = replace(
            self.me, folder=folder_id(folder), local_dir=path, is_alone=is_alone, since_ms=now_ms
        )
        self._is_embedded = is_embedded
        wait_s = session_ms / 1000 + _BEYOND_SESSION_S
        while not self._enter(wait_s):
            continue
        self._thread.start()

    def others(self) -> list[DriverInfo]:
        """Return the other drivers of this root; StoreInconsistentError when a node is damaged."""
        return [driver for driver in self._state.read_drivers() if driver.id != self.me.id]

    def holder(self) -> DriverInfo | None:
        """Return the driver that holds the entrance; StoreInconsistentError when the node is
        damaged.
        """
        stored = self._store.get(paths.DRIVER)
        return decode_record(DriverInfo, stored.data, paths.DRIVER) if stored is not None else None

    def depose(self, leader: NimbusInfo) -> bool:
        """End the leadership of a Nimbus whose driver is dead, before its session ends; whether it
        was done.
        """
        return self._is_gone(leader.driver) and self._state.depose(leader)

    def leave(self) -> None:
        """Unregister; calling it twice or without `take` is fine."""
        self._left.set()
        if not self._thread.is_alive():
            return
        self._thread.join()
        with contextlib.suppress(SparkStormError):  # the session's end removes them as well
            self._state.remove_driver(self.me.id)
            self._release()

    # -- coming in ---------------------------------------------------------------------------------

    def _enter(self, wait_s: float) -> bool:
        """Try to register; False to try again, RootInUseError when another driver does not admit
        this one.
        """
        if not self._try():
            holder = self.holder()
            if holder is not None and self._is_gone(holder):
                self._store.delete(paths.DRIVER)
            elif holder is not None:
                self._wait_for(
                    holder, wait_s, is_passing=not holder.is_alone or holder.id == self.me.id
                )
            return False
        others = self._living()
        rival = next(
            (
                other
                for other in others
                if self.me.is_alone or other.is_alone or other.folder == self.me.folder
            ),
            None,
        )
        if rival is not None:
            self._release()
            self._wait_for(rival, wait_s)
            return False
        if not self.me.is_alone:
            self.me = replace(self.me, number=self._claim_number(others))
        self._state.register_driver(self.me)
        # another took this driver for dead, and may have looked before it was registered
        if not self._try():
            self._state.remove_driver(self.me.id)
            return False
        if not self.me.is_alone:
            self._release()
        return True

    def _try(self) -> bool:
        return self._store.try_ephemeral(paths.DRIVER, encode_record(self.me))

    def _release(self) -> None:
        holder = self.holder()
        if holder is not None and holder.id == self.me.id:
            self._store.delete(paths.DRIVER)

    def _living(self) -> list[DriverInfo]:
        """Return the other drivers that are not known to be dead; remove those that are."""
        others = self.others()
        for dead in [other for other in others if self._is_gone(other)]:
            self._state.remove_driver(dead.id)
        return [other for other in others if not self._is_gone(other)]

    def _is_gone(self, driver: DriverInfo | None) -> bool:
        if driver is None or driver.id == self.me.id:
            return False
        return self._is_embedded or is_dead(driver)

    def _wait_for(self, rival: DriverInfo, wait_s: float, is_passing: bool = False) -> None:
        """Wait a moment for the end of a driver's session; RootInUseError when it certainly lives,
        or the time is over.
        """
        is_late = self._deadline is not None and time.monotonic() > self._deadline
        if is_late or (is_here(rival) and not is_passing):
            raise RootInUseError(refusal(self._store.address, self.me, rival))
        if self._deadline is None:
            self._deadline = time.monotonic() + wait_s
            if not is_passing:
                self._say(
                    f"{rival} holds ZooKeeper root {self._store.address}: "
                    f"waiting up to {wait_s:.0f} s for the end of its session, in case it is dead"
                )
        time.sleep(self._look_every_s)

    def _claim_number(self, others: Sequence[DriverInfo]) -> int:
        """Return the number this folder had before, else a new one: a driver that comes back gets
        its nodes' names again.
        """
        claims = self._state.read_driver_numbers()
        living = {other.number for other in others}
        own = [
            number
            for number, claim in claims.items()
            if claim.folder == self.me.folder and number not in living
        ]
        unclaimed = next(
            n
            for n in range(1, len(claims) + len(living) + 2)
            if n not in claims and n not in living
        )
        number = own[0] if own else unclaimed
        idle = [number for number in claims if number not in living]
        if not own and len(claims) >= _MOST_NUMBERS and idle:
            number = min(idle, key=lambda idle_number: claims[idle_number].claimed_ms)
        self._state.write_driver_number(number, DriverNumber(self.me.folder, self.me.since_ms))
        return number

    # -- staying -----------------------------------------------------------------------------------

    def _keep(self) -> None:
        rival: DriverInfo | None = None
        epoch = self._store.session_epoch
        while not self._left.wait(self._look_every_s):
            try:
                self._state.register_driver(self.me)
                if epoch != self._store.session_epoch:
                    self._claim_again()
                    epoch = self._store.session_epoch
                newest_rival = self._find_rival()
                if newest_rival is not None and newest_rival != rival:
                    self._say(
                        f"{newest_rival} has taken ZooKeeper root {self._store.address} while this driver's session "
                        "was lost: stop one of the two"
                    )
                rival = newest_rival
            except StoreUnavailableError:
                continue  # ZooKeeper is away: others cannot come in either
            except Exception:  # the outermost frame of the thread
                _LOG.exception("the driver's node cannot be kept")

    def _claim_again(self) -> None:
        """Write the claim of this driver's number anew, should the store have lost it with the
        session.
        """
        if not self.me.is_alone and self.me.number not in self._state.read_driver_numbers():
            self._state.write_driver_number(
                self.me.number, DriverNumber(self.me.folder, self.me.since_ms)
            )

    def _find_rival(self) -> DriverInfo | None:
        """Return a driver that came in meanwhile and does not go with this one."""
        if self.me.is_alone and self._try():
            return None
        holder = self.holder()
        if holder is None or holder.id == self.me.id or not (self.me.is_alone or holder.is_alone):
            return None
        return holder


def this_driver() -> DriverInfo:
    """Return a new identity for a driver in this process."""
    pid = os.getpid()
    return DriverInfo(uuid.uuid4().hex, os.uname().nodename, pid, started_at(pid), _place())


def folder_id(folder: Path) -> str:
    """Return the id of a driver's storm.local.dir; a folder without one gets one."""
    path = folder / "driver-id"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        identifier = path.read_text(encoding="ascii", errors="replace").strip()
        if _FOLDER_ID.fullmatch(identifier):
            return identifier
    fresh = path.with_name(f"driver-id.{os.getpid()}.new")
    fresh.write_text(uuid.uuid4().hex, encoding="ascii")
    os.replace(fresh, path)
    return path.read_text(encoding="ascii")


def is_here(driver: DriverInfo) -> bool:
    """Return whether its process id means a process that this one can see: the same boot and the
    same container.
    """
    return driver.place == _place() and driver.host == os.uname().nodename


def is_dead(driver: DriverInfo) -> bool:
    """Return whether that was a process here and is gone; its start time distinguishes it from a
    later one with its number.
    """
    return is_here(driver) and (not driver.start or started_at(driver.pid) != driver.start)


def refusal(root: str, me: DriverInfo, rival: DriverInfo) -> str:
    """Return the sentence for a driver that is not admitted to a root."""
    if not rival.is_alone and not me.is_alone:
        return (
            f"storm.local.dir {me.local_dir} is used by {rival} on ZooKeeper root {root}, which still runs: "
            "give each driver a storm.local.dir of its own"
        )
    if not rival.is_alone:
        return (
            f"ZooKeeper root {root} belongs to the standing cluster of {rival}: submit to it with --cluster and its "
            "connection.json, or set storm.zookeeper.root to another path for a cluster of this run's own"
        )
    return (
        f"ZooKeeper root {root} belongs to {rival}, which still runs and shares it with no other driver: "
        "stop that one, or set storm.zookeeper.root to another path for this one"
    )


def _place() -> str:
    """Return the boot and the namespace of process ids; empty parts where the system has none."""
    boot = pids = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        pids = os.readlink("/proc/self/ns/pid")
    return f"{boot} {pids}"
