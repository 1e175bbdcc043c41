"""Schedulers for the laboratory by name, also classes of the caller's as `module:Class`. PURE."""

from sparkstorm.common.errors import FailedAssignTopologyError, InvalidConfigError, show
from sparkstorm.control_plane.scheduling.catalogue import ALLOWED_KEY, scheduler_by_name
from sparkstorm.control_plane.scheduling.per_topology import schedule_cells
from sparkstorm.control_plane.scheduling.reconcile import check_answer
from sparkstorm.control_plane.scheduling.records import Conf
from sparkstorm.control_plane.scheduling.settings import ChoiceSettings
from sparkstorm.control_plane.scheduling.view import ClusterView, Scheduler


def scheduler_named(name: str, conf: Conf, inner: str = "default") -> Scheduler:
    """Return a prepared scheduler; `module:Class` needs no line in `storm.scheduler.allowed`, since
    it comes from the caller or the command line, never from a file.

    InvalidConfigError when there is none of that name.
    """
    for given in (name, inner):
        if not isinstance(given, str):
            raise InvalidConfigError(f"a scheduler is a name or module:Class, not {show(given)}")
    names = [part.replace(":", ".") for part in (name, inner)]
    own = [dotted for dotted, given in zip(names, (name, inner), strict=True) if dotted != given]
    if own:
        conf = {**conf, ALLOWED_KEY: [*ChoiceSettings.of_partial(conf).allowed, *own]}
    return scheduler_by_name(names[0], conf, names[1])


def schedule(scheduler: Scheduler, cluster: ClusterView) -> None:
    """Run one round; FailedAssignTopologyError where it breaks the rules, as on a cluster."""
    known = {
        name: {*topology.executors, *cluster.placement(name).slot_by_executor}
        for name, topology in cluster.topologies.items()
    }
    usable = cluster.offered_slots() | cluster.used_slots().keys()
    schedule_cells(scheduler, cluster.topologies, cluster)
    if gone := known.keys() - (cluster.assignments().keys() & cluster.topologies.keys()):
        raise FailedAssignTopologyError(
            f"the scheduler took {', '.join(sorted(gone))} out of its view, which is to be read only"
        )
    reasons = cluster.reasons.all() if cluster.reasons is not None else ()
    for words in (*cluster.status.values(), *cluster.refused.values(), *reasons):
        if not isinstance(words, str):
            raise FailedAssignTopologyError(
                f"the scheduler gave {show(words)} as a status or reason: no text"
            )
    check_answer(cluster.assignments(), known, usable)
