"""Checkpoints and savepoints as the beginning of a replay, and their states as initial states of a
replay or a Stepper.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkstorm.common.model.values.codec import Codec
from sparkstorm.common.model.values.keys import as_key
from sparkstorm.data_plane.checkpoint.files import read_checkpoint
from sparkstorm.data_plane.executor.state import merged_states

# Watermarks received are left out: senders of a replay send theirs again.
_HEARD = "m", "i", "g"


@dataclass(slots=True)
class Begun:
    """Unpacked journal entries from which one task continues."""

    state: Iterable[Any] = ()  # keys and values
    # windows, timers, queues, and clocks of its outputs
    time: list[tuple[Any, Any]] = field(default_factory=list)
    version: int = 1  # of the state
    position: Any = None
    is_positioned: bool = False

    @staticmethod
    def of(entries: Iterable[bytes]) -> Begun:
        """Unpack the entries that `Seeds.journals` made for a task; without any, the task begins
        empty.
        """
        # Lenient: a value whose class is not registered in this process goes on as its fields.
        begun = Begun()
        codec = Codec(is_lenient=True)
        for entry in map(codec.unpack, entries):
            begun.state = [*begun.state, *entry.get("s", ())]
            begun.time += [
                (cell_key, value)
                for key, value in entry.get("w", ())
                if (cell_key := as_key(key))[0] not in _HEARD
            ]
            begun.version = entry.get("v", begun.version)
            if "o" in entry:
                begun.position = entry["o"]
                begun.is_positioned = True
        return begun

    @property
    def clocks(self) -> dict[tuple[str, str], int]:
        """Return the newest times of rows that the task has sent, by stream and subscriber."""
        return {
            (cell_key[1], cell_key[2]): at_ms for cell_key, at_ms in self.time if cell_key[0] == "h"
        }

    @property
    def windows(self) -> Sequence[tuple[Any, Any]]:
        """Return windows, timers and queues."""
        return [(cell_key, value) for cell_key, value in self.time if cell_key[0] != "h"]


def checkpoint_states(folder: str | Path) -> dict[str, dict[Any, Any]]:
    """Return keys and values by component, for `replay_locally(states=...)` or
    `Stepper(state=...)`.

    Windows and timers are left out with a warning; `from_checkpoint=` has them. CheckpointError
    names a damaged file; ValueError a key that several tasks of a component have.
    """
    checkpoint = read_checkpoint(Path(folder))
    states_by_component = {}
    for component, part in checkpoint.parts.items():
        if part.kind == "bolt":
            contents = checkpoint.content(component)
            # A warning and no error: states alone are what a Stepper and a replay of other bolts
            # need.
            if num_left := sum(
                1
                for content in contents.values()
                for cell_key, _ in content.time
                if cell_key[0] not in ("h", *_HEARD)
            ):
                warnings.warn(
                    f"{folder} has {num_left:,} entries of open windows and timers of '{component}', which its states do not have: "
                    "begin the replay with from_checkpoint",
                    stacklevel=2,
                )
            if states := merged_states(
                component, {task: dict(content.state) for task, content in contents.items()}
            ):
                states_by_component[component] = states
    return states_by_component
