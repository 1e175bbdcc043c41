"""LookupBolt: values of an outside system put next to the fields of each tuple.

It calls out on the thread of a blocking bolt, so never inside a commit: a tuple that waits for a
call is held.
"""

from __future__ import annotations

import json
import time
from asyncio import CancelledError
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import Event, get_ident
from typing import Any, Literal, NamedTuple, Protocol

from sparkstorm.api import Duration, Effects, OutputCollector, TopologyContext, Tuple
from sparkstorm.api.components import GatheringBolt
from sparkstorm.common.errors import (
    InvalidConfigError,
    InvalidTopologyError,
    WorkerFailedError,
    show,
)
from sparkstorm.common.model.names import read_names, unknown_field
from sparkstorm.common.model.values.codec import KEY_TYPES, no_key
from sparkstorm.common.settings import WorkerSettings
from sparkstorm.streams.joined_rows import Fields

Answers = Mapping[Any, Any]
Snapshot = Mapping[Any, Any] | str | Path
_MISSING: Any = object()
_NOW = "now"
_MINUTE = Duration.minutes(1)
# After a failed call, before values are refreshed again: half of it asks a system in trouble twice
# as often, double shows old values so much longer.
_REST_MS = 1_000
# As of a sink whose target is away.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
_TRIES_PER_REPORT = 10


class LookupSource(Protocol):
    """Source of look-ups that connects: `SqlLookup` and others of `sparkstorm.connectors`."""

    def open(self, fields: Fields, context: TopologyContext) -> None:
        """Prepare for look-ups of these fields; one that cannot be reached yet is no error."""

    def fetch(self, keys: Sequence[Any]) -> Answers:
        """Return the values of the keys that are there; an exception as a value fails its inputs
        alone.

        ConnectionError and TimeoutError: it is away, and is waited for; InvalidConfigError ends the
        worker.
        """

    def close(self) -> None:
        """Release connections."""


Fetch = Callable[[Sequence[Any]], Answers] | LookupSource


