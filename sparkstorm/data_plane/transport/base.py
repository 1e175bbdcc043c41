"""Protocols and records of the data plane: commits of epochs, claims of owners, and the laws of
both.

Laws of every Transport (tests/contracts/test_transport.py runs them against each):
1. A commit is applied wholly or not at all, and at most once: the same commit sent again changes
   nothing, and another one with its (owner, seq) is refused (StoreRolledBackError): a second process
   goes on as this owner.
2. A commit is refused (FencedError) when a newer token is stored for any of its tasks, or none; its
   content does not matter.
3. A commit is refused (StoreRolledBackError) when the store may be behind its owner: another
   generation, a seq that is not one more than the stored one, a token older than the owner's, or a
   frame that the owner has read and not consumed and the store no longer has. The first call that
   finds the store behind raises the generation, so that all owners claim anew.
4. Frames of one sender for one task are read in the order they were committed, and kept until the
   cursor passed them.
5. `poll` never blocks; `wait` returns no data. `claim` forgets what was read before it.
6. A commit refused for lack of memory (StoreFullError) changed nothing. One that sends no more
   bytes of rows than it consumes, or is urgent, is never refused for that (acks and states are how
   a full store gets drained), nor is a claim; `release` frees what stored cursors have passed.
7. A topology that has ended (`Reader.delete`, TopologyRetirement) leaves a tombstone: no task of it
   can be claimed or sown, no commit is applied, and nothing that was handed over is handed over
   again (FencedError), for as long as it is kept.
8. A store whose disk is full refuses every write, claims and `release` included (StoreFullError),
   and keeps nothing of it; once there is room again, the same calls go through.
9. `read_state` and `scan_state` give what the commits so far have written to a task's base. They
   change nothing and need no fence: an owner that acts on what a newer owner has written cannot
   commit.
10. A store that lacks writes which the claimer's mark knows is a new incarnation, with a new random
   id and a greater generation, so that all owners claim anew. One that lacks more than its tail (a
   write up to the mark's floor, or all writes, at any time) is refused (StoreLostError), and
   nothing is changed, unless the claimer accepts the loss; once one has, marks of former
   incarnations prove nothing against it. Until then a claimer that knows more than the first one
   after the loss is refused, or reports the loss, all the same.
11. With cells (extensions/cells/cells.py) every law above is of the owner's own store: a commit touches no
   other. Entries of a task in another cell lie in their *sender's* store, in order for each sender,
   until the receiver's stored cursor of that cell has passed them; the newest entry that it has
   passed stays there as a witness. `poll` raises StoreRolledBackError when a store that was
   connected to anew has no longer what this owner has read from it; `claim` refuses it
   (StoreLostError) when what was *consumed* is gone, or was freed before its cursor, unless the
   claimer accepts the loss: it reads again all that is there. A store of another cell that is away
   stops nothing but what comes from it.

Left out: barriers in the streams and one snapshot of all tasks, as in Flink. Here every commit is a
consistent cut of its worker, so a crash repeats one epoch of one worker and not the time since the
last snapshot of all. Left out too: an ack per tuple with nothing stored, as in Storm, which repeats
tuples and counts them twice. Sources: tokens and sequence numbers do what producer epochs and
sequences do in Kafka's transactions; decisions 1 to 8, 46 and 48 in docs/decisions have what was
tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol
from uuid import uuid4

from sparkstorm.common.errors import FencedError, StoreRolledBackError
from sparkstorm.common.model.worker_spec import StoreMark


class Cursor(NamedTuple):
    """Position of a task in its stream: the last consumed entry, and the consumed rows of the next
    one.
    """

    entry: str
    row: int


START = Cursor("0-0", 0)
# Bounded, or a topology whose every input fails would fill the store that others share. A letter is
# an input with a traceback of up to 4,000 characters: twice as many may hold 800 MB of tracebacks
# alone, the present number 400. Half would be enough to read; a per-job run also appends each to
# a file.
MOST_DEAD_LETTERS = 100_000
"""Letters that a topology's store keeps at least; older ones may be dropped."""
# A client looks five times a second, and a worker publishes 50 rows of a stream at a time: twenty
# workers fill this within one publication. A client that looks less often misses rows, which
# samples may do.
MOST_SAMPLES = 1_000
"""Samples of one tap that are kept."""
# Longer than a tap stays open, so that the last rows can still be read by a client that paused;
# nothing else removes them, since the client that opened a tap may be dead.
SAMPLES_MS = 60_000
"""Time for which samples are kept after the last one."""
# A client opens its tap three times within it, so that two lost requests do not close it. Longer
# would keep workers copying rows for a client that has died, shorter would ask more.
TAP_MS = 10_000
"""Time for which a tap stays open; a client that goes on looking opens it again before."""
# A slot that is cut off from ZooKeeper still starts the worker of a topology that has ended; only
# the tombstone stops it then. An hour would do for a broken switch, not for a host that comes back
# after a weekend. Kept for ever, they would fill a store that runs many short topologies.
TOMBSTONE_MS = 7 * 24 * 3_600_000
"""Time for which Redis keeps the tombstone of a topology: longer than any worker of it can go on
while cut off from its slot.
"""


