"""AsOfJoinBolt: join of a stream with the latest row of another as of a time, or with a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Self

from sparkstorm.api import BasicOutputCollector, Duration, Timer, Tuple
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.common.model.names import unknown_field
from sparkstorm.streams.joined_rows import (
    Channel,
    Fields,
    Sources,
)
from sparkstorm.streams.keyed_join import Key, KeyedJoin, state_place

Deletes = Mapping[str, Any]


_WAITING = "waiting"
_VERSION = "version"


class AsOfJoinBolt(KeyedJoin):
    """Bolt that joins each row of a stream with the latest row of another, a table, at or before
    its time, of the same key.

    `deletes` says which rows of the table end their key: `deletes={"op": "delete"}`, or several
    values. A foreign key is a key of another name: `AsOfJoinBolt("orders",
    key="user_id").join("users", key="id")`. With a timestamp field `within` says how old a version
    may be. Without one a row meets the newest version that has come, which no replay repeats. A key
    that holds None has no partner.

    >>> quoted = (
    ...     AsOfJoinBolt("trades", key="symbol", fields=["symbol", "size", "at_ms"])
    ...     .left_join("quotes", fields=["symbol", "bid", "at_ms"])
    ...     .with_timestamp_field("at_ms")
    ... )
    >>> quoted.outputs
    ('symbol', 'size', 'at_ms', 'bid', 'quotes_at_ms')
    """

    kinds = ("inner", "left")
    _within: Duration | None = None
    _deletes: Deletes = MappingProxyType({})

    def join(
        self,
        source: Sources,
        key: Key | None = None,
        fields: Fields | None = None,
        *,
        within: Duration | None = None,
        deletes: Deletes | None = None,
        kind: Literal["inner", "left"] = "inner",
    ) -> Self:
        """Join the stream that is the table; without a key it has the first stream's."""
        if within is not None and (not isinstance(within, Duration) or within.ms < 0):
            raise InvalidTopologyError(
                f"AsOfJoinBolt: within is {show(within)}; write a Duration of 0 or more, as Duration.minutes(30)"
            )
        if deletes is not None and not isinstance(deletes, Mapping):
            raise InvalidTopologyError(
                f'AsOfJoinBolt: deletes is {show(deletes)}; write the values by field, as {{"op": "delete"}}'
            )
        self._within = within
        self._deletes = dict(deletes or {})
        return self._joined(kind, source, key, fields)

    def left_join(self, source: Sources, *arguments: Any, **options: Any) -> Self:
        """Join as `join` does, and keep rows without a partner."""
        return self.join(source, *arguments, **options, kind="left")

    def prepare(self, conf: Any, context: Any) -> None:
        """Look places of fields up, once per task."""
        super().prepare(conf, context)
        self._names = self._make.kept[1]
        self._is_timed = self._time_field is not None
        self._ends = {name: _several_values(value) for name, value in self._deletes.items()}

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Take in a version of the table, or a row that waits for those of its own time."""
        view = self._views.get((tup.component, tup.stream))
        if view is None:  # a tick
            return
        values = tup.values
        at_ms = values[view.at] if self._is_timed else 0
        key = self._key(view, values)
        row = list(view.kept(values))
        if view.side == 1:
            self._take_version(tup, key, row, at_ms)
        elif None in key:
            self._emit_alone(0, row, at_ms, collector)
        elif self._is_timed:
            # A version of the same time may follow; the timer comes before any later row.
            # Each in an entry: one list of them would be copied for each row.
            number = self.state.get((*key, _WAITING), 0)
            if not number:
                self.timers.set_event_timer((*key, _WAITING), at_ms + 1)
            self.state.put((*key, _WAITING, number), row)
            self.state.put((*key, _WAITING), number + 1)
        else:
            self._look_up(key, [row], at_ms, collector)

    def on_timer(self, timer: Timer, collector: BasicOutputCollector) -> None:
        """Join the rows of one time, or forget a version that is too old for any later row."""
        *parts, what = timer.name
        key = tuple(parts)
        if what == _WAITING:
            places = [(*timer.name, number) for number in range(self.state[timer.name])]
            waiting = [self.state[place] for place in places]
            for place in (*places, timer.name):
                self.state.delete(place)
            self._look_up(key, waiting, timer.at_ms - 1, collector)
        else:
            self.state.delete(state_place(key))

    def _check_inputs(self, id: str, inputs: Mapping[Channel, tuple[str, ...]]) -> None:
        super()._check_inputs(id, inputs)
        owner = f"component '{id}': AsOfJoinBolt"
        table = self._sides[1]
        for name in self._deletes:
            for source, channel in zip(table.sources, table.channels, strict=True):
                if name not in inputs[channel]:
                    raise InvalidTopologyError(
                        f"{owner}: deletes names {unknown_field(name, source, inputs[channel])}"
                    )
        if self._within is not None and self._time_field is None:
            raise InvalidTopologyError(
                f"{owner}: within is an age in event time: name its field, with_timestamp_field(...)"
            )
        if self._time_field is not None and not self.in_order:
            raise InvalidTopologyError(
                f"{owner} joins versions as of a time, so rows come in its order: drop in_order = False"
            )

    def _take_version(self, tup: Tuple, key: tuple[Any, ...], row: list[Any], at_ms: int) -> None:
        if None in key:
            return
        if any(tup[name] in ends for name, ends in self._ends.items()):
            self.state.delete(state_place(key))
            return
        self.state.put(
            state_place(key), {"at_ms": at_ms, "row": dict(zip(self._names, row, strict=True))}
        )
        if self._within is not None:
            until_ms = at_ms + self._within.ms + 2
            self.timers.set_event_timer((*key, _VERSION), until_ms)

    def _look_up(
        self,
        key: tuple[Any, ...],
        rows: Sequence[list[Any]],
        at_ms: int,
        collector: BasicOutputCollector,
    ) -> None:
        version = self.state.get(state_place(key))
        if version is not None and self._within is not None:
            version = version if version["at_ms"] >= at_ms - self._within.ms else None
        latest = None if version is None else list(version["row"].values())
        for row in rows:
            if latest is None:
                self._emit_alone(0, row, at_ms, collector)
            else:
                self._emit(self._make.pair(row, latest), at_ms, collector)


def _several_values(value: Any) -> Collection[Any]:
    return tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
