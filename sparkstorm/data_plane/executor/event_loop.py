"""Event loop of an AsyncBolt's task: coroutines of several inputs at once, in a thread.

An input whose coroutine has not ended is held like any input that was not acked: a crash gives it
to the next owner again, and what it emits leaves in the commit that acks it. Left out: the event
loop on the thread that takes inputs. It would start a coroutine only while no other one computes,
and one slow answer would keep further inputs from beginning.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import wait
from contextlib import suppress
from threading import Semaphore, Thread
from typing import Any

from sparkstorm.api.async_bolts import AsyncBolt, check_capacity
from sparkstorm.api.collector import OutputCollector, Values
from sparkstorm.api.components import Conf, GatheringBolt
from sparkstorm.api.context import TopologyContext
from sparkstorm.common.errors import WorkerFailedError
from sparkstorm.common.model.tuples import Tuple

# A slot waits 3 s for its worker before it kills the process; the bolt's other thread takes up to 2.
_END_SECS = 0.5


class EventLoopBolt(GatheringBolt):
    """AsyncBolt as a bolt for a host: on an event loop in a thread, or without a thread, one input
    after the other.
    """

    def __init__(self, bolt: AsyncBolt, has_thread: bool) -> None:
        self._bolt = bolt
        self._has_thread = has_thread

    def prepare(self, conf: Conf, context: TopologyContext, collector: OutputCollector) -> None:
        """Start the event loop, and await the bolt's `start`."""
        bolt = self._bolt
        check_capacity(f"component '{context.component_id}'", bolt.capacity, bolt.timeout)
        self._collector = collector
        self._timeout_s = None if bolt.timeout is None else bolt.timeout.ms / 1000
        self._free = Semaphore(bolt.capacity)
        self._calls: deque[_Call] = deque()  # of the event loop: begun, and not settled
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread: Thread | None = None
        if self._has_thread:
            self._thread = Thread(target=_serve, args=(self._loop,), name="async-bolt", daemon=True)
            self._thread.start()
        else:
            # a host without threads, as one that steps through a capsule, may drop its task
            weakref.finalize(self, self._loop.close)
        self._await(bolt.start(conf, context))

    def execute(self, tup: Tuple) -> None:
        """Begin the coroutine of a tuple, as soon as fewer than `capacity` are open."""
        if tup.is_tick:
            return
        if self._thread is None:
            self._loop.run_until_complete(self._run(_Call(tup)))
            return
        self._free.acquire()
        if self._is_closed:
            return
        self._loop.call_soon_threadsafe(self._begin, _Call(tup))

    def cleanup(self) -> None:
        """Cancel the open coroutines, await the bolt's `stop`, and end the event loop."""
        self._is_closed = True
        self._await(self._stop(), _END_SECS)
        self.abandon()

    def abandon(self) -> None:
        """End the event loop, and coroutines that are open."""
        self._is_closed = True
        if self._thread is None:
            self._loop.close()
        else:
            self._free.release()  # for an execute that waits
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_END_SECS)

    def _await(self, work: Coroutine[Any, Any, None], most_s: float | None = None) -> None:
        """Wait for a coroutine, `most_s` seconds at the most, and raise what it raises."""
        if self._thread is None:
            self._loop.run_until_complete(work)
            return
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        if wait([future], most_s).done:
            future.result()

    def _begin(self, call: _Call) -> None:
        self._calls.append(call)
        call.task = self._loop.create_task(self._run(call))

    async def _run(self, call: _Call) -> None:
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                await self._bolt.process(call.tup, call)
        # a cancelled coroutine's too: the input would stay open for ever
        except BaseException as error:
            call.error = error
            if isinstance(error, TimeoutError) and limit.expired():
                call.error = TimeoutError(f"no answer within {self._bolt.timeout!r}")
        call.is_done = True
        self._settle(call)

    def _settle(self, call: _Call) -> None:
        """Emit, and ack or fail, what may leave now that a coroutine has ended."""
        if self._is_closed:
            return
        if self._thread is None:
            call.settle(self._collector)
        elif not self._bolt.ordered:
            self._calls.remove(call)
            self._leave(call)
        else:
            while self._calls and self._calls[0].is_done:
                self._leave(self._calls.popleft())

    def _leave(self, call: _Call) -> None:
        with suppress(WorkerFailedError):  # the worker has stopped meanwhile
            call.settle(self._collector)
        self._free.release()

    async def _stop(self) -> None:
        await _cancel([call.task for call in self._calls])
        await self._bolt.stop()


class _Call:
    """Coroutine of one input, and the collector that it is given: rows are kept until it has
    ended.
    """

    def __init__(self, tup: Tuple) -> None:
        self.tup = tup
        self.task: asyncio.Task[None]
        self.is_done = False
        self.error: BaseException | None = None
        self._rows: list[Callable[[OutputCollector], None]] = []
        self._reports: list[BaseException | str] = []

    def emit(self, values: Values, stream: str = "default") -> None:
        row = tuple(values)
        self._add(lambda collector: collector.emit(row, self.tup, stream))

    def emit_direct(self, task: int, values: Values, stream: str = "default") -> None:
        row = tuple(values)
        self._add(lambda collector: collector.emit_direct(task, row, self.tup, stream))

    def _add(self, row: Callable[[OutputCollector], None]) -> None:
        if self.is_done:
            raise RuntimeError(
                "the coroutine of this tuple has ended, and its rows have left: await what emits"
            )
        self._rows.append(row)

    def report_error(self, error: BaseException | str) -> None:
        self._reports.append(error)

    def settle(self, collector: OutputCollector) -> None:
        """Emit the rows and ack the input, or fail it."""
        for report in self._reports:
            collector.report_error(report)
        try:
            for emit in () if self.error is not None else self._rows:
                emit(collector)
        except WorkerFailedError:
            raise
        except Exception as error:  # a row that the stream cannot carry
            self.error = error
        if self.error is None:
            collector.ack(self.tup)
        else:
            collector.fail(self.tup, self.error)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped; end what is open on it then, and close it."""
    loop.run_forever()
    loop.run_until_complete(_cancel(asyncio.all_tasks(loop)))
    loop.close()


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
