"""Owns dry runs of schedulers that remember rounds: they are asked by a twin, so that a question leaves no trace."""

import copy

from sparkstorm.scheduling.base import Scheduler
from sparkstorm.scheduling.blacklist import BlacklistScheduler


def twin_of(scheduler: Scheduler) -> Scheduler:
    """A scheduler that answers as this one would; of the built-in ones only Blacklist remembers anything."""
    if isinstance(scheduler, BlacklistScheduler):
        return copy.deepcopy(scheduler, {id(scheduler.inner): scheduler.inner})
    return scheduler
