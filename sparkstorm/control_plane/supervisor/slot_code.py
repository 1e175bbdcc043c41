"""A topology's code, configuration and blobs on a slot's host: brought before its worker starts,
blobs again when they change.

Laws: nothing is given to a worker that was not checked. A version of a blob that cannot be had (a
damaged archive, a full disk) leaves the one before in its place and is tried again later. Left out:
asking every 30 seconds for blobs, as Storm's localizer does; the record of names is watched.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from sparkstorm.common.errors import SparkStormError, StoreInconsistentError, StoreUnavailableError
from sparkstorm.common.model.status import JsonValue
from sparkstorm.control_plane.blobs.named import KEY, BlobUse, blob_uses
from sparkstorm.control_plane.blobs.store import BlobKind, BlobStore
from sparkstorm.control_plane.cluster.base import Hint
from sparkstorm.control_plane.cluster.storm_state import StormState
from sparkstorm.control_plane.supervisor.base import NodeStorage
from sparkstorm.control_plane.supervisor.slot_machine import BlobView, LocalAssignment

_LOG = logging.getLogger(__name__)
# Half of it asks a store for a damaged blob twice as often, double leaves a fixed one unseen for
# as long.
_RETRY_MS = 3_000


@dataclass(frozen=True, slots=True)
class Code:
    """A topology's code on this machine and its conf, both checked, and the folder of its blobs,
    where it has any.
    """

    code_path: Path
    conf: Mapping[str, JsonValue]
    blobs: Path | None = None


class Stores(Protocol):
    """Part of a slot's stores that this needs."""

    @property
    def state(self) -> StormState: ...
    @property
    def blobs(self) -> BlobStore: ...