class LookupBolt(GatheringBolt):
    """Bolt that looks values up by key, and emits each tuple's fields `keep` with the fields `add`.

    `fetch` is a function (keys) -> mapping, or a source of `sparkstorm.connectors`. Its keys are
    those of the tuples that wait, at most `batch`; a key of several fields is a tuple. A value is a
    mapping by field, a sequence in the order of `add`, or the only value. A key that is missing or
    holds None gives None, or drops its tuples (`kind="inner"`). A source that is away is waited for
    (`topology.sink.patience.secs`). When `fetch` raises otherwise, the inputs that need it are tried
    again; a value that is an exception fails those of its key.

    Values and missing keys are kept for `expire`, at most `size` keys of each task. One older than
    `refresh` is still used, and fetched again when no tuple waits.

    A replay reads `snapshot`, a mapping or a file of JSON lines or Parquet with the fields of key
    and `add`. Without one it is refused, unless it is "now": then it looks up what is there now.

    >>> located = LookupBolt(
    ...     lambda users: {user: "NL" for user in users},
    ...     key="user",
    ...     keep={"user": "string"},
    ...     add={"country": "string"},
    ... )
    >>> located.outputs
    {'user': 'string', 'country': 'string'}
    """

    effects = Effects.RUN
    order_insensitive = True  # it keeps answers; `follows_the_clock` names their moment
    follows_the_clock = "looks values up: live those of that moment, or older by `expire`; here those of the snapshot, or of now"

    def __init__(
        self,
        fetch: Fetch,
        key: str | Sequence[str],
        *,
        keep: Fields,
        add: Fields,
        expire: Duration = _MINUTE,
        refresh: Duration | None = None,
        size: int = 100_000,
        batch: int = 256,
        kind: Literal["inner", "left"] = "left",
        snapshot: Snapshot | None = None,
    ) -> None:
        _check(fetch, keep, add, kind)
        self._fetch = fetch
        self._key = read_names("LookupBolt", "key", key)
        self._keep = tuple(keep)
        self._add = add
        expire_ms = _ms("expire", expire, 1)
        refresh_ms = expire_ms if refresh is None else _ms("refresh", refresh, 1)
        self._limits = _Limits(_whole("size", size), expire_ms, refresh_ms)
        self._batch = _whole("batch", batch)
        self._snapshot = snapshot
        self._kind = kind
        self.input_fields = (*self._key, *self._keep)
        if not self._key:
            raise InvalidTopologyError("LookupBolt: key names no field; name those of the key")
        if not isinstance(snapshot, Mapping | str | Path | None):
            raise InvalidTopologyError(
                f'LookupBolt: snapshot is {show(snapshot)}; write a mapping by key, the path of a file, or "now"'
            )
        if refresh_ms > expire_ms:
            raise InvalidTopologyError(
                f"LookupBolt: refresh is {refresh_ms} ms, after values have expired ({expire_ms} ms); make it shorter"
            )
        if isinstance(keep, Mapping) and isinstance(add, Mapping):
            self.outputs: Any = {**keep, **add}
        else:
            self.outputs = (*keep, *add)

    def prepare(self, conf: Any, context: TopologyContext, collector: OutputCollector) -> None:
        """Open the source, or read the snapshot of a replay."""
        self._collector = collector
        self._now_ms = context.now_ms
        self._values = _Values(self._limits)
        self._waiting: list[tuple[Tuple, Any]] = []
        self._hits = context.counter("lookup_hits")
        self._misses = context.counter("lookup_missing")
        self._answers: Answers | None = None
        self._prepared_on = get_ident()
        self._calls = _Calls(
            self._fetch,
            context,
            WorkerSettings.of(conf).sink_patience_ms / 1000,
            collector.report_error,
        )
        # a replay alone gives its inputs names
        if context.name_effect is not None and self._snapshot != _NOW:
            self._answers = self._read_snapshot(context)
        elif not callable(self._fetch):
            try:
                self._fetch.open(self._add, context)
            except InvalidConfigError as error:
                raise InvalidConfigError(f"component '{context.component_id}': {error}") from error

    def execute(self, tup: Tuple) -> None:
        """Emit a tuple whose value is known, if none before it waits; else let it wait."""
        if tup.is_tick:
            return
        key = self._key_of(tup)
        if self._answers is not None:
            self._emit(tup, _found(self._answers, key))
            return
        now_ms = self._now_ms()
        if not self._waiting and (value := self._values.of(key, now_ms)) is not None:
            self._hits.inc()
            self._emit(tup, value[0])
            return
        self._waiting.append((tup, key))
        # in a replay that runs it nevertheless there is no thread
        if get_ident() == self._prepared_on:
            self._look_up(now_ms)

    @property
    def has_enough(self) -> bool:
        """Return whether as many tuples wait as one call may be made for."""
        return len(self._waiting) >= self._batch

    def end_turn(self) -> None:
        """Look up for the tuples that wait, then what is stale."""
        if self._waiting:
            self._look_up(self._now_ms())
        elif self._values.stale and self._calls.may_refresh:
            self._fetch_in([])

    def cleanup(self) -> None:
        """Close the source."""
        self._calls.end()
        if self._answers is None and not callable(self._fetch):
            self._fetch.close()

    def _key_of(self, tup: Tuple | Mapping[str, Any]) -> Any:
        values = tuple([tup[name] for name in self._key])
        key = values if len(values) > 1 else values[0]
        try:
            hash(key)
        except TypeError:
            for name, value in zip(self._key, values, strict=True):
                if what := no_key(value):
                    raise ValueError(
                        f"key field '{name}' holds {what}; keys are {KEY_TYPES}: convert it"
                    ) from None
            raise
        return key

    def _look_up(self, now_ms: int) -> None:
        """Fetch what the waiting tuples need, in one call, and emit them in their order."""
        waiting = self._waiting
        self._waiting = []
        values: dict[Any, Any] = {}
        needed = []
        for _, key in waiting:
            if key not in values:
                entry = self._values.of(key, now_ms)
                values[key] = _MISSING if entry is None else entry[0]
                if entry is None:
                    needed.append(key)
        error, fetched = self._fetch_in(needed) if needed else (None, {})
        values |= fetched
        asked = set(needed)
        for tup, key in waiting:
            if error is not None and key in asked:
                self._collector.fail(tup, error)
            elif isinstance(value := values[key], Exception):
                self._collector.fail(tup, _reason(value))
            else:
                if key not in asked:
                    self._hits.inc()
                self._answer(tup, value)

    def _fetch_in(self, needed: list[Any]) -> tuple[str | None, dict[Any, Any]]:
        """Fetch keys, with stale ones as far as there is room; return why that failed, and the
        values.
        """
        stale = self._values.take_stale()
        some = [key for key in stale if key not in needed][: self._batch - len(needed)]
        keys = [key for key in (*needed, *some) if not _holds_none(key)]
        try:
            answers = self._calls.answers(keys, is_needed=bool(needed)) if keys else {}
        except WorkerFailedError:
            raise
        # a cancelled coroutine's too: the inputs would stay open for ever
        except (Exception, CancelledError, SystemExit) as error:
            self._calls.note_failed()
            return _reason(error), {}
        values = {key: _found(answers, key) for key in (*needed, *some)}
        good = {key: value for key, value in values.items() if not isinstance(value, Exception)}
        self._values.keep(good, self._now_ms())
        self._calls.errors.inc(len(values) - len(good))
        return None, values

    def _answer(self, tup: Tuple, value: Any) -> None:
        try:
            self._emit(tup, value)
        except Exception as error:
            self._collector.fail(tup, _reason(error))

    def _emit(self, tup: Tuple, value: Any) -> None:
        if value is _MISSING:
            self._misses.inc()
        if value is not _MISSING or self._kind == "left":
            kept = [tup[name] for name in self._keep]
            self._collector.emit((*kept, *self._added(value)), tup)
        self._collector.ack(tup)

    def _added(self, value: Any) -> Sequence[Any]:
        if value is _MISSING:
            return (None,) * len(self._add)
        if isinstance(value, Mapping):
            return [value.get(name) for name in self._add]
        if len(self._add) == 1 and not isinstance(value, tuple):
            return (value,)
        if not isinstance(value, list | tuple) or len(value) != len(self._add):
            raise ValueError(
                f"the look-up has found {show(value)}; wanted are {', '.join(self._add)}, as a mapping or in this order"
            )
        return value

    def _read_snapshot(self, context: TopologyContext) -> Answers:
        if self._snapshot is None:
            raise InvalidTopologyError(
                "a replay cannot look up what was there then: give LookupBolt a snapshot of that time (a "
                'mapping, or a file of JSON lines or Parquet), or snapshot="now" to look up what is there now'
            )
        if isinstance(self._snapshot, Mapping):
            return self._snapshot
        try:
            path = Path(context.file(str(self._snapshot)))
        except FileNotFoundError:
            path = Path(context.path(str(self._snapshot)))
        try:
            return dict(self._rows_of(path))
        except (OSError, ValueError, TypeError) as error:
            raise InvalidTopologyError(
                f"the snapshot {path} cannot be read: {_reason(error)}; it holds JSON lines, or is Parquet (*.parquet), "
                f"with {', '.join((*self._key, *self._add))}"
            ) from error

    def _rows_of(self, path: Path) -> Iterator[tuple[Any, Any]]:
        """Yield key and value of each row of a snapshot; a later one replaces a former one."""
        rows: Collection[Any]
        if path.suffix == ".parquet":
            import pyarrow.parquet

            rows = pyarrow.parquet.read_table(path).to_pylist()
        else:
            lines = path.read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines if line.strip()]
        for row in rows:
            if not isinstance(row, Mapping):
                raise ValueError(f"a row is {show(row)}, no object with fields")
            for name in (*self._key, *self._add):
                if name not in row:
                    raise ValueError(
                        f"a row has not the field {unknown_field(name, path.name, row)}"
                    )
            yield self._key_of(row), row


