"""Renewal of a ZooKeeper session that no server takes any more, because its data are older than
what the session has seen.

A server refuses a client that has seen a later transaction than its own last one, and kazoo asks
again for ever. After ZooKeeper was emptied or put back to an older state, every server is such a
server. The proof is a session that is made anew: to make one is a transaction, so where its number
is below one that was seen before, what lay between is lost.
"""

import contextlib
import threading
from collections.abc import Callable

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

# kazoo itself tries every 0.5 s: a server that still knows the session has taken it by then
_LOOK_EVERY_S = 1.0
_ANSWER_S = 2.0


class SessionRenewal:
    """Listener of a client's session; while it is cut, a thread looks for servers that are older
    than the session.

    `make_probe` makes a client with the same rights; `note_rollback` is called before the session
    is renewed.
    """

    def __init__(
        self,
        client: KazooClient,
        make_probe: Callable[[], KazooClient],
        note_rollback: Callable[[], None],
    ) -> None:
        self._client = client
        self._make_probe = make_probe
        self._note_rollback = note_rollback
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, state: str) -> None:
        """Take in a new state of the session: called on kazoo's thread, so it starts a thread at
        most.
        """
        is_idle = self._thread is None or not self._thread.is_alive()
        if state == KazooState.SUSPENDED and is_idle and not self._is_over.is_set():
            self._thread = threading.Thread(
                target=self._look, name="zookeeper-renewal", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """End the thread, before the client is stopped."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(_LOOK_EVERY_S) and not self._client.connected:
            if self._is_ahead_of_server() and not self._is_over.is_set():
                self._note_rollback()
                # ends the session here, and forgets the transactions that it has seen
                self._client.stop()
                if not self._is_over.is_set():
                    self._client.start_async()

    def _is_ahead_of_server(self) -> bool:
        # now: it may come back meanwhile, and see more than the probe
        seen = int(self._client.last_zxid)
        probe = self._make_probe()
        try:
            probe.start(timeout=_ANSWER_S)
            probe.exists_async("/").get(timeout=_ANSWER_S)
            return 0 < int(probe.last_zxid) < seen
        except (KazooTimeoutError, KazooException):
            return False
        finally:
            with contextlib.suppress(KazooException):
                probe.stop()
            probe.close()