# Bounded: ids never come back, so that a cache of all of them would grow as long as the worker
# runs.
@lru_cache(maxsize=4096)  # a worker compares each id several times
def entry_order(entry: str) -> tuple[int, int]:
    """A stream entry's id as numbers that compare."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


def second_error(owner: str, seq: int) -> StoreRolledBackError:
    """Return the refusal of a commit whose number was taken by other content."""
    return StoreRolledBackError(
        f"commit {seq} of {owner} was written with other content: a second process goes on as this "
        "worker, such as a fork made by user code that has returned to it; end forks with os._exit"
    )


def ended_error(topology_id: str) -> FencedError:
    """Return the refusal of a claim on a topology that has ended."""
    return FencedError(
        f"{topology_id} has ended; this worker belongs to a slot that has not heard of it yet"
    )


@dataclass(frozen=True, slots=True)
class Expected:
    """Expectation of a claim: the mark of the store (None: unknown), and whether a loss beyond the
    tail is accepted.
    """

    mark: StoreMark | None = None
    accepts_loss: bool = False
    # Drawn by the claimer, since the script cannot: Redis gives math.random the same seed in every
    # run.
    new_incarnation: str = field(default_factory=lambda: uuid4().hex)


class Entry(NamedTuple):
    """One frame as it lies in a task's stream."""

    task: int
    id: str
    data: bytes
    # when the store took it, by the store's clock; None: the store keeps no time
    sent_ms: int | None = None
    # of its sender, in whose store it lies; None: the reader's own
    cell: int | None = None


class ForeignProgress(NamedTuple):
    """Progress of a task in the stream that another cell has for it: its cursor, and bytes done
    with since the last commit.
    """

    cursor: Cursor
    drained_bytes: int = 0


