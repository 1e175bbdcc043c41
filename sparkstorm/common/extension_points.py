"""Built-in extensions by the point of the core at which they plug in.

A plane names a point and knows its protocol; an extension implements the protocol and is listed
here. Modules are imported when a point is first asked. Left out: entry points of the distribution:
a zip or a source tree on `sys.path`, as Spark ships them, has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

BUILT_IN: Final[Mapping[str, tuple[str, ...]]] = {
    # make `upgrade` and `scaling` of client.handle.TopologyHandle, each of a topology's id, name
    # and ClusterAccess
    "handle": (
        "sparkstorm.extensions.upgrade.handle:Upgrades",
        "sparkstorm.extensions.autoscale.handle:Scaling",
    ),
    # names of the public module sparkstorm.replay
    "replay": (
        "sparkstorm.extensions.recording.capsule_files:write_capsule",
        "sparkstorm.extensions.recording.stepping.capsule:Capsule",
        "sparkstorm.extensions.recording.stepping.capsule:open_capsule",
    ),
    # makes a client's reader of a topology that lies in several Redis servers
    "reader": ("sparkstorm.extensions.cells.cells_reader:RedisCellsReader",),
    # classes of control_plane.nimbus.extension.NimbusExtension
    "nimbus": (
        "sparkstorm.extensions.upgrade.nimbus_duty:GrayUpgrades",
        "sparkstorm.extensions.autoscale.nimbus_duty:Autoscaler",
    ),
    # classes of control_plane.supervisor.extension.SlotExtension
    "slot": ("sparkstorm.extensions.upgrade.slot_duty:SlotUpgrades",),
    # joins a worker's transport with those to the other Redis servers of its topology
    "transport": ("sparkstorm.extensions.cells.opening:open_cells",),
    # classes of data_plane.worker.extension.WorkerExtension
    "worker": (
        "sparkstorm.extensions.recording.worker:ShadowExtension",
        "sparkstorm.extensions.recording.worker:RecordingExtension",
        "sparkstorm.extensions.recording.worker:CapsuleExtension",
        "sparkstorm.extensions.tracing.worker:TracingExtension",
    ),
}


@cache
def extensions_at(point: str) -> tuple[Any, ...]:
    """Return the objects that are listed for a point, in their order."""
    return tuple(_load(name) for name in BUILT_IN[point])


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
