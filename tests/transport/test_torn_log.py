"""Checks Redis servers whose append-only file was cut at any byte, restarted twice: every frame
once, exact backlog.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.embedded_stores import version_of
from sparkstorm.common.errors import StoreInconsistentError, StoreRolledBackError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.data_plane.transport.base import Commit, Cursor
from sparkstorm.data_plane.transport.keys import prefix_of
from sparkstorm.data_plane.transport.redis import RedisTransport
from tests.contracts.benches import read
from tests.transport.bare_redis import BareRedis, binaries, log_of

pytestmark = [pytest.mark.system, pytest.mark.sampled]
TOPOLOGY = "t"
FRAMES = 4
AT_ONCE = 6


class Worker:
    """An owner that counts in its journal: one sends numbered frames, the other consumes them."""

    def __init__(self, at: RedisAddress, name: str, task: int) -> None:
        self.name, self.task = name, task
        self.transport = RedisTransport(at, TOPOLOGY, patience_s=20)
        self.claim()

    def claim(self) -> None:
        claim = self.transport.claim(self.name, {self.task: 1})
        self.generation, self.seq = claim.generation, claim.seq
        record = claim.record_by_task[self.task]
        self.cursor, self.count = record.cursor.entry, len(record.journal)

    def step(self, **changes: Any) -> bool:
        delta = b"%d" % self.count
        commit = Commit(
            self.name,
            {self.task: 1},
            self.generation,
            self.seq + 1,
            journal=[(self.task, delta)],
            **changes,
        )
        try:
            self.transport.commit(commit)
        except StoreRolledBackError:
            self.claim()
            return False
        self.seq, self.count = self.seq + 1, self.count + 1
        return True

    def send(self) -> None:
        self.step(frames=[(2, b"%d" % self.count, 1)])

    def consume(self) -> None:
        entry = read(self.transport, {2: self.cursor}, 1, batch=1)[0]
        assert entry.data == b"%d" % self.count
        if self.step(cursors={2: Cursor(entry.id, 0)}, drained_bytes={2: 1}):
            self.cursor = entry.id

    def close(self) -> None:
        self.transport.close()


def work(at: RedisAddress, sent: int, consumed: int) -> tuple[Worker, Worker]:
    """Bring both owners this far, as they do after a restart: from what the store says."""
    sender, receiver = Worker(at, "s", 1), Worker(at, "r", 2)
    while sender.count < sent or receiver.count < consumed:
        if sender.count < sent:
            sender.send()
        else:
            receiver.consume()
    return sender, receiver


def state_of(client: Any) -> dict[str, Any]:
    """Values by which exactly-once is judged."""
    key = f"{prefix_of(TOPOLOGY)}:".__add__
    return {
        "waiting": [fields[b"f"] for _, fields in client.xrange(key("task:2"))],
        "backlog": client.hget(key("backlog"), 2),
        "sent": client.lrange(key("journal:1"), 0, -1),
        "consumed": client.lrange(key("journal:2"), 0, -1),
    }


def wanted(sent: int, consumed: int) -> dict[str, Any]:
    numbers = [b"%d" % n for n in range(sent)]
    return {
        "waiting": numbers[consumed:],
        "backlog": b"%d" % (sent - consumed),
        "sent": numbers,
        "consumed": numbers[:consumed],
    }


@dataclass(frozen=True)
class Original:
    """A server's folder, and where in its log the last two commits begin and end."""

    binary: str
    folder: Path
    begin: int
    end: int


@pytest.fixture(params=[pytest.param(binary, id=version) for version, binary in binaries().items()])
def original(request: pytest.FixtureRequest, tmp_path: Path) -> Original:
    folder = tmp_path / "original"
    folder.mkdir()
    with BareRedis(request.param, folder) as server:
        sender, receiver = work(server.address, FRAMES - 1, FRAMES - 2)
        begin = log_of(folder).stat().st_size
        sender.send()
        receiver.consume()
    sender.close()
    receiver.close()
    return Original(request.param, folder, begin, log_of(folder).stat().st_size)


def restarted(original: Original, folder: Path, cut: int, **settings: Any) -> str:
    """Cut, restart, work on, kill, restart; what is wrong then, empty when nothing is."""
    shutil.copytree(original.folder, folder)
    os.truncate(log_of(folder), cut)
    with BareRedis(original.binary, folder, **settings) as server:
        for worker in work(server.address, FRAMES, FRAMES - 1):
            worker.close()
    with BareRedis(original.binary, folder, **settings) as server:
        found = state_of(server.client)
        if found != wanted(FRAMES, FRAMES - 1) and settings:
            found |= {"refused": refusal(server.address)}
    shutil.rmtree(folder)
    return (
        ""
        if found == wanted(FRAMES, FRAMES - 1)
        else f"cut at {cut} of {original.begin}..{original.end}: {found}"
    )


def refusal(at: RedisAddress) -> str:
    """The sentence with which an owner turns away from the store."""
    transport = RedisTransport(at, TOPOLOGY, patience_s=20)
    try:
        transport.claim("s", {1: 1})
    except StoreInconsistentError as error:
        return str(error)
    finally:
        transport.close()
    return ""


def wrong_cuts(original: Original, tmp_path: Path, every: int, **settings: Any) -> list[str]:
    cuts = range(original.begin, original.end + 1, every)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [
            said
            for said in pool.map(
                lambda cut: restarted(original, tmp_path / f"cut-{cut}", cut, **settings), cuts
            )
            if said
        ]


def test_a_log_cut_anywhere_in_its_last_two_commits_doubles_and_loses_nothing(
    original: Original, tmp_path: Path
) -> None:
    # Valkey 9 drops a half commit by itself: each cut ends alike, and starts two servers
    wrong = wrong_cuts(
        original, tmp_path, every=11 if "valkey" in version_of(original.binary) else 1
    )
    assert not wrong, f"{len(wrong)} cuts: {wrong[:3]}"


def test_where_the_log_may_not_be_rewritten_a_half_commit_is_found_and_refused(
    original: Original, tmp_path: Path
) -> None:
    wrong = wrong_cuts(original, tmp_path, every=9, rename_command="BGREWRITEAOF NONE")
    if not wrong:
        pytest.skip("this server drops a half commit by itself, as Valkey 9 does")
    for said in wrong:
        assert (
            "the data of topology t in Redis cannot be trusted any more, and worker s refuses them"
            in said
        ), said
        assert "kill the topology, delete the keys {t}:* or restore a backup" in said, said