class SlotCode:
    """Code and blobs of one slot; `turn` counts versions of blobs with which its worker is to start
    anew.
    """

    def __init__(self, storage: NodeStorage, port: int, hint: Hint) -> None:
        self._storage = storage
        self._port = port
        self._hint = hint
        self._key_here: dict[tuple[str, str], str] = {}  # of blobs, by topology and local name
        self._retry_ms = 0
        self._orders: deque[LocalAssignment] = deque(maxlen=1)
        self._fetched: dict[LocalAssignment, Code | BlobView] = {}
        # new code that could not be had, and when to try again
        self._unfetched: tuple[LocalAssignment, int] | None = None
        self._fetch_problem = self._blob_problem = ""
        self.turn = 0

    @property
    def problem(self) -> str:
        """Return why code or a blob could not be fetched; nothing when they could."""
        return self._fetch_problem or self._blob_problem

    # -- the slot's side ---------------------------------------------------------------------------

    def order(self, assignment: LocalAssignment) -> None:
        """Ask for a topology's code."""
        self._fetched.pop(assignment, None)
        self._orders.append(assignment)
        self._hint()

    def view(self, assignment: LocalAssignment) -> BlobView:
        """Return whether the code of an assignment was fetched."""
        fetched = self._fetched.get(assignment, BlobView.MISSING)
        return BlobView.READY if isinstance(fetched, Code) else fetched

    def get(self, assignment: LocalAssignment) -> Code | None:
        """Return the code that was fetched, None when it is not there (any more)."""
        fetched = self._fetched.get(assignment)
        is_there = isinstance(fetched, Code) and self._storage.has_code(fetched.code_path)
        return fetched if is_there and isinstance(fetched, Code) else None

    # -- the sync's side ---------------------------------------------------------------------------

    def take_orders(self) -> Iterator[LocalAssignment]:
        """Yield the assignments whose code was asked for."""
        while self._orders:
            yield self._orders.popleft()

    def fetch(
        self,
        assignment: LocalAssignment,
        stores: Stores,
        now_ms: int,
        prepare: Callable[[], None],
    ) -> None:
        """Fetch the code that was asked for, after `prepare`; a failure of either is seen in
        `view`.
        """
        self._fetched.clear()
        try:
            prepare()
            self._fetched[assignment] = self.bring(assignment, stores, now_ms)
            self._fetch_problem = ""
        except (SparkStormError, OSError) as fault:
            self._fetch_problem = f"the code of {assignment.topology_id} cannot be fetched: {fault}"
            _LOG.error("slot %s:%d: %s", self._storage.node, self._port, self._fetch_problem)
            self._fetched[assignment] = BlobView.FAILED

    def try_new(self, new: LocalAssignment, stores: Stores, now_ms: int) -> bool:
        """Bring the new code of a worker that runs (S0.25); return False while it cannot be had."""
        if self._unfetched is not None:
            failed, retry_ms = self._unfetched
            if failed == new and now_ms < retry_ms:
                return False
        try:
            self.bring(new, stores, now_ms)
        except (SparkStormError, OSError) as fault:
            if isinstance(fault, StoreUnavailableError):
                raise
            text = "slot %s:%d: new code of %s: %s; the worker stays as it is"
            _LOG.error(text, self._storage.node, self._port, new.topology_id, fault)
            self._unfetched = (new, now_ms + _RETRY_MS)
            return False
        self._unfetched = None
        return True

    def bring(self, assignment: LocalAssignment, stores: Stores, now_ms: int) -> Code:
        """Bring an assignment's code, configuration and blobs to this host; an error names what is
        missing.
        """
        code_path, conf_path = self._local_copies(assignment, stores, now_ms)
        if conf_path is None:
            return Code(code_path, {})
        try:
            conf = json.loads(self._storage.read_code(conf_path) or b"null")
        except (ValueError, RecursionError) as fault:
            raise StoreInconsistentError(
                f"conf blob {assignment.conf_key}: not JSON ({fault})"
            ) from fault
        if not isinstance(conf, dict):
            raise StoreInconsistentError(f"conf blob {assignment.conf_key}: not a JSON object")
        return Code(code_path, conf, self._bring_blobs(assignment.topology_id, conf, stores))

    def put_back(self, stores: Stores, now_ms: int) -> None:
        """Put the fetched code and configuration back into a store that has lost them.

        Named blobs stay as they are: a newer one that came here would not start the worker anew.
        """
        # a copy: the slot's thread removes entries meanwhile
        for assignment, code in list(self._fetched.items()):
            if not isinstance(code, Code):
                continue
            try:
                self._local_copies(assignment, stores, now_ms)
            except StoreUnavailableError:
                raise
            except SparkStormError as fault:
                _LOG.error("slot %s:%d: %s", self._storage.node, self._port, fault)

    def renew(self, assignment: LocalAssignment, stores: Stores, now_ms: int) -> bool:
        """Bring the versions of blobs of the worker that runs which are new; return whether it is
        to start anew with them.
        """
        code = self._fetched.get(assignment)
        if not isinstance(code, Code) or code.blobs is None:
            return False
        topology_id, before = assignment.topology_id, self.turn
        named = stores.state.read_named_blobs(self._hint)
        keys = {use: named[use.name].key for use in blob_uses(code.conf) if use.name in named}
        newer = {
            use: key
            for use, key in keys.items()
            if self._key_here.get((topology_id, use.local_name)) != key
        }
        if not newer or now_ms < self._retry_ms:
            return False
        try:
            for use, key in newer.items():
                self._keep(topology_id, use, key, stores)
                self.turn += use.restarts
            self._blob_problem = ""
        except (SparkStormError, OSError) as fault:
            if isinstance(fault, StoreUnavailableError):
                raise
            self._retry_ms = now_ms + _RETRY_MS
            problem = f"{topology_id} goes on with an older blob: {fault}"
            if problem != self._blob_problem:
                _LOG.error("%s", problem)
            self._blob_problem = problem
        return self.turn != before

    def _bring_blobs(
        self, topology_id: str, conf: Mapping[str, JsonValue], stores: Stores
    ) -> Path | None:
        folder = None
        uses = blob_uses(conf)
        named = stores.state.read_named_blobs(self._hint) if uses else {}
        for use in uses:
            if use.name not in named:
                raise StoreInconsistentError(
                    f"{KEY}: the cluster has no blob {use.name}; `sparkstorm blob create {use.name} FILE`"
                )
            folder = self._keep(topology_id, use, named[use.name].key, stores)
        return folder

    def _keep(self, topology_id: str, use: BlobUse, key: str, stores: Stores) -> Path:
        fetch = partial(stores.blobs.get, kind=BlobKind.NAMED)
        folder = self._storage.keep_blob(topology_id, use, key, fetch)
        self._key_here[topology_id, use.local_name] = key
        return folder

    def _local_copies(
        self, assignment: LocalAssignment, stores: Stores, now_ms: int
    ) -> tuple[Path, Path | None]:
        """Return the paths of code and configuration on this host; None without a configuration."""
        topology_id = assignment.topology_id
        code_path = self._local_copy(
            topology_id, assignment.code_key, BlobKind.CODE, stores, now_ms
        )
        if not assignment.conf_key:
            return code_path, None
        return code_path, self._local_copy(
            topology_id, assignment.conf_key, BlobKind.CONF, stores, now_ms
        )

    def _local_copy(
        self, topology_id: str, key: str, kind: BlobKind, stores: Stores, now_ms: int
    ) -> Path:
        fetch = partial(stores.blobs.get, kind=kind)
        path = self._storage.keep_code(topology_id, key, self._port, now_ms, fetch)
        # An emptied Redis has lost the code too: other hosts may need it.
        stores.blobs.repair(key, self._storage.read_code(path) or b"", kind)
        return path
