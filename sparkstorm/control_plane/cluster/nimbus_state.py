"""Records under /nimbus: requests and their outcomes, hot deploys, leadership, Nimbus's problems.

Clients write requests and may withdraw them; all else is Nimbus's.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sparkstorm.common.errors import (
    SparkStormError,
    StateConflictError,
    StoreInconsistentError,
    TamperedBlobError,
)
from sparkstorm.common.model.assignment import TopologyBase
from sparkstorm.common.model.records import encode_record
from sparkstorm.common.model.requests import (
    HostMark,
    HostMarks,
    LogConfig,
    Outcome,
    Problems,
    Request,
)
from sparkstorm.common.model.status import JsonValue
from sparkstorm.control_plane.cluster import paths
from sparkstorm.control_plane.cluster.base import Hint
from sparkstorm.control_plane.cluster.record_store import RecordStore


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """A driver on a root: its id, and its process as host, process id, start (ticks since boot) and
    place (boot, container).

    `folder` is the id of its storm.local.dir, `number` distinguishes its nodes from other drivers'.
    One that `is_alone` shares the root with no other.
    """

    id: str
    host: str
    pid: int
    start: str
    place: str
    folder: str = ""
    local_dir: str = ""
    number: int = 1
    since_ms: int = 0
    is_alone: bool = True

    def __str__(self) -> str:
        return f"driver process {self.pid} on host {self.host}"


@dataclass(frozen=True, slots=True)
class DriverNumber:
    """Claim to a driver's number: the id of a storm.local.dir, and when a driver with it was last
    started.
    """

    folder: str
    claimed_ms: int


@dataclass(frozen=True, slots=True)
class NimbusInfo:
    """Leading Nimbus: its name, the time of its election, and its driver."""

    owner: str
    since_ms: int
    driver: DriverInfo | None = None


@dataclass(frozen=True, slots=True)
class Deploy:
    """A hot deploy under way: `base` follows `old_id`, and takes its data over when it `inherits`.

    `fallback` brings the old topology back should `base` be refused; then it becomes `base`, and
    `refusal` has the reason.
    """

    old_id: str
    base: TopologyBase
    inherits: bool
    fallback: TopologyBase | None
    request_id: str
    refusal: str = ""

    def bases(self) -> list[TopologyBase]:
        """The topologies that may follow."""
        return [self.base, self.fallback] if self.fallback else [self.base]


@dataclass(frozen=True, slots=True)
class ClusterConf:
    """The part of the cluster's configuration that clients need: what differs from the defaults and
    is no secret.
    """

    conf: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class _Served:
    """Requests that have been decided: when each expires, by id."""

    until_by_id: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Count:
    count: int


_MOST_SERVED = 5_000
"""Decided requests that are remembered: some 250 kB, which must fit into a node of 1 MB.

