"""Owns the names of leaders: which process holds the office, and how a dead one's is freed before its time."""

import os

from sparkstorm.cluster.storm_state import StormState


def own_name() -> str:
    """This process as a candidate: host and process id."""
    return f"{os.uname().nodename}:{os.getpid()}"


def depose_dead_leader(state: StormState) -> bool:
    """Free the office of a leader whose process on this host is gone; True when that was done.

    A killed driver's session, and with it its office, would otherwise last for storm.zookeeper.session.timeout.
    """
    leader = state.read_leader()
    host, _, pid = leader.owner.rpartition(":") if leader else ("", "", "")
    if host != os.uname().nodename or not (pid.isascii() and pid.isdecimal()) or _is_running(int(pid)):
        return False
    state.resign()
    return True


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True  # another user's, or no process id at all: leave it alone
    return True
