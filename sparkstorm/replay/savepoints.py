"""States of a checkpoint or savepoint as initial states of a replay or of a Stepper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparkstorm.checkpoint.files import read_checkpoint
from sparkstorm.executor.state import merged_states


def checkpoint_states(folder: str | Path) -> dict[str, dict[Any, Any]]:
    """Return keys and values by component, for `replay_locally(states=...)` or `Stepper(state=...)`.

    CheckpointError names the damaged file; ValueError a key that several tasks of a component have.
    """
    checkpoint = read_checkpoint(Path(folder))
    found = {}
    for component, part in checkpoint.parts.items():
        if part.kind == "bolt":
            contents = checkpoint.content(component)
            if states := merged_states(component, {task: dict(each.state) for task, each in contents.items()}):
                found[component] = states
    return found