Half of it would be enough for 40 requests a second, as each is remembered for a minute.
"""


class NimbusState(RecordStore):
    """Verbs of requests, deploys and leadership."""

    # -- requests ----------------------------------------------------------------------------------

    def request_ids(self, hint: Hint | None = None) -> list[str]:
        """Names of all requests, unreadable ones too; the hint fires when one comes or goes."""
        return self._names(paths.REQUESTS, hint)

    def create_request(self, request: Request) -> None:
        """Record a request; a second create of the same one, after a cut connection, is success."""
        path = paths.request(request.id)
        try:
            self._create(path, request)
        except StateConflictError:
            if self.read_request(request.id) != request:
                raise

    def open_requests(
        self, hint: Hint | None = None, known_bad: Collection[str] = ()
    ) -> tuple[list[tuple[Request, Outcome | None]], dict[str, SparkStormError]]:
        """Requests without a final outcome in the order of their making; and what is wrong with
        those that cannot be read.

        Requests in `known_bad` are not read again.
        """
        requests: list[tuple[Request, Outcome | None]] = []
        unreadable: dict[str, SparkStormError] = {}
        request_ids = self.request_ids(hint)
        decided = set(self.outcome_ids()) if request_ids else set()
        for request_id in (
            request_ids
            if not known_bad
            else [request_id for request_id in request_ids if request_id not in known_bad]
        ):
            try:
                outcome = self.read_outcome(request_id) if request_id in decided else None
                if outcome is None or not outcome.is_final:
                    request = self.read_request(request_id)
                    if {record.id for record in (request, outcome) if record} - {request_id}:
                        raise StoreInconsistentError(
                            f"{paths.request(request_id)}: it or its outcome has another id"
                        )
                    requests += [(request, outcome)] if request else []
            except (StoreInconsistentError, TamperedBlobError) as error:
                unreadable[request_id] = error
        return sorted(requests, key=lambda pair: (pair[0].created_ms, pair[0].id)), unreadable

    def read_request(self, request_id: str) -> Request | None:
        """A request; TamperedBlobError or StoreInconsistentError when it is none of ours."""
        return self._read_once(Request, paths.request(request_id))

    def remove_request(self, request_id: str) -> None:
        """Delete a request; its outcome goes after it."""
        self.store.delete(paths.request(request_id))

    def outcome_ids(self) -> list[str]:
        """Names of all outcomes."""
        return self._names(paths.OUTCOMES)

    def create_outcome(self, outcome: Outcome) -> bool:
        """Decide a request: whether this outcome is the first, and so the one that counts."""
        try:
            self._create(paths.outcome(outcome.id), outcome)
        except StateConflictError:
            return self.read_outcome(outcome.id) == outcome  # our own create whose reply was cut
        return True

    def write_outcome(self, outcome: Outcome) -> None:
        """Write a later state of an accepted request."""
        self._write(paths.outcome(outcome.id), outcome)

    def read_outcome(self, request_id: str, hint: Hint | None = None) -> Outcome | None:
        """Return the outcome of a request so far; the hint fires when it changes."""
        return self._read_once(Outcome, paths.outcome(request_id), hint)

    def remove_outcome(self, request_id: str) -> None:
        """Delete an outcome; call it after `remove_request`."""
        self.store.delete(paths.outcome(request_id))

    def read_served(self) -> Mapping[str, int]:
        """Return when each remembered request that has been decided expires, by id."""
        served = self._read_record(_Served, paths.SERVED)
        return served.until_by_id if served else {}

    def note_served(self, until_by_id: Mapping[str, int], since_ms: int = 0) -> None:
        """Remember requests that have been decided; those that expired before `since_ms` are
        forgotten.

        Of more than 5,000 the last to expire are kept. Nothing is written when nothing changes.
        """

        def changed(served: _Served | None) -> _Served | None:
            merged = {**(served.until_by_id if served else {}), **until_by_id}
            newest = sorted(
                (until_ms, request_id)
                for request_id, until_ms in merged.items()
                if until_ms >= since_ms
            )[-_MOST_SERVED:]
            return (
                _Served({request_id: until_ms for until_ms, request_id in newest})
                if served or newest
                else None
            )

        self._update(_Served, paths.SERVED, changed)

    def remove_served(self) -> None:
        """Forget all requests that have been decided: the record of them is damaged."""
        self.store.delete(paths.SERVED)

    # -- problems and log levels -------------------------------------------------------------------

    def write_problems(self, problems: Problems) -> None:
        """Show Nimbus's problems to clients."""
        self.store.put(paths.PROBLEMS, encode_record(problems))

    def read_problems(self) -> Problems | None:
        """Nimbus's problems as of its last turn that changed them."""
        return self._read_plain(Problems, paths.PROBLEMS)

    def write_log_config(self, config: LogConfig) -> None:
        """Set the log levels of a topology's workers."""
        self._write(paths.log_config(config.topology_id), config)

    def read_log_config(self, topology_id: str, hint: Hint | None = None) -> LogConfig | None:
        """Log levels of a topology's workers."""
        return self._read_record(LogConfig, paths.log_config(topology_id), hint)

    # -- hosts -------------------------------------------------------------------------------------

    def read_host_marks(self, hint: Hint | None = None) -> Mapping[str, HostMark]:
        """Return the excluded and drained hosts by name; the hint fires when one is marked or
        included again.
        """
        marks = self._read_record(HostMarks, paths.HOSTS, hint)
        return marks.by_host if marks else {}

    def change_host_marks(
        self,
        change: Callable[[Mapping[str, HostMark]], Mapping[str, HostMark]],
        last_good: Mapping[str, HostMark],
    ) -> None:
        """Change the marks by a pure function, again when another writer was first; in place of
        damaged ones `last_good`.
        """
        try:
            self._update(
                HostMarks,
                paths.HOSTS,
                lambda marks: HostMarks(change(marks.by_host if marks else {})),
            )
        except (StoreInconsistentError, TamperedBlobError):
            self._write(paths.HOSTS, HostMarks(change(last_good)))

    # -- submissions and deploys -------------------------------------------------------------------

    def next_submission_number(self) -> int:
        """Count submissions over all times, for topology ids (JStorm's submittedCount)."""
        counted = self._update(
            _Count, paths.SUBMITTED_COUNT, lambda count: _Count(count.count + 1 if count else 1)
        )
        assert counted is not None
        return counted.count

    def protect(self, topology_id: str) -> None:
        """Keep what is written under a new id from the sweep, as long as this session lasts or
        until `unprotect`.
        """
        self.store.put_ephemeral(paths.submission(topology_id), b"")

    def unprotect(self, topology_id: str) -> None:
        """End the protection of an id: a request names it now, or none will."""
        self.store.delete(paths.submission(topology_id))

    def protected_ids(self) -> list[str]:
        """Ids of topologies that are being prepared for submission."""
        return self._names(paths.SUBMISSIONS)

    def write_deploy(self, name: str, deploy: Deploy) -> None:
        """Record a hot deploy, so that any Nimbus can finish it."""
        self._write(paths.deploy(name), deploy)

    def read_deploy(self, name: str) -> Deploy | None:
        """The unfinished hot deploy of a name."""
        return self._read_record(Deploy, paths.deploy(name))

    def remove_deploy(self, name: str) -> None:
        """Remove a hot deploy that is finished, or given up."""
        self.store.delete(paths.deploy(name))

    def deploy_names(self) -> list[str]:
        """Names of hot deploys that are not finished; the records themselves may be damaged."""
        return self._names(paths.DEPLOYS)

    # -- leadership --------------------------------------------------------------------------------

    def write_cluster_conf(self, conf: Mapping[str, JsonValue]) -> None:
        """Publish the cluster's configuration for its clients."""
        self._write(paths.CLUSTER_CONF, ClusterConf(conf))

    def read_cluster_conf(self) -> Mapping[str, JsonValue]:
        """Return what the cluster's configuration changes in the defaults; empty before a driver
        has published it.
        """
        record = self._read_record(ClusterConf, paths.CLUSTER_CONF)
        return record.conf if record else {}

    def try_lead(self, info: NimbusInfo) -> bool:
        """Take part in the election; True while this session leads."""
        return self.store.try_ephemeral(paths.LEADER, encode_record(info))

    def read_leader(self, hint: Hint | None = None) -> NimbusInfo | None:
        """Return the leading Nimbus; the hint fires when its leadership ends."""
        return self._read_plain(NimbusInfo, paths.LEADER, hint)

    def depose(self, leader: NimbusInfo) -> bool:
        """End the leadership of a Nimbus that is dead, before its session ends; whether it was
        done.

        One deposer at a time: a second one would end the leadership of the next leader.
        """
        if not self.store.try_ephemeral(paths.DEPOSING, b""):
            return False
        try:
            is_leader = self.read_leader() == leader
            if is_leader:
                self.store.delete(paths.LEADER)
            return is_leader
        finally:
            self.store.delete(paths.DEPOSING)

    # -- drivers -----------------------------------------------------------------------------------

    def register_driver(self, driver: DriverInfo) -> None:
        """Write a driver's ephemeral node unless it is there."""
        self.store.try_ephemeral(paths.driver(driver.id), encode_record(driver))

    def remove_driver(self, driver_id: str) -> None:
        """Remove a driver that leaves, or is dead."""
        self.store.delete(paths.driver(driver_id))

    def read_drivers(self, hint: Hint | None = None) -> list[DriverInfo]:
        """All drivers on this root by number; the hint fires when one comes or goes.
        StoreInconsistentError for a damaged one.
        """
        paths_found = [paths.driver(name) for name in self._names(paths.DRIVERS, hint)]
        drivers = [self._read_plain(DriverInfo, path) for path in paths_found]
        return sorted(
            (driver for driver in drivers if driver), key=lambda driver: (driver.number, driver.id)
        )

    def write_driver_number(self, number: int, claim: DriverNumber) -> None:
        """Claim a number; only one driver at a time does."""
        self.store.put(paths.driver_number(number), encode_record(claim))

    def read_driver_numbers(self) -> dict[int, DriverNumber]:
        """All claims by number."""
        numbers = [
            int(name)
            for name in self._names(paths.DRIVER_NUMBERS)
            if name.isascii() and name.isdecimal()
        ]
        claims = {
            number: self._read_plain(DriverNumber, paths.driver_number(number))
            for number in numbers
        }
        return {number: claim for number, claim in claims.items() if claim}
