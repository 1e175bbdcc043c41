"""Switch of a busy acker to compiled kernels: loaded on a thread when there is enough to do, adopted by the loop.

Importing numba takes tenths of a second and compiling seconds, so a worker starts without, and one with few open trees
never pays.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from sparkstorm.acking.compiled import Kernels, load_kernels
from sparkstorm.worker.tasks.acker_task import AckerTask

_FROM_OPEN_ROOTS = 4096


class AckerWarmUp:
    """`step` is called by the loop; everything but the loading happens there."""

    def __init__(self, ackers: Iterable[AckerTask]) -> None:
        self._ackers = list(ackers)
        self._loaded: list[Kernels | None] = []
        self._thread: threading.Thread | None = None

    def step(self) -> None:
        """Begin to load when an acker has much to do; adopt what has been loaded."""
        if self._thread is None:
            if any(len(acker.ledger) >= _FROM_OPEN_ROOTS for acker in self._ackers):
                self._thread = threading.Thread(target=self._load, name="acker-kernels", daemon=True)
                self._thread.start()
        elif self._loaded:
            kernels = self._loaded.pop()
            if kernels is not None:
                for acker in self._ackers:
                    acker.ledger.adopt(kernels)
            self._ackers = []

    def _load(self) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sparkstorm", "kernels")
        try:
            self._loaded.append(load_kernels(cache))
        except Exception as error:  # a numba that does not fit this machine: the plain way goes on
            print(f"acker kernels are not used: {type(error).__name__}: {error}", flush=True)
            self._loaded.append(None)
