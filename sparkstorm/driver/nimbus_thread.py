"""Thread that drives Nimbus inside the driver: it sleeps until the next turn is due or a wake-up
comes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sparkstorm.common.clock import Clock
from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.control_plane.nimbus.nimbus import Nimbus

_LOG = logging.getLogger(__name__)
_RETRY_S = 0.5
_LONGEST_SLEEP_S = 1.0


class NimbusThread:
    """Thread that runs a Nimbus until stopped; a lost store is waited for.

    `close` ends the Nimbus's session; `hurry` is called before, so that a turn at hand does not
    wait long for a lost store.
    """

    def __init__(
        self,
        nimbus: Nimbus,
        clock: Clock,
        wake: threading.Event,
        close: Callable[[], None] = lambda: None,
        hurry: Callable[[], None] = lambda: None,
    ) -> None:
        self.nimbus = nimbus
        self._close = close
        self._hurry = hurry
        self._clock = clock
        self._wake = wake
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="nimbus", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the turn at hand, then close the session, which hands the leadership over;
        calling it twice is fine.
        """
        self._is_stopped = True
        self._hurry()
        self._wake.set()
        self._thread.join(timeout=10.0)
        self._close()

    def _run(self) -> None:
        is_away = False
        while not self._is_stopped:
            self._wake.clear()
            try:
                due_ms = self.nimbus.step(self._clock.now_ms())
                sleep_s = max(0.0, min((due_ms - self._clock.now_ms()) / 1000, _LONGEST_SLEEP_S))
                if is_away:
                    _LOG.warning("the store answers again, Nimbus goes on")
                is_away = False
            except StoreUnavailableError as error:
                # with a stop it has little patience, and what it leaves is the next leader's
                if not (is_away or self._is_stopped):
                    _LOG.warning("Nimbus assigns nothing until the store answers: %s", error)
                    is_away = True
                sleep_s = _RETRY_S
            except Exception:
                # the outermost frame: a cluster without Nimbus would look healthy and repair
                # nothing
                _LOG.exception("Nimbus's turn failed; it is taken again")
                sleep_s = _LONGEST_SLEEP_S
            self._wake.wait(sleep_s)
