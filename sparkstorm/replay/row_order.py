"""Order of rows in a live run: what is the same in every run, and how far rows can change places.
PURE.

Law: what is not known to be the same in every run is chance. Left out: replaying several times and
comparing, which `testing.check_deterministic` does. It finds only those orders that happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkstorm.api.async_bolts import AsyncBolt
from sparkstorm.api.components import Stateful
from sparkstorm.api.windows import TimedBolt, WindowedBolt
from sparkstorm.common.model.tasks import tasks_by_component
from sparkstorm.common.model.topology import Component, Subscription
from sparkstorm.common.windowing.settings import TimeSettings, settings_of
from sparkstorm.data_plane.executor.task_windows import must_reorder
from sparkstorm.replay.evidence import Evidence
from sparkstorm.replay.plan import Feed, Plan

DEPENDABLE = ("fields", "key_range", "global", "all")
"""Groupings by which a tuple's values alone decide which tasks get it."""


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Order of rows by component and stream; before a component has run, every task of a sender
    counts as sending.
    """

    plan: Plan
    evidence: Evidence
    sequence: frozenset[Feed]  # inputs whose partitions follow each other in one history
    tasks: Mapping[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tasks_by_component(self.plan.component_by_task))

    def count(self, id: str, what: str) -> int:
        """Return one of the counts of a component's tasks."""
        return self.evidence.counts.get(id, {}).get(what, 0)

    def has_run(self, id: str) -> bool:
        """Return whether a bolt's tasks have reported."""
        return id in self.evidence.counts

    def kept(self, bolt: Component) -> str:
        """Return what a bolt keeps from one input to the next, in words; empty if nothing."""
        if isinstance(bolt.instance, Stateful):
            return "state"
        return (
            "held inputs"
            if self.count(bolt.id, "held")
            else "attributes"
            if self.count(bolt.id, "changed")
            else ""
        )

    def settings(self, bolt: Component) -> TimeSettings | None:
        """Return a bolt's settings of event time; None for a bolt that uses none."""
        settings = settings_of(bolt, self.plan.conf)
        return settings if settings is not None and settings.is_event_time else None

    # -- order -------------------------------------------------------------------------------------

    def has_one_order(self, id: str) -> bool:
        """Return whether every task of a component executes its rows in the same order in every
        run.
        """
        component = self.plan.topology.components[id]
        # An order by event time makes any order before it irrelevant, so it is tested first.
        if self._is_reordered(component):
            return True
        if not self.has_run(id):
            # Nothing has run, so that every task may send: a warning that proves needless is
            # withdrawn after the run, one that was missing would never be seen.
            return len(component.inputs) < 2 and all(
                self._is_one_sender(s) for s in component.inputs
            )
        if self.count(id, "mixed"):
            return False
        return all(
            self.is_in_order(s) for s in component.inputs if not self._is_silent(s.component)
        )

    def is_in_order(self, input: Subscription) -> bool:
        """Return whether each task of a component emits a stream's rows in the same order in every
        run.
        """
        component = self.plan.topology.components[input.component]
        if component.kind == "spout":
            return True
        # Each task may be in order, and yet which rows it has is chance: so
        # is then the order of what all of them send together.
        is_divided_by_chance = self.num_tasks(input) > 1 and any(
            s.grouping.kind not in DEPENDABLE for s in component.inputs
        )
        if is_divided_by_chance or self._lets_rows_pass(component):
            return False
        return self.has_one_order(component.id) or self._fires_in_order(component, input.stream)

    def num_tasks(self, input: Subscription) -> int:
        """Return how many tasks send an input."""
        return len(self.tasks[input.component])

    def has_order_among_equals(self, bolt: Component) -> bool:
        """Return whether rows of the same time reach a bolt in the same order of sending task and
        arrival in every run.
        """
        senders = {s.component for s in bolt.inputs}
        return len(senders) == len(bolt.inputs) and all(
            self.is_in_order(s)
            and (
                self.plan.topology.components[s.component].kind != "spout" or self.num_tasks(s) == 1
            )
            for s in bolt.inputs
        )

    def _is_reordered(self, bolt: Component) -> bool:
        """Return whether a bolt gets its rows by event time, in an order that leaves nothing to
        chance.
        """
        settings = self.settings(bolt)
        if settings is None or not isinstance(bolt.instance, WindowedBolt | TimedBolt):
            return False
        if not must_reorder(bolt.instance, settings) or not self._is_lateness_certain(
            bolt, settings
        ):
            return False
        return not self.count(bolt.id, "ties") or self.has_order_among_equals(bolt)

    def _fires_in_order(self, bolt: Component, stream: str) -> bool:
        """Return whether a stream holds results of windows, which fire by end and key; late rows
        leave as they come.
        """
        settings = self.settings(bolt)
        # Windows by count fire with the tuple that fills them, so in the order of arrival.
        if (
            settings is None
            or settings.shape is None
            or settings.shape.kind == "count"
            or stream == settings.late_stream
        ):
            return False
        return isinstance(bolt.instance, WindowedBolt) and self._is_lateness_certain(bolt, settings)

    def _is_lateness_certain(self, bolt: Component, settings: TimeSettings) -> bool:
        """Return whether the same rows are late in every run, and none finds a window that has
        fired.
        """
        if not self.has_run(bolt.id) or settings.idle_ms or settings.lateness_ms:
            return False
        return not any(self.may_be_late(bolt, s, settings.lag_ms) for s in bolt.inputs)

    def _is_one_sender(self, input: Subscription) -> bool:
        return self.num_tasks(input) == 1 and self.is_in_order(input)

    def _is_silent(self, id: str) -> bool:
        return self.has_run(id) and not self.count(id, "emitted")

    def _lets_rows_pass(self, bolt: Component) -> bool:
        """Return whether what comes of an input can leave behind that of a later input: by a second
        try, or by coroutines that end in another order.
        """
        is_unordered = isinstance(bolt.instance, AsyncBolt) and not bolt.instance.ordered
        return is_unordered or bool(self.count(bolt.id, "recovered"))

    # -- lateness ----------------------------------------------------------------------------------

    def may_be_late(self, bolt: Component, input: Subscription, slack_ms: int) -> bool:
        """Return whether chance decides that a row of an input is further behind its sender than
        this.
        """
        if not self.has_run(bolt.id):
            return not self.is_in_order(input)
        if self.is_in_order(input) and not self.is_dealt(input):
            return self.evidence.behind_marks(_output(bolt, input)) > slack_ms
        return self.behind_ms(bolt, input) > slack_ms

    def behind_ms(self, bolt: Component, input: Subscription) -> int:
        """Return how far a row of an input can be behind its sender in a live run; of a bolt that
        has run.
        """
        output = _output(bolt, input)
        feed = self.plan.stage_of(input.component, input.stream).feed
        if feed in self.sequence and (self.is_in_order(input) or self._is_part_of_sequence(input)):
            return self.evidence.behind_in_sequence(output)
        # Senders that interleave by chance can put the oldest row behind the
        # newest one: only the span of all times is an upper bound.
        least = (
            self.evidence.behind_in_partitions(output)
            if self.is_in_order(input)
            else self.evidence.span(output)
        )
        return max(least, self.evidence.behind_marks(output))

    def is_dealt(self, input: Subscription) -> bool:
        """Return whether an input is one history here whose rows several tasks of a spout emit in a
        live run.
        """
        is_data = self.plan.topology.components[input.component].kind == "spout"
        return (
            is_data
            and self.num_tasks(input) > 1
            and Feed(input.component, input.stream) in self.sequence
        )

    def _is_part_of_sequence(self, input: Subscription) -> bool:
        """Return whether each task of a bolt gets some rows of one task, in their order, and emits
        at once.

        In a stage of data one task has executed all of these rows: what came of any part of them is
        part of what came here.
        """
        bolt = self.plan.topology.components[input.component]
        if len(bolt.inputs) != 1 or self._lets_rows_pass(bolt) or self.kept(bolt):
            return False
        return self._is_one_sender(bolt.inputs[0])


def _output(bolt: Component, input: Subscription) -> tuple[str, str, str]:
    return input.component, input.stream, bolt.id
