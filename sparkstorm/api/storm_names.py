"""Storm's names of methods, for the message when one of them is called here."""

from __future__ import annotations

import re
from typing import NoReturn

# Storm's methods that are no method of the same name with underscores here.
_OTHERS = {
    "createTopology": "build()",
    "setNumTasks": "num_tasks= of set_bolt and set_spout",
    "addConfiguration": "conf= of set_bolt and set_spout",
    "addConfigurations": "conf= of set_bolt and set_spout",
    "setDebug": "topology.record.components, which records the input of bolts",
    "setMaxSpoutPending": "conf={'topology.max.spout.pending': ...} of set_spout",
    "setMaxTaskParallelism": "the key topology.max.task.parallelism",
    "setMemoryLoad": "conf= of set_bolt and set_spout",
    "setCPULoad": "conf= of set_bolt and set_spout",
    "addResource": "conf= of set_bolt and set_spout",
    "addResources": "conf= of set_bolt and set_spout",
    "addWorkerHook": "the key topology.worker.hooks",
    "withTimestampExtractor": "with_timestamp_field, for a field that a bolt before computes",
    "withWatermarkInterval": "nothing: watermarks go with every commit",
}
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def name_here(owner: type, name: str) -> str | None:
    """Return what stands here for a method of Storm; None for another name.

    >>> name_here(dict, "createTopology")
    'build()'
    """
    if name in _OTHERS:
        return _OTHERS[name]
    here = _HUMP.sub("_", name).lower()
    return here if here != name and hasattr(owner, here) else None


def refuse_name(thing: object, name: str) -> NoReturn:
    """Raise the AttributeError of a name that an object does not have; it tells the name here of a
    method of Storm.
    """
    if (here := name_here(type(thing), name)) is not None:
        raise AttributeError(f"{type(thing).__name__} has no {name!r}; here it is {here}")
    object.__getattribute__(thing, name)  # with Python's message, or that of a property
    raise AttributeError(name)
