"""RetryPolicy: what becomes of an input, a window or a timer that fails. A worker and a replay differ in its values alone."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST_BACK_OFF_MS = 30_000  # a longer one would outlive the users' patience, half of it asks a target twice as often


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of retries, the first wait (each further one is twice as long), and whether the last failure parks the input."""

    retries: int
    back_off_ms: int = 0
    is_parking: bool = True  # else the run ends with the error

    def wait_ms(self, tries: int) -> int | None:
        """Return how long to wait for the next try after so many failed ones; None when it is given up."""
        if tries > self.retries:
            return None
        wait_ms: int = self.back_off_ms * 2 ** (tries - 1)
        return min(wait_ms, _LONGEST_BACK_OFF_MS)
