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
    if leader is None or not _is_dead(leader.owner):
        return False
    state.resign()
    return True


def _is_dead(owner: str) -> bool:
    """Whether that was a process of this host, and is gone."""
    host, _, pid = owner.rpartition(":")
    return host == os.uname().nodename and pid.isascii() and pid.isdecimal() and not _is_running(int(pid))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True  # another user's, or no process id at all: leave it alone
    return True