@dataclass(slots=True)
class Commit:
    """All changes of one epoch to the store."""

    owner: str
    token_by_task: Mapping[int, int]
    generation: int
    seq: int
    # (task, frame, bytes that count as backlog)
    frames: list[tuple[int, bytes, int]] = field(default_factory=list)
    cursors: dict[int, Cursor] = field(default_factory=dict)
    drained_bytes: dict[int, int] = field(default_factory=dict)
    # by (cell, task): of streams in the stores of other cells
    foreign: dict[tuple[int, int], ForeignProgress] = field(default_factory=dict)
    # A frame counts as freed only when all of its rows are consumed. Commits that consume parts of
    # frames would be refused by a full store for ever, which is how one locked up before.
    # of rows done with, also where the frame they lie in is not done with as a whole
    consumed_bytes: int = 0
    journal: list[tuple[int, bytes]] = field(default_factory=list)
    # how many of a journal's oldest entries go
    dropped: dict[int, int] = field(default_factory=dict)
    # (task, key, value or none: deleted) of bases
    state: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)
    held: list[tuple[int, str, bytes]] = field(default_factory=list)
    released: list[tuple[int, str]] = field(default_factory=list)
    parked: list[bytes] = field(default_factory=list)
    quarantined: list[bytes] = field(default_factory=list)
    # has been refused for long: only by going through can the rows it consumed be freed
    is_urgent: bool = False
    progress: bytes = b""
    # place among the owner's earlier records (data_plane/transport/progress.py), and the record to keep there
    earlier: tuple[int, bytes] | None = None
    low_ms: int | None = None
    watched: Sequence[int] = ()  # tasks whose backlog the answer is to have

    def frees(self, passed_bytes: int) -> bool:
        """Return whether it sends on no more bytes of rows than it consumes, given the bytes of
        whole frames that it passes.
        """
        # Acker messages do not count: refusing acks would keep every tree, and all entries that
        # wait for them, in the full store.
        sent = sum(len(data) for _, data, counted in self.frames if counted)
        return self.is_urgent or sent <= max(passed_bytes, self.consumed_bytes)

    def digest(self) -> int:
        """Return a number for all that would be written, equal for equal content in one process and
        its forks: no others have an owner's token and number in common.
        """
        mappings = self.cursors, self.drained_bytes, self.foreign, self.dropped
        return hash(
            (
                tuple(self.frames),
                tuple(self.journal),
                tuple(self.state),
                tuple(self.held),
                tuple(self.released),
                *(tuple(mapping.items()) for mapping in mappings),
                *(tuple(self.parked), tuple(self.quarantined), self.progress, self.low_ms),
                self.earlier,
            )
        )

    def is_empty(self) -> bool:
        """Return whether nothing but progress would be written."""
        return not (
            self.frames
            or self.cursors
            or self.foreign
            or self.journal
            or self.dropped
            or self.state
            or self.held
            or self.released
            or self.parked
            or self.quarantined
        )


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """Stored record of one task."""

    cursor: Cursor
    journal: list[bytes]
    held: dict[str, bytes]
    # newest frame in the stream: up to it, frames of former owners may lie there
    last_entry: str = "0-0"
    # cursors of its streams in the stores of other cells, by cell
    foreign: Mapping[int, Cursor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskInputs:
    """Inputs that wait for one task: its cursor, the inputs that it holds, and the oldest entries
    of its stream.
    """

    cursor: Cursor
    held: Mapping[str, bytes]
    entries: Sequence[tuple[str, bytes]]
    # what waits in the stores of other cells, with the cursors there
    foreign: Sequence[TaskInputs] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """State that a new owner finds after it has fenced off the former one."""

    generation: int
    seq: int
    progress: bytes
    record_by_task: Mapping[int, TaskRecord]
    incarnation: str = ""
    step: int = 0  # number of the claim among the store's writes
    # topology id under which the data began: topologies before and after a hot deploy have it in
    # common
    origin: str = ""
    loss: str = ""  # what the store has lost beyond its tail, which the claimer has accepted


@dataclass(frozen=True, slots=True)
class Pressure:
    """Causes of back-pressure: backlog of the watched tasks in bytes, and fullness of the store
    (0..1).
    """

    backlog_by_task: Mapping[int, int]
    fullness: float = 0.0
    step: int = 0  # number of the store's newest write


class Transport(Protocol):
    """One owner's way to the store."""

    def claim(
        self, owner: str, token_by_task: Mapping[int, int], expected: Expected | None = None
    ) -> Claim:
        """Fence off former owners of these tasks, then read what they left.

        FencedError if a newer owner exists; StoreLostError when the store lacks more than its tail.
        """

    def commit(self, commit: Commit) -> Pressure:
        """Apply a commit exactly once, across lost connections; raises as in the laws."""

    def poll(self, after: Mapping[int, str], count: int) -> list[Entry]:
        """Entries behind the given ids, at most `count` per task; empty when there is none now.

        Raises StoreRolledBackError or FencedError when a lost connection showed that this owner
        must claim anew.
        """

    def look(self) -> None:
        """Ask whether the store is as the last commit of this owner left it; raises as in the laws
        when it is not.
        """

    def ask(self, after: Mapping[int, str], count: int) -> None:
        """Let the next commit or `wait` look for entries behind these ids; the `poll` after it
        returns them.
        """

    def wait(self, timeout_ms: float, wake_fds: Sequence[int] = ()) -> bool:
        """Block until entries may be there, a file descriptor is readable, or the time is over;
        False: only time has passed.
        """

    def release(self) -> None:
        """Free what stored cursors have passed, without a commit (a full store refuses those);
        StoreFullError by law 8.
        """

    def oldest_waiting_ms(self, also: Sequence[int] = (), floor_ms: int = 0) -> int | None:
        """Birth of the oldest root that waits, everywhere at one moment; None when nothing does.

        Looked at: every frame of tasks with a backlog and of these tasks, and the watermarks that
        owners have committed for what waits outside the streams. Once something not younger than
        the floor is found, that is the answer.
        """

    def read_state(self, task: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys in a task's base, None for each that is not there."""

    def scan_state(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield a task's base as (key, value), in parts and in no order."""

    def foreign_cursors(self, tasks: Collection[int]) -> Mapping[tuple[int, int], Cursor]:
        """Return the stored cursors of these tasks in other cells' streams, by (cell, task).

        StoreUnavailableError at the first trouble: what asks for them can wait.
        """

    def open_taps(self, names: Sequence[str]) -> Collection[str]:
        """Return which of these taps ("component:stream") a client has open, now or when a commit
        since the last call has asked for the same ones.
        """

    def show(self, samples: Mapping[str, Sequence[bytes]]) -> None:
        """Append samples to the streams of taps, of which the newest are kept; no part of any
        guarantee.
        """

    def close(self) -> None:
        """Close the connections."""


class Reader(Protocol):
    """Access of drivers, clients and notebooks to a topology's data: reads, and a few changes."""

    def progress(self) -> dict[str, bytes]:
        """Progress record of every owner, as written by its last commit."""

    def earlier(self) -> dict[str, list[bytes]]:
        """Return the earlier progress records that are kept of each owner, in no order."""

    def backlog(self) -> dict[int, int]:
        """Bytes that wait in each task's stream."""

    def record(self, task: int) -> TaskRecord:
        """Return the stored record of a task."""

    def scan_state(self, task: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield a task's base as (key, value), in parts; not at one moment."""

    def inputs(self, task: int, limit: int) -> TaskInputs:
        """Return what waits for a task, of its stream at most `limit` entries, the oldest."""

    def parked(self, limit: int, after: str = "0") -> list[tuple[str, bytes]]:
        """Return the oldest dead letters with ids greater than `after`, with their ids; ids only
        grow.
        """

    def letters(self, ids: Sequence[str]) -> dict[str, bytes]:
        """Return dead letters by id; those that are not there (any more) are left out."""

    def put_back(self, letters: Sequence[tuple[str, int, bytes]]) -> list[str]:
        """Take letters, each (id, task, frame), off and append their frames to the tasks' streams,
        all in one step.

        Returns the ids that were there; the others change nothing. NotAliveError when no owner has
        claimed one of the tasks: nothing is changed then. What is sent again after a cut is applied
        once.
        """

    def count_dead_letters(self) -> int:
        """Return how many dead letters are kept."""

    def drop_dead_letter(self, id: str) -> bool:
        """Delete one dead letter; False when it is not there."""

    def drop_dead_letters(self) -> int:
        """Delete the topology's dead letters; return how many there were."""

    def open_tap(self, name: str) -> str:
        """Open a tap for TAP_MS, or keep it open; return the id of its newest sample."""

    def samples(self, name: str, after: str) -> list[tuple[str, bytes]]:
        """Return a tap's samples with ids greater than `after`, with their ids."""

    def delete(self) -> None:
        """End the topology: leave a tombstone, delete all but the dead letters, which stay until
        they are dropped.
        """
