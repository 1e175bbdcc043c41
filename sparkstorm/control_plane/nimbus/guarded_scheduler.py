"""Guard around a plugged-in scheduler: it runs in its own thread with a time limit.

A scheduler that loops for ever costs one daemon thread and its own round, never Nimbus: the view in
its hands was made for that round alone. Until that thread is back no new call is made. Built-in
schedulers need no guard: they end. Left out: no guard, as in Storm, where a scheduler that hangs
stops every reassignment of the cluster; and a process, which could be killed, but needs everything
that the scheduler sees as bytes, each round.
"""

import copy
import threading
from typing import Any

from sparkstorm.common.errors import FailedAssignTopologyError
from sparkstorm.control_plane.scheduling.records import Conf, Topologies
from sparkstorm.control_plane.scheduling.view import ClusterView, Scheduler


class GuardedScheduler:
    """A Scheduler around another; raises FailedAssignTopologyError when it raises or does not come
    back in time.
    """

    def __init__(self, scheduler: Scheduler, limit_ms: int = 60_000) -> None:
        self._scheduler = scheduler
        # Nimbus's turn waits as long, and with it requests and the replacement of dead workers.
        # Half would refuse a slow plug-in that would have come back; double makes one that hangs
        # stop the cluster for two minutes. Not measured: the time is the plug-in's.
        self._limit_ms = limit_ms
        self._running: threading.Thread | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "GuardedScheduler":
        twin = GuardedScheduler(copy.deepcopy(self._scheduler, memo), self._limit_ms)
        twin._running = self._running
        return twin

    @property
    def wants_measurements(self) -> bool:
        """Return whether the scheduler asks for measurements."""
        return bool(getattr(self._scheduler, "wants_measurements", False))

    def prepare(self, conf: Conf) -> None:
        """Pass the configuration on."""
        self._scheduler.prepare(conf)

    def schedule(self, topologies: Topologies, cluster: ClusterView) -> None:
        """Let it work, for a while."""
        # A thread cannot be ended from outside. One more for each round would pile up behind a
        # scheduler that hangs.
        if self._running is not None and self._running.is_alive():
            raise FailedAssignTopologyError("the scheduler is still busy with an earlier round")
        failure: list[Exception] = []
        work = (topologies, cluster, failure)
        # A daemon, so that a hanging scheduler does not keep the driver from ending. A process
        # would need the plug-in's class and view to be pickled, both of the user's making.
        self._running = threading.Thread(
            target=self._call_plugin, args=work, name="scheduler", daemon=True
        )
        self._running.start()
        self._running.join(self._limit_ms / 1000)
        if self._running.is_alive():
            raise FailedAssignTopologyError(
                f"the scheduler did not come back within {self._limit_ms} ms"
            )
        if failure:
            raise failure[0]

    def _call_plugin(
        self, topologies: Topologies, cluster: ClusterView, failure: list[Exception]
    ) -> None:
        try:
            self._scheduler.schedule(topologies, cluster)
        except Exception as error:  # user code; the caller translates its error
            failure.append(error)
        except BaseException as error:
            # SystemExit would end this thread silently, as if all were placed
            failure.append(FailedAssignTopologyError(f"it raised {type(error).__name__}: {error}"))
