"""IntervalJoinBolt: join of two streams by key and nearness in event time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from sparkstorm.api import BasicOutputCollector, Duration, Timer, Tuple
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.streams.joined_rows import (
    Channel,
    Fields,
    Sources,
)
from sparkstorm.streams.keyed_join import Key, KeyedJoin, Kind, names_of, state_place

# Rows of one side and key in one entry of the state: with half of it a busy key has twice as many
# entries to look through, with double each of its rows copies twice as many.
_ROWS_PER_ENTRY = 32


class IntervalJoinBolt(KeyedJoin):
    """Bolt that joins two streams by equal keys and near event times, and emits one row per pair.

    A right row's time less the left one's lies from `lower` to `upper`, both included; `within`
    stands for both. Rows without a partner are emitted, where asked for, once the watermark shows
    that none can come. A key that holds None has no partner. Late rows go to the late stream.
    Inputs without a grouping are grouped by their key.

    The output has all fields of both streams if `fields` gives those: a key of one name is one
    field, and another field of both gets the right stream's name before it ("payments_at_ms"). Else
    `select` names it.

    >>> from sparkstorm.api import Duration
    >>> paid = (
    ...     IntervalJoinBolt("orders", key="order_id", fields=["order_id", "amount", "at_ms"])
    ...     .left_join("payments", fields=["order_id", "paid", "at_ms"], upper=Duration.minutes(30))
    ...     .with_timestamp_field("at_ms")
    ... )
    >>> paid.outputs
    ('order_id', 'amount', 'at_ms', 'paid', 'payments_at_ms')
    """

    _lower = 0
    _upper = 0

    def join(
        self,
        source: Sources,
        key: Key | None = None,
        fields: Fields | None = None,
        *,
        within: Duration | None = None,
        lower: Duration | None = None,
        upper: Duration | None = None,
        kind: Kind = "inner",
    ) -> Self:
        """Join a stream; without a key it has the first stream's. A bound that is not given is
        0.
        """
        owner = type(self).__name__
        bounds = {"within": within, "lower": lower, "upper": upper}
        for name, bound in bounds.items():
            if bound is not None and not isinstance(bound, Duration):
                raise InvalidTopologyError(
                    f"{owner}: {name} is {show(bound)}; write a Duration, as Duration.minutes(30)"
                )
        if (within is None) == (lower is None and upper is None):
            raise InvalidTopologyError(
                f"{owner}: '{names_of(source)[0]}' needs its bounds: either within, or lower and upper or one of them"
            )
        self._lower = -within.ms if within is not None else (lower.ms if lower is not None else 0)
        self._upper = within.ms if within is not None else (upper.ms if upper is not None else 0)
        if self._lower > self._upper:
            raise InvalidTopologyError(
                f"{owner}: no time lies from {self._lower} to {self._upper} ms; lower is the smaller bound"
            )
        return self._joined(kind, source, key, fields)

    def left_join(self, source: Sources, *arguments: Any, **options: Any) -> Self:
        """Join as `join` does, and keep rows of the first stream without a partner."""
        return self.join(source, *arguments, **options, kind="left")

    def right_join(self, source: Sources, *arguments: Any, **options: Any) -> Self:
        """Join as `join` does, and keep rows of the joined stream without a partner."""
        return self.join(source, *arguments, **options, kind="right")

    def full_join(self, source: Sources, *arguments: Any, **options: Any) -> Self:
        """Join as `join` does, and keep rows of both without a partner."""
        return self.join(source, *arguments, **options, kind="full")

    def prepare(self, conf: Any, context: Any) -> None:
        """Look places of fields up, once per task."""
        super().prepare(conf, context)
        # How long after its own time a row may find a partner that comes later.
        self._wait_ms = max(self._upper, 0), max(-self._lower, 0)
        # A row without a partner is emitted at its moment; others may be released together, up to
        # a sixteenth of the interval later: with half of it a busy key has twice as many timers.
        together = max(1, (self._upper - self._lower) // 16)
        self._step_ms = [1 if keeps else together for keeps in self._keeps]

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Emit the pairs of a row, and keep it while partners may come."""
        view = self._views.get((tup.component, tup.stream))
        if view is None:  # a tick
            return
        values = tup.values
        side = view.side
        at_ms = values[view.at]
        key = self._key(view, values)
        row = list(view.kept(values))
        if None in key:
            self._emit_alone(side, row, at_ms, collector)
            return
        state_key = state_place(key)
        entry = self.state.get(state_key) or [[], [], [], []]
        low, high = self._partner_times(side, at_ms)
        is_matched = self._match(entry, key, side, row, (low, high), at_ms, collector)
        if high < at_ms and self.in_order:  # all partners were before it
            if not is_matched:
                self._emit_alone(side, row, at_ms, collector)
        else:
            self._keep(entry, key, side, [at_ms, is_matched, *row])
        if any(entry):
            self.state.put(state_key, entry)

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        """Release the rows of a key and side whose partners cannot come any more."""
        *parts, side, until_ms = timer.name
        key = tuple(parts)
        entry = self.state[state_place(key)]
        last_ms = until_ms - self._wait_ms[side] - 1
        over = []
        for chunk in [*entry[2 * side]]:
            state_key = (*key, side, chunk[0])
            if self._keeps[side] and chunk[1] <= last_ms:
                # earlier ones had their own timers
                over += [row for row in self.state[state_key] if row[0] == last_ms]
            if chunk[2] <= last_ms:
                entry[2 * side].remove(chunk)
                self.state.delete(state_key)
        rows = entry[2 * side + 1]
        over += [row for row in rows if row[0] <= last_ms]
        entry[2 * side + 1] = [row for row in rows if row[0] > last_ms]
        for row in over:
            if not row[1]:
                self._emit_alone(side, row[2:], until_ms - 1, collector)
        if any(entry):
            self.state.put(state_place(key), entry)
        else:
            self.state.delete(state_place(key))

    def _check_inputs(self, id: str, inputs: Mapping[Channel, tuple[str, ...]]) -> None:
        super()._check_inputs(id, inputs)
        if self._time_field is None:
            raise InvalidTopologyError(
                f"component '{id}': IntervalJoinBolt joins by event time: name its field, with_timestamp_field(...)"
            )

    def _partner_times(self, side: int, at_ms: int) -> tuple[int, int]:
        """Return the first and last time of partners of a row."""
        if side == 0:
            return at_ms + self._lower, at_ms + self._upper
        return at_ms - self._upper, at_ms - self._lower

    def _match(
        self,
        entry: list[Any],
        key: tuple[Any, ...],
        side: int,
        row: list[Any],
        times: tuple[int, int],
        at_ms: int,
        collector: BasicOutputCollector,
    ) -> bool:
        """Emit the pairs of a row with those that are kept of the other side; return whether there
        is one.
        """
        other = 1 - side
        low, high = times
        is_matched = False
        keeps_other = self._keeps[other]
        places = [
            (*key, other, number)
            for number, first_ms, last_ms in entry[2 * other]
            if first_ms <= high and last_ms >= low
        ]
        for state_key in [*places, None]:
            rows = entry[2 * other + 1] if state_key is None else self.state[state_key]
            is_changed = False
            for partner in rows:
                if low <= partner[0] <= high:
                    is_matched = True
                    if keeps_other and not partner[1]:
                        partner[1] = is_changed = True
                    pair = (row, partner[2:]) if side == 0 else (partner[2:], row)
                    self._emit(self._make.pair(*pair), max(at_ms, partner[0]), collector)
            if is_changed and state_key is not None:
                self.state.put(state_key, rows)
        return is_matched

    def _keep(self, entry: list[Any], key: tuple[Any, ...], side: int, row: list[Any]) -> None:
        """Keep a row, with a timer for its end. Full entries of a busy key are put aside, and the
        key's own has their times.
        """
        rows = entry[2 * side + 1]
        rows.append(row)
        if len(rows) == _ROWS_PER_ENTRY:
            times = [kept_row[0] for kept_row in rows]
            chunks = entry[2 * side]
            number = chunks[-1][0] + 1 if chunks else 0
            chunks.append([number, min(times), max(times)])
            self.state.put((*key, side, number), rows)
            entry[2 * side + 1] = []
        until_ms = row[0] + self._wait_ms[side] + 1
        step_ms = self._step_ms[side]
        until_ms += -until_ms % step_ms
        self.timers.set_event_timer((*key, side, until_ms), until_ms)