class _Limits(NamedTuple):
    """Limits of kept values: number of keys, age at which a value has expired, and at which it is
    stale.
    """

    size: int
    expire_ms: int
    refresh_ms: int


class _Values:
    """Values that a task keeps by key, and keys whose values are to be fetched again."""

    def __init__(self, limits: _Limits) -> None:
        self._limits = limits
        # values and when they were fetched, least lately used first
        self._entries: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self.stale: dict[Any, None] = {}

    def of(self, key: Any, now_ms: int) -> tuple[Any, int] | None:
        """Return what is known of a key, and note it if it is to be fetched again."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        age_ms = now_ms - entry[1]
        if age_ms > self._limits.expire_ms:
            return None
        if age_ms > self._limits.refresh_ms:
            self.stale[key] = None
        self._entries.move_to_end(key)
        return entry

    def take_stale(self) -> list[Any]:
        """Return the stale keys, and forget that they are."""
        stale = list(self.stale)
        self.stale.clear()
        return stale

    def keep(self, values: Mapping[Any, Any], now_ms: int) -> None:
        """Keep values that were fetched now, in place of those used longest ago."""
        for key, value in values.items():
            self._entries[key] = value, now_ms
            self._entries.move_to_end(key)
        while len(self._entries) > self._limits.size:
            self._entries.popitem(last=False)


class _Calls:
    """Calls of a task's source: counted, repeated while it is away, and with a rest after one that
    failed.
    """

    def __init__(
        self,
        fetch: Fetch,
        context: TopologyContext,
        patience_s: float,
        report: Callable[[str], None],
    ) -> None:
        self._fetch = fetch
        self._owner = f"component '{context.component_id}'"
        self._now_ms = context.now_ms
        self._patience_s = patience_s
        self._report = report
        self._count = context.counter("lookup_calls")
        self.errors = context.counter("lookup_errors")
        self._rest_until_ms = 0  # without refreshing
        self._made_on = get_ident()
        self._is_over = Event()

    @property
    def may_refresh(self) -> bool:
        """Return whether the rest after a failed call is over."""
        return self._now_ms() >= self._rest_until_ms

    def note_failed(self) -> None:
        """Count a failed call, and begin the rest."""
        self.errors.inc()
        self._rest_until_ms = self._now_ms() + _REST_MS

    def end(self) -> None:
        """Wait for the source no longer."""
        self._is_over.set()

    def answers(self, keys: list[Any], is_needed: bool) -> Answers:
        """Return what the source answers; one that is away is waited for where inputs need it."""
        self._count.inc()
        answers = self._fetch(keys) if callable(self._fetch) else self._fetched(keys, is_needed)
        if not isinstance(answers, Mapping):
            raise TypeError(
                f"the look-up's fetch returned {show(answers)}; return a mapping of keys to values"
            )
        return answers

    def _fetched(self, keys: list[Any], is_needed: bool) -> Answers:
        assert not callable(self._fetch)
        began_s = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        for tries in count(1):
            try:
                return self._fetch.fetch(keys)
            except (ConnectionError, TimeoutError) as error:
                # the loop of a replay has nothing else to do, and must not sleep
                if not is_needed or get_ident() == self._made_on:
                    raise
                words = f"{self._owner} waits for its look-up: {error}"
                if time.monotonic() - began_s >= self._patience_s:
                    raise WorkerFailedError(
                        f"{words}; given up after {self._patience_s:g} s (topology.sink.patience.secs)"
                    ) from error
                if tries % _TRIES_PER_REPORT == 1:
                    self._report(words)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                if self._is_over.wait(pause_s):
                    raise
            except InvalidConfigError as error:
                if not is_needed:  # old values are still good
                    raise ConnectionError(str(error)) from error
                raise WorkerFailedError(f"{self._owner}: {error}") from error
        raise AssertionError("the count has no end")


def _check(fetch: Any, keep: Any, add: Any, kind: Any) -> None:
    """Refuse arguments of a wrong kind, and a field that is kept and added."""
    is_source = all(callable(getattr(fetch, name, None)) for name in ("open", "fetch", "close"))
    if isinstance(fetch, type) or not (callable(fetch) or is_source):
        raise InvalidTopologyError(
            f"LookupBolt: fetch is {show(fetch)}; give a function (keys) -> mapping, or a source such as SqlLookup(...)"
        )
    for name, fields in (("keep", keep), ("add", add)):
        if isinstance(fields, str) or not isinstance(fields, Mapping | Sequence):
            raise InvalidTopologyError(
                f"LookupBolt: {name} is {show(fields)}; write a list of field names, or types by name"
            )
    if not add:
        raise InvalidTopologyError("LookupBolt: add names no field; name those that are looked up")
    if twice := [name for name in add if name in keep]:
        raise InvalidTopologyError(
            f"LookupBolt: the field '{twice[0]}' is kept and added; drop it from keep, or look it up under another name"
        )
    if kind not in ("inner", "left"):
        raise InvalidTopologyError(
            f"LookupBolt has no kind {show(kind)}; it has inner (drops tuples without a value) and left"
        )


def _ms(name: str, duration: Any, least: int) -> int:
    if not isinstance(duration, Duration) or duration.ms < least:
        raise InvalidTopologyError(
            f"LookupBolt: {name} is {show(duration)}; write a Duration of {least} ms or more, as Duration.seconds(10)"
        )
    return duration.ms


def _whole(name: str, number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidTopologyError(
            f"LookupBolt: {name} is {show(number)}; write a whole number of at least 1"
        )
    return number


def _holds_none(key: Any) -> bool:
    return key is None or (isinstance(key, tuple) and None in key)


def _found(answers: Answers, key: Any) -> Any:
    """Return the value of a key; a key that holds None has none, as in SQL, whose NULL is in
    snapshots too.
    """
    return _MISSING if _holds_none(key) else answers.get(key, _MISSING)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
