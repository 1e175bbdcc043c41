"""AsyncBolt: declaration of a bolt that awaits outside systems for many inputs at once."""

from __future__ import annotations

from typing import Any, ClassVar

from sparkstorm.api.collector import BasicOutputCollector
from sparkstorm.api.components import Bolt, Conf
from sparkstorm.api.context import TopologyContext
from sparkstorm.api.windows import Duration
from sparkstorm.common.errors import InvalidTopologyError, show
from sparkstorm.common.model.tuples import Tuple


class AsyncBolt(Bolt):
    """Bolt whose `process` is a coroutine: up to `capacity` are open in each task.

    What `process` emits is anchored to its input, which is acked when it ends and failed when it
    raises or takes longer than `timeout`. With `ordered` rows leave in the order of the inputs,
    else as coroutines end (Flink's orderedWait and unorderedWait). All coroutines of a task run on
    one event loop and must not block it. A replay processes inputs one after the other.

    >>> import asyncio
    >>> class Located(AsyncBolt):
    ...     outputs = ("user", "country")
    ...     capacity = 50
    ...     timeout = Duration.seconds(5)
    ...     async def start(self, conf, context):
    ...         self.countries = {"ann": "NL"}  # such as a client of HTTP
    ...     async def process(self, tup, collector):
    ...         await asyncio.sleep(0.001)
    ...         collector.emit((tup["user"], self.countries.get(tup["user"])))
    """

    blocking = True
    capacity: ClassVar[int] = 100
    timeout: ClassVar[Duration | None] = None
    ordered: ClassVar[bool] = True

    def execute(self, tup: Tuple) -> None:
        """Refuse to be called: the runtime awaits `process`."""
        raise NotImplementedError

    async def start(self, conf: Conf, context: TopologyContext) -> None:
        """Prepare the task: awaited once, before the first tuple."""

    async def process(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        """Process one tuple; an exception fails it and drops what it emitted."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Release resources: awaited when the worker stops, not when it is killed."""


def check_capacity(where: str, capacity: Any, timeout: Any) -> None:
    """Refuse a capacity or a time-out that is none."""
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise InvalidTopologyError(
            f"{where}: capacity is {show(capacity)}; write a whole number of at least 1"
        )
    if timeout is not None and (not isinstance(timeout, Duration) or timeout.ms < 1):
        raise InvalidTopologyError(
            f"{where}: timeout is {show(timeout)}; write a Duration, as Duration.seconds(5), or None"
        )
