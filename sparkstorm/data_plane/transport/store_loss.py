"""Sentences about a store that has lost data.

Here and not where they are raised: worker, twin and Redis raise the same, and a console finds them
again by their beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sparkstorm.common.errors import StoreLostError
from sparkstorm.common.model.worker_spec import StoreMark

LOST = "Redis has lost"
"""Beginning of every sentence about a loss."""
# As many as fit into a line; all tasks of a large worker would be a page.
_MOST_TASKS = 8


def lost_error(
    topology_id: str, known_mark: StoreMark, found_step: int, found_ms: int
) -> StoreLostError:
    """Return the refusal of a store that has lost more than its tail."""
    loss = loss_text(topology_id, known_mark, found_step, found_ms)
    return StoreLostError(stop_text(topology_id, loss), loss)


def loss_text(topology_id: str, known_mark: StoreMark, found_step: int, found_ms: int) -> str:
    """Return the first half of a sentence: what a store has lost, and since when."""
    last = f"write {known_mark.step:,} of {_time(known_mark.time_ms)}"
    if not found_step:
        return f"{LOST} the data of topology {topology_id}: it is empty, and had come to {last}"
    since = f"write {found_step:,}{f' of {_time(found_ms)}' if found_ms else ''}"
    return f"{LOST} data of topology {topology_id}: all since {since}, and it had come to {last}"


def loss_between_cells(topology_id: str, cell: int, tasks: Sequence[int]) -> str:
    """Return the first half of a sentence: one of two stores went back, and these tasks, ascending,
    have consumed entries of the cell's that are gone, or need entries that were freed.
    """
    named = ", ".join(map(str, tasks[:_MOST_TASKS])) + (" …" if len(tasks) > _MOST_TASKS else "")
    return (
        f"{LOST} data of topology {topology_id}: the store of cell {cell} does not have the newest entries that "
        f"tasks {named} have consumed from it"
    )


def stop_text(topology_id: str, loss: str, held: str = "") -> str:
    """Return the sentence with which a worker refuses a store that has lost more than its tail.

    `held`: what the targets of sinks have.
    """
    # The name, which the command takes, and not the id: the id belongs to one submission.
    name = topology_id.rsplit("-", 2)[0]
    have = f" ({held})" if held else ""
    return (
        f"{loss}; targets of sinks keep what they have{have}, so sources that read again would write those rows "
        "twice. Bring back a newer copy of Redis, which is taken up within 30 s; or go on with what is left: sparkstorm rebalance "
        f"{name} --wait 0 --yes -c topology.store.loss=continue (a run of your own: the same command with "
        "-c topology.store.loss=continue); or kill the topology and submit it again (a run of your own: --fresh)"
    )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
