"""Causes that make a live result depend on chance, by component: from the topology and from the
evidence of the replay's tasks.

The promise (docs/replay-equality.md): per component and stream the same multiset of tuples, and the
same state per key, when inputs of bolts that keep something come by fields, key-range, global or
all grouping, results do not depend on how senders interleave (or rows are brought into the order of
their event time in both runs), and time is event time. Every warning names its cause.

A bolt keeps something when it has a state or windows, and when the replay saw it hold inputs or
change its attributes. Before a component has run, its task numbers are taken instead: each task may
send. PURE.

Left out: a warning for everything that might happen (decision 43). Half of the random topologies
with equal results carried one, and such warnings are soon ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkstorm.api.columns import ColumnBolt
from sparkstorm.api.components import Stateful
from sparkstorm.api.windows import FoldingBolt, TimedBolt, WindowedBolt
from sparkstorm.common.model.names import counted
from sparkstorm.common.model.topology import Component, Subscription, Topology
from sparkstorm.common.settings import ComponentSettings, DeliverySettings
from sparkstorm.common.windowing.settings import TimeSettings, settings_of
from sparkstorm.data_plane.task_kit.task import LOST_IN_CLEANUP
from sparkstorm.replay.bolt_code import (
    chances_in,
    clocks_in,
    may_keep_attributes,
    may_know_its_task,
    names_in,
    only_adds,
    own_tasks_in,
)
from sparkstorm.replay.evidence import Evidence
from sparkstorm.replay.plan import Feed, Plan
from sparkstorm.replay.row_order import DEPENDABLE, RowOrder

# Keys: about a second of scans. A tenth would warn of jobs that take no time.
_MANY_SCANNED = 1_000_000
_SENDERS = (
    "has {} and several senders, or one that has, whose tuples a live run interleaves by chance; if its results do not "
    "depend on that order, declare order_insensitive = True"
)
_FOLDED = (
    "folds tuples in the order of their arrival, which is chance in a live run with several senders, or one that has: two of "
    "them gave another result when exchanged; if results do not depend on that order, declare order_insensitive = True"
)
_UNTRIED = (
    "folds tuples in the order of their arrival, which is chance in a live run with several senders, or one that has; whether "
    "its results depend on it was not tried, because its code uses more than its arguments (attributes or globals, say); if "
    "they do not, declare order_insensitive = True"
)
_SHARED = (
    "uses state or attributes both where it folds tuples and where its windows fire, and how many tuples are folded when a "
    "window fires is chance in a live run; keep them in the accumulator, or declare order_insensitive = True if results do "
    "not depend on it"
)
_WALKED = (
    "goes through its state by items() or a loop: live its keys have another order after a restart or in a lazy state, and "
    "with several senders; where results depend on it, use state.scan(), which sorts, or declare order_insensitive = True"
)
_COLLECTED = (
    "has tuples of the same time in one window, and which of them comes first is chance in a live run; if its results do not "
    "depend on that order, declare order_insensitive = True"
)


@dataclass(frozen=True, slots=True)
class ReplayWarning:
    """Warnings about differences between a replay and the live run, with their causes."""

    component: str
    cause: str
    text: str

    def __str__(self) -> str:
        return f"component '{self.component}': {self.text}"


def warnings_of(
    plan: Plan, evidence: Evidence, sequence: frozenset[Feed], is_timed: bool
) -> tuple[ReplayWarning, ...]:
    """Return every reason why the results may differ from those of a live run, as far as is
    known.
    """
    seen = RowOrder(plan, evidence, sequence)
    conf = plan.conf
    warnings: list[ReplayWarning] = []
    for bolt in plan.topology.bolts:
        warnings += _of_groupings(bolt, seen)
        warnings += _of_tasks(bolt, seen)
        warnings += _of_order(bolt, seen)
        warnings += _of_tries(bolt, seen)
        warnings += _of_windows(bolt, conf, seen)
        warnings += _of_lateness(bolt, seen)
        warnings += _of_losses(bolt, conf, seen)
        warnings += _of_timers(bolt, seen)
        warnings += _of_time({**conf, **bolt.conf}, bolt, is_timed)
        warnings += _of_code(bolt)
        warnings += _of_guarantee({**conf, **bolt.conf}, bolt, seen)
    return (*warnings, *_of_sums(seen))


def depends_on_order(topology: Topology, conf: Mapping[str, Any]) -> bool:
    """Return whether a result may depend on the order of history, as far as is known before the
    run.
    """
    return any(_may_depend_on_order(bolt, conf) for bolt in topology.bolts)


def _may_depend_on_order(bolt: Component, conf: Mapping[str, Any]) -> bool:
    # Which rows are late, or in which window by count, follows from the order.
    if settings_of(bolt, conf) is not None:
        return True
    if getattr(bolt.instance, "order_insensitive", False):
        return False
    if isinstance(bolt.instance, Stateful):
        return not only_adds(bolt.instance)
    return may_keep_attributes(type(bolt.instance))


def _of_groupings(bolt: Component, seen: RowOrder) -> Iterator[ReplayWarning]:
    kept = seen.kept(bolt)
    # One task gets everything, by any choice.
    if not kept or len(seen.tasks[bolt.id]) < 2:
        return
    for s in bolt.inputs:
        kind = s.grouping.kind
        if kind not in DEPENDABLE and not (
            kind == "direct" and _chooses_by_values(s.component, seen)
        ):
            why = {
                "custom": "user code chooses the task, from more than the values perhaps",
                "direct": "the producer chooses the task, from more than the values perhaps",
            }.get(kind, f"which task gets a tuple is chance, and so are each task's {kept}")
            yield ReplayWarning(
                bolt.id,
                f"{kept} behind {kind} grouping",
                f"has {kept}, and its input from '{s.component}' comes by {kind} grouping: {why}",
            )


def _of_tasks(bolt: Component, seen: RowOrder) -> Iterator[ReplayWarning]:
    """Name a bolt that knows which task it is, where chance brings it its tuples."""
    kinds = {source.grouping.kind for source in bolt.inputs}.difference(DEPENDABLE)
    if len(seen.tasks[bolt.id]) > 1 and kinds and (own := own_tasks_in(names_in(bolt.instance))):
        yield ReplayWarning(
            bolt.id,
            "own task",
            f"uses the number of its task (context.{own[0]}), and which of its tasks gets a tuple by {min(kinds)} grouping "
            "is another one live",
        )


def _chooses_by_values(id: str, seen: RowOrder) -> bool:
    """Return whether the task that a bolt names for a direct tuple follows from its input: it keeps
    nothing and uses no chance.

    Of several tasks of the bolt, none may use its own number, unless the input's values decide
    which of them has it.
    """
    sender = seen.plan.topology.components[id]
    if (
        sender.kind == "spout"
        or not seen.has_run(id)
        or seen.kept(sender)
        or seen.count(id, "recovered")
    ):
        return False
    names = names_in(sender.instance)
    is_sure = len(seen.tasks[id]) == 1 or all(s.grouping.kind in DEPENDABLE for s in sender.inputs)
    is_sure = is_sure or not may_know_its_task(type(sender.instance))
    return is_sure and not clocks_in(names) and not chances_in(names)


def _of_order(bolt: Component, seen: RowOrder) -> Iterator[ReplayWarning]:
    kept = seen.kept(bolt)
    if not getattr(bolt.instance, "order_insensitive", False):
        if not _is_by_event_time(bolt):
            # Of 400 random topologies of the promised class 169 carried a warning, and 128
            # since bolts that only add and direct tuples chosen by values carry none.
            is_exposed = (
                kept and not seen.has_one_order(bolt.id) and not _is_free_of_order(bolt, seen)
            )
            text = _SENDERS.format(kept) if is_exposed else ""
        elif isinstance(bolt.instance, FoldingBolt):
            text = _FOLDED if seen.count(bolt.id, "order_matters") else ""
            text = text or (_UNTRIED if seen.count(bolt.id, "untried") else "")
            text = "" if seen.has_one_order(bolt.id) else text
            if seen.count(bolt.id, "shared"):
                yield ReplayWarning(bolt.id, "firings", _SHARED)
        else:
            text = (
                _COLLECTED
                if seen.count(bolt.id, "ties") and not seen.has_order_among_equals(bolt)
                else ""
            )
        if text:
            yield ReplayWarning(bolt.id, "order of senders", text)
    if kept == "attributes" and isinstance(bolt.instance, ColumnBolt):
        yield ReplayWarning(
            bolt.id,
            "attributes and batches",
            "changes its attributes, and takes other batches here than in a live run, where a batch is what waits for the task",
        )


def _is_free_of_order(bolt: Component, seen: RowOrder) -> bool:
    """Return whether a bolt that has run only adds numbers to its state and keeps nothing else."""
    if (
        not isinstance(bolt.instance, Stateful)
        or isinstance(bolt.instance, WindowedBolt | TimedBolt)
        or not seen.has_run(bolt.id)
    ):
        return False
    return (
        not seen.count(bolt.id, "held")
        and not seen.count(bolt.id, "changed")
        and only_adds(bolt.instance)
    )


def _of_tries(bolt: Component, seen: RowOrder) -> Iterator[ReplayWarning]:
    kept = seen.kept(bolt)
    if seen.count(bolt.id, "recovered") or (
        kept in ("held inputs", "attributes") and seen.count(bolt.id, "failures")
    ):
        yield ReplayWarning(
            bolt.id,
            "retries",
            "had inputs that failed, which a live run tries again later, after others; here they are tried again at once",
        )


def _is_by_event_time(bolt: Component) -> bool:
    """Return whether a bolt has windows over event time, which fire in their own order."""
    settings = settings_of(bolt, {})
    return (
        settings is not None
        and settings.shape is not None
        and settings.shape.kind != "count"
        and settings.is_event_time
    )


def _of_windows(
    bolt: Component, conf: Mapping[str, Any], seen: RowOrder
) -> Iterator[ReplayWarning]:
    settings = settings_of(bolt, conf)
    if settings is None:
        return
    if not settings.is_event_time and settings.shape is not None and settings.shape.kind != "count":
        yield ReplayWarning(
            bolt.id,
            "processing time",
            "has windows by the clock of the moment: live that is the machine's, here virtual time; give it a timestamp field",
        )
    if settings.idle_ms and sum(len(seen.tasks[s.component]) for s in bolt.inputs) > 1:
        yield ReplayWarning(
            bolt.id,
            "idle senders",
            f"lets event time pass without a sender that is silent for {settings.idle_ms} ms: in a live run that depends on "
            "the wall clock, and rows that the sender emits afterwards can be late; here no sender is idle",
        )


def _of_lateness(bolt: Component, seen: RowOrder) -> Iterator[ReplayWarning]:
    """Compare how far rows can be behind newer ones of their sender with the lag and the allowed
    lateness.
    """
    settings = seen.settings(bolt)
    if settings is None:
        return
    # Before the run a row may be behind by anything. After it the
    # measured distance decides: warnings by the topology alone came for
    # half of the random topologies whose results were equal.
    tardy = [
        s
        for s in bolt.inputs
        if not seen.has_run(bolt.id) or seen.behind_ms(bolt, s) > settings.lag_ms
    ]
    if settings.lateness_ms and tardy:
        yield ReplayWarning(
            bolt.id,
            "updates",
            f"allows lateness, and tuples of '{tardy[0].component}' can be behind by more than the lag of {settings.lag_ms:,} ms: "
            "whether such a tuple still finds its window open, or changes one that has fired, is chance in a live run",
        )
    slack_ms = settings.lag_ms + settings.lateness_ms
    unsure = [s for s in bolt.inputs if seen.may_be_late(bolt, s, slack_ms)]
    if unsure:
        yield ReplayWarning(bolt.id, "late data", _late_text(bolt, unsure[0], slack_ms, seen))


def _of_losses(bolt: Component, conf: Mapping[str, Any], seen: RowOrder) -> Iterator[ReplayWarning]:
    """Account for inputs that reached no result, late or held by the bolt, for what `state.scan`
    has read for them, and for what `cleanup` did.
    """
    if seen.count(bolt.id, "lost"):
        yield ReplayWarning(bolt.id, "cleanup", LOST_IN_CLEANUP)
    if seen.count(bolt.id, "walked") and not getattr(bolt.instance, "order_insensitive", False):
        yield ReplayWarning(bolt.id, "order of keys", _WALKED)
    late, waiting, executed, scanned = (
        seen.count(bolt.id, word) for word in ("late", "waiting", "executed", "scanned")
    )
    settings = settings_of(bolt, conf)
    # With a late stream nothing is lost: the rows are their own result.
    if late and settings is not None and not settings.late_stream:
        yield ReplayWarning(
            bolt.id, "late rows", _dropped_text(bolt, settings, late, executed, seen)
        )
    if waiting:
        yield ReplayWarning(
            bolt.id,
            "open inputs",
            f"holds {waiting:,} of {executed:,} inputs that it has neither acked nor failed: a live run waits for them, so it "
            "does not end, and windows downstream do not fire as they did here; ack or fail every input",
        )
    # Relative too: a scan of a small state at each of a million ticks is no trouble.
    if scanned >= max(_MANY_SCANNED, 100 * executed):
        yield ReplayWarning(
            bolt.id,
            "state scans",
            f"read {scanned:,} keys with state.scan for {executed:,} inputs: each call reads and sorts the whole state, here and "
            "in a live run; scan at ticks, or keep what belongs together under one key",
        )


def _dropped_text(
    bolt: Component, settings: TimeSettings, late: int, executed: int, seen: RowOrder
) -> str:
    slack_ms = settings.lag_ms + settings.lateness_ms
    behind_ms, sender = max((seen.behind_ms(bolt, s), s.component) for s in bolt.inputs)
    return (
        f"dropped {late:,} of {executed:,} tuples as late: tuples of '{sender}' came up to {behind_ms:,} ms behind newer ones, "
        f"{slack_ms:,} ms are allowed (lag and allowed lateness); read history in the order of its times (event_time), raise "
        "the lag, or keep late tuples (with_late_tuple_stream)"
    )


def _late_text(bolt: Component, input: Subscription, slack_ms: int, seen: RowOrder) -> str:
    if not seen.has_run(bolt.id):
        return f"gets tuples of '{input.component}', whose order is chance in a live run, and whether a tuple is late depends on it"
    if seen.is_dealt(input):
        return (
            f"had late tuples from '{input.component}', whose data is one history here; in a live run each "
            "task of that spout has a clock of its own, so fewer may be late"
        )
    return (
        f"gets tuples of '{input.component}' that can be {seen.behind_ms(bolt, input):,} ms behind in a live run, and only "
        f"{slack_ms:,} ms are allowed (lag and allowed lateness): which of them are late is chance"
    )


def _of_timers(bolt: Component, seen: RowOrder) -> Iterator[ReplayWarning]:
    if seen.count(bolt.id, "asked") or seen.count(bolt.id, "chains"):
        yield ReplayWarning(
            bolt.id,
            "timers",
            "sets timers in on_timer, or asks for the watermark: live they follow the marks that its senders make meanwhile, "
            "here the times of the rows that its own task gets",
        )


def _of_time(conf: Mapping[str, Any], bolt: Component, is_timed: bool) -> Iterator[ReplayWarning]:
    if ComponentSettings.of(conf).tick_ms:
        text = "gets ticks, which come by the wall clock in a live run and by event time here"
        if not is_timed:
            text = "gets ticks in a live run, but none here: no event time is declared, so no time passes"
        yield ReplayWarning(bolt.id, "ticks", text)


def _of_guarantee(
    conf: Mapping[str, Any], bolt: Component, seen: RowOrder
) -> Iterator[ReplayWarning]:
    guarantee = DeliverySettings.of(conf).guarantee
    kept = seen.kept(bolt)
    if guarantee != "exactly-once" and (parked := seen.count(bolt.id, "parked")):
        live = (
            "tells its spout, which may emit it again"
            if guarantee == "at-least-once"
            else "drops it"
        )
        yield ReplayWarning(
            bolt.id,
            "dead letters",
            f"put {counted(parked, 'input')} aside after one try: "
            f"under {guarantee} delivery a live run has no dead letters; it {live}",
        )
    if kept and guarantee != "exactly-once":
        yield ReplayWarning(
            bolt.id,
            "guarantee",
            f"has {kept}, and {guarantee} delivery may bring a live tuple twice or never",
        )


def _of_sums(seen: RowOrder) -> Iterator[ReplayWarning]:
    """Warn of floating-point numbers in final states and accumulators: their last digits show the
    order of their terms.

    A bolt with `order_insensitive` may get its data in another order than live even where that has
    only one.
    """
    for id in seen.evidence.counts:
        # Spark's own shuffle may bring the data of such a
        # bolt in any order, even behind one sender.
        is_free = getattr(seen.plan.topology.components[id].instance, "order_insensitive", False)
        if seen.count(id, "floats") and (is_free or not seen.has_one_order(id)):
            yield ReplayWarning(
                id,
                "float sums",
                "keeps floating-point numbers or decimals, whose sums depend on the order of their terms in "
                "the last digits; compare within a tolerance, or add whole numbers",
            )


def _of_code(bolt: Component) -> Iterator[ReplayWarning]:
    names = names_in(bolt.instance)
    if text := getattr(bolt.instance, "follows_the_clock", ""):
        yield ReplayWarning(bolt.id, "wall clock", text)
    if clocks := clocks_in(names):
        text = (
            f"seems to read the wall clock ({clocks[0]}); take the time from a field of the tuple"
        )
        if clocks == ["context.now_ms"]:
            text = (
                "uses context.now_ms(), which live is the worker's clock, and here the time of the row that is executed (0 "
                "without an event time); take the time from a field of the tuple"
            )
        yield ReplayWarning(bolt.id, "wall clock", text)
    if "set_processing_timer" in names:
        text = "sets timers by the clock of the moment: live that is the machine's, here virtual time; use event timers"
        yield ReplayWarning(bolt.id, "processing time", text)
    if chances := chances_in(names):
        yield ReplayWarning(
            bolt.id,
            "chance",
            f"seems to use chance ({chances[0]}); draw it from the tuple's values",
        )
