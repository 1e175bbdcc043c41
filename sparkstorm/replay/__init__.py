"""Batch replay: runs a topology over DataFrames, one Spark stage per group of bolts."""

from sparkstorm.common.model.values.tagged import from_json as read_json
from sparkstorm.common.model.values.tagged import read_value
from sparkstorm.extensions.recording.capsule_files import write_capsule
from sparkstorm.extensions.recording.stepping.capsule import Capsule, open_capsule
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
