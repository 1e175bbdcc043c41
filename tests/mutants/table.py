"""Mutants: one-line changes of the commit path, each with the tests of which at least one must fail
under it.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A line of a file under sparkstorm/, found once by its stripped text, what stands in its
    place, and the tests that see it.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


COMMITS = ("tests/worker/test_commits.py", "tests/worker/test_claimed_ackers.py")
PARTS = ("tests/worker/test_parts.py", *COMMITS)
ACKS = (*COMMITS, "tests/worker/test_acking.py", "tests/worker/test_acking_order.py")
HELD = (*COMMITS, "tests/worker/test_failures.py", "tests/worker/test_delivery.py")
JOURNAL = ("tests/worker/test_journal.py", *COMMITS)
LEDGER = ("tests/acking/test_ledger_laws.py",)
PENDING = ("tests/acking/test_pending.py", *COMMITS)
TREES = ("tests/acking/test_tree_batches.py", "tests/worker/test_tree_batches.py", *ACKS)
TWIN = ("tests/contracts/test_transport.py", *COMMITS)
REDIS = ("tests/contracts/test_transport.py", "tests/transport/test_damaged_stores.py")
PRESSURE = ("tests/worker/test_backpressure.py", *COMMITS)
POISON = ("tests/worker/test_survival.py", "tests/worker/test_hostile_bytes.py", *COMMITS)

_COMMIT, _CLAIM = "data_plane/transport/commit.lua", "data_plane/transport/claim.lua"
_BUILDER = "data_plane/worker/epoch_commit.py"
_EPOCH = "data_plane/worker/epoch.py"
_INBOX = "data_plane/worker/tasks/inbox.py"
_ACKER = "data_plane/worker/tasks/acker_task.py"
_HELD_INPUTS = "data_plane/worker/tasks/held_inputs.py"
_HELD = "data_plane/task_kit/held.py"
_JOURNAL = "data_plane/task_kit/journal.py"
_LEDGER = "data_plane/acking/ledger.py"
_BATCHES = "data_plane/acking/tree_batches.py"
_PENDING = "data_plane/acking/pending.py"
_LOCAL = "data_plane/transport/local.py"
_COMMITS = "data_plane/worker/commits.py"
_SPOUT = "data_plane/worker/tasks/spout_task.py"

MUTANTS = (
    # the four that no test saw once
    Mutant(_BUILDER, "if (position := spout.position.take()) is not None:",
           "if pending and (position := spout.position.take()) is not None:", COMMITS),
    Mutant("data_plane/acking/ledger.py", "return bool(self.acked or self.failed)",
           "return bool(self.acked)", TREES),
    Mutant(_BUILDER, "for key in bolt.held.changed:",
           "for key in [k for k in bolt.held.changed if not bolt.held.by_key[k].is_stored]:", COMMITS),
    Mutant(_COMMIT, "if doubts >= 0 and not refused then", "if doubts > 1e9 then", REDIS),
    # the end of an epoch
    Mutant(_INBOX, "if not self.moved:", "if not self.moved or not self.drained:", COMMITS),
    Mutant(_INBOX, "commit.cursors[self.task] = self.cursor",
           "commit.cursors[self.task] = self.cursor._replace(row=0)", COMMITS),
    Mutant(_INBOX, "commit.drained_bytes[self.task] = self.drained", "pass", COMMITS),
    Mutant(_BUILDER, "commit.frames.append((task, data, len(data)))",
           "commit.frames.append((task, data, 0))", PRESSURE),
    Mutant(_BUILDER, "commit.released += [(bolt.task, key) for key in bolt.held.released]", "pass", COMMITS),
    Mutant(_BUILDER, "held.edge = held.edge or epoch.hold(held.tuple)", "held.edge = epoch.hold(held.tuple)", HELD),
    Mutant(_BUILDER, "held.is_stored = True", "pass", COMMITS),
    Mutant(_BUILDER, "verdicts = self._read_verdicts()", "verdicts = list[tuple[int, SettledRoots]]()", COMMITS),
    Mutant(_BUILDER, "_split_off(block)", "pass", ACKS),
    Mutant(_EPOCH, "if value and not (failed and root in failed):", "if value and root % 2:", TREES),
    Mutant(_EPOCH, "verdict.failed[root] = failed.pop(root)", "failed.pop(root)", ACKS),
    Mutant(_EPOCH, "verdict.acked.append(root)", "pass", COMMITS),
    Mutant(_EPOCH, "verdict.kept.append(split_root)", "pass", TREES),
    Mutant(_EPOCH, "messages.ack_roots, messages.ack_values = part", "pass", COMMITS),
    Mutant(_EPOCH, "self.messages_to(ackers[home_of(root, len(ackers))]).failures[root] = failure", "pass", COMMITS),
    Mutant(_EPOCH, "tup.roots = split_roots(tup.roots)  # what it emits from now on descends from these", "pass", TREES),
    Mutant(_BATCHES, "self._waiting[batch_of(root)][root] = True", "pass", TREES),
    Mutant(_BATCHES, "for root in self._waiting.pop(batch, ())", "for root in ()", TREES),
    Mutant(_BATCHES, "self._waiting.setdefault(batch_of(root), {})[root] = flags == FAILED", "pass", TREES),
    Mutant(_BUILDER, "heard.append(epoch.messages.pop(task))", "heard.insert(0, epoch.messages[task])", COMMITS),
    Mutant(_BUILDER, "delta[\"p\"] = pending", "pass", COMMITS),
    Mutant(_BUILDER, "if ledger := acker.ledger.take_delta():",
           "if (ledger := acker.ledger.take_delta()) and len(acker.ledger):", COMMITS),
    Mutant(_BUILDER, "delta = _changed(bolt.state, \"s\", \"d\") | _changed_times(bolt)",
           "delta = _changed_times(bolt)", COMMITS),
    Mutant(_BUILDER, "return first, _times(spout)",
           "return {\"P\": spout.pending.snapshot()}, _times(spout)", COMMITS),
    Mutant(_BUILDER, "return {\"L\": acker.ledger.snapshot()}, {}", "return {\"L\": b\"\"}, {}", COMMITS),
    # edges
    Mutant(_EPOCH, "return self.draw_edge(each_root(tup.roots))", "return 0", ACKS),
    Mutant(_EPOCH, "if edge:", "if edge and not roots:", COMMITS),
    Mutant(_EPOCH, "self.value_by_root[root] = self.value_by_root.get(root, 0) ^ self._ids.root()", "pass", PARTS),
    Mutant(_EPOCH, "self.consume(roots, edge)", "self.consume(list(roots)[:1], edge)", PARTS),
    # inboxes
    Mutant(_INBOX, "stop = bisect_left(ends, self.done, start, key=itemgetter(1))", "stop = len(ends)", PARTS),
    Mutant(_INBOX, "self._ended = stop", "pass", PARTS),
    Mutant(_INBOX, "chunk.done += rows", "chunk.done = chunk.total", COMMITS),
    Mutant(_INBOX, "self.cursor = Cursor(self.cursor.entry, chunk.done)", "pass", COMMITS),
    Mutant(_INBOX, "self.drained += chunk.size", "self.drained = chunk.size", COMMITS),
    Mutant(_INBOX, "skip = self._skip", "skip = 0", COMMITS),
    Mutant(_INBOX, "if self.chunks:",
           "if False:", COMMITS),
    # ackers
    Mutant(_ACKER, "return entry_order(self.inbox.read_to) < self._caught_up_at", "return False", COMMITS),
    Mutant(_ACKER, "self._failure_by_root.update(m.failures)", "pass", COMMITS),
    Mutant(_ACKER, "[root for m in messages for root in m.ack_roots],",
           "[root for m in messages[:1] for root in m.ack_roots],", COMMITS),
    Mutant(_ACKER, "acked[task].append(root)", "acked[task] = [root]", COMMITS),
    # held inputs
    Mutant(_HELD, "held.is_stored = True", "held.is_stored = False", COMMITS),
    Mutant(_HELD, "held.attempts = unpacked.attempts",
           "held.attempts = 0", COMMITS),
    Mutant(_HELD_INPUTS, "self.changed[held.key] = None",
           "self.changed.setdefault(held.key) if not held.is_stored else None", COMMITS),
    Mutant(_HELD_INPUTS, "self.changed.pop(key, None)", "pass", COMMITS),
    Mutant(_HELD_INPUTS, "if held.is_stored:", "if held.is_stored and held.attempts:", COMMITS),
    # journals
    Mutant(_JOURNAL, "self._sweep_at = self._entries",
           "self._sweep_at = self._entries + 1", JOURNAL),
    Mutant(_JOURNAL, "self._entries -= self._sweep_at", "pass", JOURNAL),
    Mutant(_JOURNAL, "return whole, [fields[field] for fields in entries[begin + 1 :] if fields.get(field)]",
           "return whole, [fields[field] for fields in entries[begin + 2 :] if fields.get(field)]", JOURNAL),
    # ledgers and pending
    Mutant(_LEDGER, "self._touch(root).value ^= value", "self._touch(root).value = value", LEDGER),
    Mutant(_LEDGER, "or (entry.value and not entry.failed)",
           "or entry.value", LEDGER),
    Mutant(_PENDING, "journalled = batch.root not in self._added", "journalled = True", PENDING),
    Mutant(_PENDING, "ended = [index for index, member in batch.members() if member not in kept]",
           "ended = [index for index, member in batch.members()]", PENDING),
    Mutant(_PENDING, "self._due = list(self._settled.values())", "self._due = []", PENDING),
    Mutant(_PENDING, "written = [_row(self._settled[root]) for root in self._unwritten if root in self._settled]",
           "written = []", PENDING),
    Mutant(_PENDING, "if self._settled.pop(outcome.root, None) is not None:",
           "if self._settled.pop(outcome.root, None) is None:", PENDING),
    # spouts and the worker
    Mutant(_SPOUT, "self._note_moved(did)", "self._note_moved(False)", COMMITS),
    Mutant(_SPOUT, "self.pending.confirm(outcomes)", "pass", COMMITS),
    Mutant(_COMMITS, "self.seq = commit.seq",
           "pass", COMMITS),
    Mutant("data_plane/worker/bolt_turns.py", "epoch.consume(chunk.take_ended(), chunk.edge)", "pass", COMMITS),
    Mutant(_COMMITS, "commit.parked, self._failures.parked = self._failures.parked, []", "pass", COMMITS),
    Mutant(_COMMITS, "commit.quarantined = self.quarantined", "pass", POISON),
    # the in-process store
    Mutant(_LOCAL, "store.seq_by_owner[commit.owner] = commit.seq", "pass", TWIN),
    Mutant(_LOCAL, "keys.stream = [(n, data) for n, data in keys.stream if n > _number(cursor.entry)]", "pass", TWIN),
    Mutant(_LOCAL, "store.task(task).held.pop(key, None)", "pass", TWIN),
    # Lua
    Mutant(_COMMIT, "if stored[i] ~= token then", "if false then", REDIS),
    Mutant(_COMMIT, "refused = 'BEHIND'  -- the store has lost this owner's claim", "", REDIS),
    Mutant(_COMMIT,
           "if not refused and (current ~= generation or (last ~= seq and (not is_new or mode == 'ask'))) then",
           "if not refused and current ~= generation then", REDIS),
    Mutant(_COMMIT, "refused = last < seq and 'BEHIND' or 'OTHER'", "refused = 'OTHER'", REDIS),
    Mutant(_COMMIT, "refused = 'BEHIND'  -- the owner has read a frame that the store has lost since",
           "", REDIS),
    Mutant(_COMMIT, "call('HSET', p .. ':seq', owner, ARGV[3], 'digest ' .. owner, digest)", "", REDIS),
    Mutant(_COMMIT, "if type(step) == 'table' and mode == 'free' then", "if false then", REDIS),
    Mutant(_COMMIT, "waits[task] = waits[task] or found[i]", "", REDIS),
    Mutant(_COMMIT, "elseif entries == 0 then", "elseif false then", REDIS),
    Mutant(_COMMIT, "if type(result) == 'table' and result.err then", "if false then", REDIS),
    Mutant(_CLAIM, "return {'FENCED', ARGV[i], tostring(stored)}", "", REDIS),
    Mutant(_CLAIM, "return {'HALF', begun or '0', ended or '0'}", "", REDIS),
    Mutant(_CLAIM, "if redis.call('EXISTS', p .. ':ended') == 1 then",
           "if false then", ("tests/contracts/test_endings.py",)),
    Mutant(_CLAIM, "redis.call('HDEL', p .. ':low', owner)", "", REDIS),
)  # fmt: skip
