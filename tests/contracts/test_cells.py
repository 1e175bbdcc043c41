"""Checks the laws between cells (law 11) on the twin and on a real Redis: which store has what, what
is freed when, and what a store that goes back alone does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from sparkstorm.common.errors import (
    FencedError,
    StoreFullError,
    StoreLostError,
    StoreRolledBackError,
)
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.transport.base import (
    START,
    Commit,
    Cursor,
    Entry,
    Expected,
    ForeignProgress,
)
from sparkstorm.data_plane.transport.frames import SettledRoots, encode_settled
from sparkstorm.data_plane.transport.progress import Progress
from sparkstorm.extensions.cells.cells import STAY_MS, TELL_EVERY_MS
from sparkstorm.extensions.cells.cells_reader import CellsReader
from sparkstorm.extensions.embedded import RedisServer
from sparkstorm.testing.local_topology import MomentReader
from tests.contracts.benches import Bench, LocalBench, RedisBench, in_cell
from tests.waiting import wait_until

TASK = 7  # of a receiver in cell 0


class Cells:
    """Stores of some cells, and a clock that all of their owners have."""

    def __init__(self, benches: list[Bench]) -> None:
        self.benches = benches
        self.now_ms = 0.0

    def open(self, cell: int) -> Any:
        others = {each: bench for each, bench in enumerate(self.benches) if each != cell}
        return in_cell(self.benches[cell].open(), others, lambda: self.now_ms)

    def later(self, ms: float = STAY_MS + TELL_EVERY_MS) -> None:
        self.now_ms += ms

    def close(self) -> None:
        for bench in self.benches:
            bench.close()


@pytest.fixture(
    params=[
        ("local", 2),
        ("local", 3),
        pytest.param(("redis", 2), marks=pytest.mark.system),
        pytest.param(("redis", 3), marks=pytest.mark.system),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def cells(request: pytest.FixtureRequest) -> Iterator[Cells]:
    kind, count = request.param
    server: RedisServer | None = (
        request.getfixturevalue("redis_server") if kind == "redis" else None
    )
    made = Cells([LocalBench() if server is None else RedisBench(server) for _ in range(count)])
    yield made
    made.close()


class Owner:
    """A worker of one cell as the transport sees it."""

    def __init__(
        self, cells: Cells, cell: int, name: str, tasks: tuple[int, ...], token: int = 1
    ) -> None:
        self.cells = cells
        self.cell = cell
        self.transport = cells.open(cell)
        self.name = name
        self.token_by_task = dict.fromkeys(tasks, token)
        self.claim()

    def claim(self, accepts_loss: bool = False) -> None:
        expected = Expected(None, accepts_loss)
        self.claimed = self.transport.claim(self.name, self.token_by_task, expected)
        self.seq = self.claimed.seq
        self.read_to = {t: r.cursor.entry for t, r in self.claimed.record_by_task.items()}

    def commit(self, **changes: Any) -> Any:
        generation = self.claimed.generation
        pressure = self.transport.commit(
            Commit(self.name, self.token_by_task, generation, self.seq + 1, **changes)
        )
        self.seq += 1
        return pressure

    def send(self, *frames: bytes, task: int = TASK) -> Any:
        return self.commit(frames=[(task, frame, len(frame)) for frame in frames], watched=(task,))

    def poll(self, count: int = 100) -> list[Entry]:
        found: list[Entry] = self.transport.poll(self.read_to, count)
        for entry in found:
            if entry.cell is None:
                self.read_to[entry.task] = entry.id
        return found

    def read(self, entries: int) -> list[Entry]:
        """Return a number of entries of any cells, polled for until they are there."""
        found: list[Entry] = []

        def enough() -> bool:
            found.extend(self.poll())
            if len(found) < entries:
                self.transport.ask(self.read_to, 100)
                self.transport.wait(50)
            return len(found) >= entries

        wait_until(enough, f"{entries} entries")
        return found

    def consume(self, entries: list[Entry], **changes: Any) -> Any:
        """Commit the consumption of foreign entries, each as a whole."""
        drained: dict[tuple[int, int], int] = {}
        cursor: dict[tuple[int, int], Cursor] = {}
        for entry in entries:
            assert entry.cell is not None
            at = entry.cell, entry.task
            drained[at] = drained.get(at, 0) + len(entry.data)
            cursor[at] = Cursor(entry.id, 0)
        passed = {at: ForeignProgress(cursor[at], drained[at]) for at in cursor}
        return self.commit(foreign=passed, **changes)

    def tend(self) -> None:
        """Let what is due be freed."""
        self.transport.wait(0)


def pair(cells: Cells) -> tuple[Owner, Owner]:
    """A sender in the last cell, and the receiver in the first."""
    last = len(cells.benches) - 1
    return Owner(cells, last, "s", (1,)), Owner(cells, 0, "r", (TASK,))


def names(entries: list[Entry]) -> list[bytes]:
    return [entry.data for entry in entries]


# -- who has what


def test_frames_of_senders_in_all_cells_are_read_in_the_order_of_each(cells: Cells) -> None:
    count = len(cells.benches)
    senders = [Owner(cells, cell, f"s{cell}", (cell + 1,)) for cell in range(count)]
    receiver = Owner(cells, 0, "r", (TASK,))
    for n in range(10):
        for sender in senders:
            sender.send(b"%d %d" % (sender.cell, n))
    found = receiver.read(10 * count)
    for cell in range(count):
        of_cell = [entry for entry in found if (entry.cell or 0) == cell]
        assert names(of_cell) == [b"%d %d" % (cell, n) for n in range(10)]
    assert {entry.cell for entry in found} == {None, *range(1, count)}


def test_a_commit_changes_no_other_store(cells: Cells) -> None:
    sender, receiver = pair(cells)
    before = [bench.dump() for bench in cells.benches]
    sender.send(b"a", b"b")
    assert [bench.dump() for bench in cells.benches[:-1]] == before[:-1]
    assert cells.benches[-1].frames(TASK) == [b"a", b"b"]
    found = receiver.read(2)
    sent = cells.benches[-1].dump()
    receiver.consume(found, journal=[(TASK, b"delta")])
    assert cells.benches[-1].dump() == sent
    assert cells.benches[0].frames(TASK) == []
    result = cells.benches[0].reader().record(TASK).foreign
    assert result == {len(cells.benches) - 1: Cursor(found[-1].id, 0)}


def test_entries_stay_until_their_receiver_has_committed_and_some_time_after(cells: Cells) -> None:
    sender, receiver = pair(cells)
    source = cells.benches[-1]
    sender.send(b"a", b"b", b"c")
    found = receiver.read(3)
    cells.later()
    receiver.tend()
    assert source.frames(TASK) == [b"a", b"b", b"c"], "read, and not consumed"
    receiver.consume(found[:2])
    cells.later(STAY_MS - 1)
    receiver.tend()
    assert source.frames(TASK) == [b"a", b"b", b"c"], "a look at all stores may be under way"
    cells.later(TELL_EVERY_MS)
    receiver.tend()
    assert source.frames(TASK) == [b"b", b"c"], "the newest that was consumed stays"
    assert source.reader().backlog()[TASK] == 1
    receiver.consume(found[2:])
    cells.later()
    receiver.tend()
    assert source.frames(TASK) == [b"c"]
    assert source.reader().backlog()[TASK] == 0
    assert sender.send(b"dd").backlog_by_task == {TASK: 2}
    assert names(receiver.read(1)) == [b"dd"]


def test_senders_hear_soon_that_nothing_waits_though_entries_stay(cells: Cells) -> None:
    sender, receiver = pair(cells)
    sender.send(b"aa", b"b")
    receiver.consume(receiver.read(2)[:1])
    cells.later(TELL_EVERY_MS)
    receiver.tend()
    assert sender.commit(watched=(TASK,), progress=b"p").backlog_by_task == {TASK: 1}
    large = b"x" * (1 << 20)
    sender.send(large)
    receiver.consume(receiver.read(1))
    assert sender.commit(watched=(TASK,), progress=b"q").backlog_by_task == {TASK: 0}
    assert cells.benches[-1].frames(TASK) == [b"aa", b"b", large]


def test_a_successor_goes_on_at_the_cursors_of_all_cells(cells: Cells) -> None:
    sender, receiver = pair(cells)
    own = Owner(cells, 0, "own", (2,))
    own.send(b"own")
    sender.send(b"a", b"b", b"c")
    found = receiver.read(4)
    foreign = [entry for entry in found if entry.cell is not None]
    cell = sender.cell
    receiver.commit(foreign={(cell, TASK): ForeignProgress(Cursor(foreign[0].id, 5))})
    successor = Owner(cells, 0, "r2", (TASK,), token=2)
    record = successor.claimed.record_by_task[TASK]
    assert (record.cursor, record.foreign) == (START, {cell: Cursor(foreign[0].id, 5)})
    assert sorted(names(successor.read(3))) == [b"b", b"c", b"own"]
    with pytest.raises(FencedError):
        receiver.consume(foreign)


def test_what_a_dead_owner_has_passed_is_freed_by_its_successor_with_its_bytes(
    cells: Cells,
) -> None:
    sender, receiver = pair(cells)
    source = cells.benches[-1]
    sender.send(b"aaaa", b"bb", b"c")
    receiver.consume(receiver.read(3)[:2])
    successor = Owner(cells, 0, "r2", (TASK,), token=2)
    cells.later()
    successor.tend()
    assert source.frames(TASK) == [b"bb", b"c"]
    assert source.reader().backlog()[TASK] == 1
    cells.later()
    receiver.tend()  # a zombie, which frees what it has passed once more
    assert source.frames(TASK) == [b"bb", b"c"]
    assert source.reader().backlog()[TASK] == 1
    successor.consume(successor.read(1))
    cells.later()
    successor.tend()
    assert (source.frames(TASK), source.reader().backlog()[TASK]) == ([b"c"], 0)


def test_messages_of_ackers_are_no_backlog_also_where_bytes_are_counted_anew(cells: Cells) -> None:
    sender, receiver = pair(cells)
    message = encode_settled(Codec(), SettledRoots([], {}, 5))
    sender.commit(frames=[(TASK, message, 0), (TASK, b"row", 3), (TASK, b"last", 4)])
    found = receiver.read(3)
    receiver.consume(found[:2])
    successor = Owner(cells, 0, "r2", (TASK,), token=2)
    cells.later()
    successor.tend()
    assert cells.benches[-1].reader().backlog()[TASK] == 4


# -- a store of another cell that is away, full, or has ended


def test_a_cell_goes_on_while_the_store_of_another_is_away(cells: Cells) -> None:
    sender, receiver = pair(cells)
    own = Owner(cells, 0, "own", (2,))
    sender.send(b"before")
    receiver.consume(receiver.read(1))
    cells.benches[-1].set_away(True)
    own.send(b"own")
    assert names(receiver.read(1)) == [b"own"]
    receiver.commit(journal=[(TASK, b"delta")])
    cells.later()
    receiver.tend()
    assert receiver.transport.oldest_waiting_ms(floor_ms=99) == 99, "anything may wait there"
    restarted = Owner(cells, 0, "r", (TASK,), token=2)
    cells.benches[-1].set_away(False)
    if isinstance(cells.benches[-1], RedisBench):
        sender.transport.wait(0)
    sender.send(b"after")
    assert sorted(names(restarted.read(2))) == [b"after", b"own"]
    assert restarted.claimed.record_by_task[TASK].foreign

    def is_freed() -> bool:
        restarted.poll()
        cells.later()
        restarted.tend()
        return cells.benches[-1].frames(TASK) == [b"before", b"after"]

    wait_until(is_freed, "what its predecessor has passed is freed")


def test_a_full_store_is_drained_by_receivers_in_other_cells() -> None:
    cells = Cells([LocalBench(), LocalBench()])
    sender, receiver = pair(cells)
    source = cells.benches[-1]
    assert isinstance(source, LocalBench)
    source.store.max_bytes = 25
    for _ in range(3):
        sender.send(b"x" * 10)
    with pytest.raises(StoreFullError):
        sender.send(b"y" * 10)
    receiver.consume(receiver.read(3))
    cells.later()
    source.store.is_disk_full = True
    receiver.tend()
    assert len(source.frames(TASK)) == 3, "a full disk takes no write"
    source.store.is_disk_full = False
    cells.later()
    receiver.tend()
    sender.send(b"y" * 10)
    assert source.reader().backlog()[TASK] == 10


def test_a_topology_that_has_ended_in_another_cell_brings_nothing_and_no_alarm(
    cells: Cells,
) -> None:
    sender, receiver = pair(cells)
    sender.send(b"a", b"b")
    receiver.consume(receiver.read(2)[:1])
    cells.benches[-1].reader().delete()
    cells.benches[-1].set_away(True)
    cells.benches[-1].set_away(False)
    for _ in range(3):
        assert receiver.poll() == []
        receiver.transport.wait(60)
    cells.later()
    receiver.tend()
    assert cells.benches[-1].frames(TASK) == []
    assert Owner(cells, 0, "r2", (TASK,), token=2).claimed.loss == ""


# -- a store that goes back alone


def test_a_store_of_another_cell_that_came_back_whole_disturbs_nobody(cells: Cells) -> None:
    sender, receiver = pair(cells)
    sender.send(b"a", b"b", b"c")
    found = receiver.read(3)
    receiver.consume(found[:1])
    cells.benches[-1].restore(cells.benches[-1].checkpoint())
    receiver.consume(found[1:2])
    sender.send(b"d")
    assert names(receiver.read(1)) == [b"d"]
    cells.benches[0].restore(cells.benches[0].checkpoint())
    receiver.consume(found[2:])
    cells.later()
    receiver.tend()
    assert cells.benches[-1].frames(TASK) == [b"c", b"d"]


@contextlib.contextmanager
def losing(source: Bench, sender: Owner) -> Iterator[None]:
    """Lose the second of two frames once the block has taken them."""
    sender.send(b"kept")
    checkpoint = source.checkpoint()
    sender.send(b"lost")
    yield
    source.restore(checkpoint)


def test_what_was_read_and_then_lost_in_another_cell_is_read_again_after_a_claim(
    cells: Cells,
) -> None:
    sender, receiver = pair(cells)
    with losing(cells.benches[-1], sender):
        receiver.read(2)
    with pytest.raises(StoreRolledBackError):
        sender.send(b"next")
    sender.claim()
    with pytest.raises(StoreRolledBackError, match=rf"cell {sender.cell} .* task {TASK}"):
        receiver.read(1)
    generation = receiver.claimed.generation
    receiver.claim()
    assert receiver.claimed.generation == generation, "its own store has lost nothing"
    sender.send(b"sent again")
    found = receiver.read(2)
    assert names(found) == [b"kept", b"sent again"]
    receiver.consume(found)


def test_consumed_entries_that_another_cell_has_lost_are_refused_or_read_twice_as_chosen(
    cells: Cells,
) -> None:
    sender, receiver = pair(cells)
    with losing(cells.benches[-1], sender):
        receiver.consume(receiver.read(2))
    sender.claim()
    sender.send(b"sent again")
    with pytest.raises(StoreRolledBackError):
        receiver.read(1)
    before = cells.benches[0].reader().record(TASK)
    with pytest.raises(StoreLostError, match=f"Redis has lost data .* cell {sender.cell} .*{TASK}"):
        receiver.claim()
    assert cells.benches[0].reader().record(TASK) == before
    receiver.claim(accepts_loss=True)
    assert receiver.claimed.loss.startswith("Redis has lost data")
    found = receiver.read(2)
    assert names(found) == [b"kept", b"sent again"]
    receiver.consume(found)
    receiver.claim()
    assert receiver.claimed.loss == "", "it was said"


def test_cursors_that_are_lost_before_their_entries_were_freed_cost_nothing(cells: Cells) -> None:
    sender, receiver = pair(cells)
    sender.send(b"a", b"b")
    found = receiver.read(2)
    receiver.consume(found[:1])
    checkpoint = cells.benches[0].checkpoint()
    receiver.consume(found[1:])
    cells.benches[0].restore(checkpoint)
    cells.later()
    receiver.tend()  # it does not know yet, and frees no more than what is stored
    assert b"b" in cells.benches[-1].frames(TASK)
    with pytest.raises(StoreRolledBackError):
        receiver.commit(journal=[(TASK, b"on sand")])
    receiver.claim()
    assert names(receiver.read(1)) == [b"b"]


@pytest.mark.parametrize("has_begun", [False, True])
def test_cursors_that_are_lost_after_their_entries_were_freed_are_said(
    cells: Cells, has_begun: bool
) -> None:
    sender, receiver = pair(cells)
    sender.send(b"a", b"b", b"c")
    found = receiver.read(3)
    if has_begun:
        receiver.consume(found[:1])
        found = found[1:]
    checkpoint = cells.benches[0].checkpoint()
    receiver.consume(found[:-1])
    cells.later()
    receiver.tend()
    cells.benches[0].restore(checkpoint)
    with pytest.raises(StoreLostError, match=f"cell {sender.cell} "):
        receiver.claim()
    receiver.claim(accepts_loss=True)
    assert names(receiver.read(1)) == [b"c"]


# -- one look at all that waits


def born(at_ms: int) -> bytes:
    return encode_settled(Codec(), SettledRoots([], {}, at_ms))


def test_the_oldest_that_waits_is_looked_for_in_all_stores(cells: Cells) -> None:
    sender, receiver = pair(cells)
    assert receiver.transport.oldest_waiting_ms() is None
    sender.send(born(700), born(500))
    found = receiver.read(2)
    assert receiver.transport.oldest_waiting_ms() == sender.transport.oldest_waiting_ms() == 500
    receiver.commit(low_ms=400)
    assert sender.transport.oldest_waiting_ms() == 400
    receiver.consume(found, low_ms=0)
    assert receiver.transport.oldest_waiting_ms() == 500, "it may be on its way past this look"
    cells.later(TELL_EVERY_MS)
    receiver.tend()
    assert receiver.transport.oldest_waiting_ms() == 500, "also where no bytes wait any more"
    cells.later()
    receiver.tend()
    assert receiver.transport.oldest_waiting_ms(also=[TASK]) is None, "what stays waits no more"


def test_a_look_that_takes_as_long_as_entries_stay_says_nothing(cells: Cells) -> None:
    sender, receiver = pair(cells)
    sender.send(born(700))
    clock = iter([0.0, STAY_MS, 0.0, STAY_MS - 1.0])
    receiver.transport._now_ms = lambda: next(clock)
    assert receiver.transport.oldest_waiting_ms(floor_ms=5) == 5
    assert receiver.transport.oldest_waiting_ms(floor_ms=5) == 700


# -- the reader of all cells


def reader_of(cells: Cells) -> CellsReader:
    """Return a reader over all stores, in which TASK is in the first cell and task 1 in the last."""
    count = len(cells.benches)
    components = {**{-n: f"filler{n}" for n in range(count - 1)}, 1: "s", TASK: "t"}
    found = [
        MomentReader(bench.store) if isinstance(bench, LocalBench) else bench.reader()
        for bench in cells.benches
    ]
    return CellsReader(found, [f"s{cell}" for cell in range(count)], lambda: components)


def test_a_reader_finds_what_belongs_to_a_task_and_what_waits_for_it(cells: Cells) -> None:
    sender, receiver = pair(cells)
    own = Owner(cells, 0, "own", (2,))
    reader = reader_of(cells)
    own.send(b"own")
    sender.send(b"aa", b"bbb", b"c")
    sender.commit(journal=[(1, b"of the sender")])
    found = [each for each in receiver.read(4) if each.cell is not None]
    receiver.consume(found[:1], journal=[(TASK, b"delta")])
    waiting = reader.inputs(TASK, 10)
    assert [data for _, data in waiting.entries] == [b"own"]
    assert [[data for _, data in each.entries] for each in waiting.foreign][-1] == [b"bbb", b"c"]
    assert waiting.foreign[-1].cursor == Cursor(found[0].id, 0)
    assert reader.record(1).journal == [b"of the sender"]
    assert reader.record(TASK).journal == [b"delta"]
    cells.later()
    receiver.tend()
    assert reader.backlog()[TASK] == len(b"own") + len(b"bbb") + len(b"c")


def test_counts_of_an_owner_that_was_in_two_cells_are_both_there(cells: Cells) -> None:
    last = len(cells.benches) - 1
    older, newer = Progress(now_ms=5).encode(), Progress(now_ms=9).encode()
    Owner(cells, 0, "n:1", (TASK,)).commit(progress=newer)
    Owner(cells, last, "n:1", (1,)).commit(progress=older)
    reader = reader_of(cells)
    progress, backlog = reader.progress_and_backlog()
    assert sorted(progress.values()) == sorted([older, newer]) and progress["n:1"] == newer
    assert reader.progress() == progress and backlog == reader.backlog()
    assert reader.is_one_moment


def test_counts_of_stores_that_are_written_meanwhile_are_not_said_to_be_of_one_moment(
    cells: Cells,
) -> None:
    sender, _ = pair(cells)
    reader = reader_of(cells)
    last: Any = reader._readers[-1]
    look = last.progress_and_backlog

    def meanwhile() -> Any:
        sender.send(b"x")
        return look()

    last.progress_and_backlog = meanwhile
    assert reader.progress_and_backlog()[1][TASK] == 3
    assert not reader.is_one_moment


def test_dead_letters_of_all_cells_are_read_put_back_and_dropped_by_their_ids(
    cells: Cells,
) -> None:
    sender, receiver = pair(cells)
    receiver.commit(parked=[b"r1", b"r2"])
    sender.commit(parked=[b"s1", b"s2"])
    reader = reader_of(cells)
    found = reader.parked(10)
    assert [data for _, data in found] == [b"r1", b"r2", b"s1", b"s2"]
    ids = {data: id for id, data in found}
    assert ids[b"r1"].endswith("@s0") and ids[b"s1"].endswith(f"@s{sender.cell}")
    assert reader.parked(3) == found[:3] and reader.parked(10, ids[b"r2"]) == found[2:]
    assert reader.parked(1, ids[b"r1"]) == found[1:2]
    result = reader.letters([ids[b"s2"], ids[b"r1"], "5-5@moon", "x"])
    assert result == {ids[b"s2"]: b"s2", ids[b"r1"]: b"r1"}
    back = [(ids[b"r1"], TASK, b"frame r"), (ids[b"s1"], 1, b"frame s"), ("9-9@s0", TASK, b"no")]
    assert sorted(reader.put_back(back)) == sorted([ids[b"r1"], ids[b"s1"]])
    assert cells.benches[0].frames(TASK) == [b"frame r"]
    assert cells.benches[-1].frames(1) == [b"frame s"]
    assert reader.drop_dead_letter(ids[b"s2"]) and not reader.drop_dead_letter(ids[b"s2"])
    assert not reader.drop_dead_letter("1-1@moon")
    assert (reader.count_dead_letters(), reader.drop_dead_letters()) == (1, 1)


def test_a_tap_is_open_in_all_stores_and_read_from_each_once(cells: Cells) -> None:
    sender, receiver = pair(cells)
    reader = reader_of(cells)
    last = reader.open_tap("t:default")
    for owner, rows in ((receiver, [b"r1"]), (sender, [b"s1", b"s2"])):
        assert owner.transport.open_taps(["t:default"]) == {"t:default"}
        owner.transport.show({"t:default": rows})
    found = reader.samples("t:default", last)
    assert [data for _, data in found] == [b"r1", b"s1", b"s2"]
    assert reader.samples("t:default", found[-1][0]) == []
    receiver.transport.show({"t:default": [b"r2"]})
    assert [data for _, data in reader.samples("t:default", found[-1][0])] == [b"r2"]


def test_a_topology_ends_in_all_its_stores(cells: Cells) -> None:
    sender, receiver = pair(cells)
    reader_of(cells).delete()
    for owner in (sender, receiver):
        with pytest.raises(FencedError):
            owner.claim()
