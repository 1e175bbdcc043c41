"""Sleep between two looks at a condition, in waits for processes and servers."""

from __future__ import annotations

import time

# a wait of some milliseconds ends as soon as it can
_LEAST_S = 0.005
# Half would double the looks of long waits; twice that would show in the recoveries that are timed.
_LATE = 0.02
# as long as a look at a tree of processes and stores may take, ten times
_MOST_S = 0.05


def pause(waited_s: float) -> None:
    """Sleep before the next look of a wait that has lasted `waited_s` seconds.

    At most 2 % of that: a wait that took a look every 5 ms kept a core busy with reading /proc or
    the stores for as long as a JVM needs to start.
    """
    time.sleep(min(_MOST_S, max(_LEAST_S, _LATE * waited_s)))
