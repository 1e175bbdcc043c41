"""Batch replay: runs a topology over DataFrames, one Spark stage per group of bolts."""

from typing import Any

from sparkstorm.common.extension_points import extensions_at
from sparkstorm.common.model.values.tagged import from_json as read_json
from sparkstorm.common.model.values.tagged import read_value
from sparkstorm.replay.back_fill import back_fill, back_fill_locally
from sparkstorm.replay.inputs import EventTime
from sparkstorm.replay.local import LocalResults, replay_locally
from sparkstorm.replay.options import ReplayOptions
from sparkstorm.replay.replay import replay
from sparkstorm.replay.results.frames import Replay
from sparkstorm.replay.savepoints import checkpoint_states

__all__ = [
    "Capsule",
    "EventTime",
    "LocalResults",
    "Replay",
    "ReplayOptions",
    "back_fill",
    "back_fill_locally",
    "checkpoint_states",
    "open_capsule",
    "read_json",
    "read_value",
    "replay",
    "replay_locally",
    "write_capsule",
]


def __getattr__(name: str) -> Any:
    """Return what an extension adds to this module: capsules."""
    if name in __all__:
        for added in extensions_at("replay"):
            if added.__name__ == name:
                return added
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
