"""Paths in the cluster's tree, with the names of Storm (S3.38-S3.42) and JStorm (S0.14-S0.48)."""

from functools import partial

from sparkstorm.common.model.assignment import WorkerSlot
from sparkstorm.common.model.names import name_to_node, node_to_name

STORMS = "/storms"
ASSIGNMENTS = "/assignments"
ASSIGNMENTS_BACKUP = "/assignments_bak"
SUPERVISORS = "/supervisors"
WORKERBEATS = "/workerbeats"
ERRORS = "/errors"
TASKS = "/tasks"
OUTLINES = "/outlines"
TASKBEATS = "/taskbeats"
GRAY_UPGRADE = "/gray_upgrade"
LOG_CONFIGS = "/logconfigs"
STORE_MARKS = "/store_marks"
CELL_MARKS = "/cell_marks"
BLOBS = "/blobs"
NAMED_BLOBS = "/named_blobs"
SUBMISSIONS = "/nimbus/submissions"
DEPLOYS = "/nimbus/deploys"
REQUESTS = "/nimbus/requests"
OUTCOMES = "/nimbus/outcomes"
SERVED = "/nimbus/served"
PROBLEMS = "/nimbus/problems"
SUBMITTED_COUNT = "/nimbus/submitted_count"
LEADER = "/nimbus/leader"
TICKETS = "/tickets"
DRIVER = "/nimbus/driver"
DRIVERS = "/nimbus/drivers"
DRIVER_NUMBERS = "/nimbus/driver-numbers"
DEPOSING = "/nimbus/deposing"
STOP_SLOTS = "/stop-slots"
CLUSTER_CONF = "/nimbus/conf"
HOSTS = "/nimbus/hosts"


def under(parent: str, *names: str) -> str:
    """A path below a parent, each name made legal."""
    return "/".join((parent, *map(name_to_node, names)))


storm = partial(under, STORMS)
"""Path of a topology's base."""
assignment = partial(under, ASSIGNMENTS)
"""Path of a topology's assignment."""
supervisor = partial(under, SUPERVISORS)
"""Path of a supervisor's ephemeral node."""
workerbeats = partial(under, WORKERBEATS)
"""Parent of a topology's worker beats."""
errors = partial(under, ERRORS)
"""Parent of a topology's error folders."""
outline = partial(under, OUTLINES)
"""Path of a topology's outline."""
tasks = partial(under, TASKS)
"""Path of a topology's task table."""
taskbeats = partial(under, TASKBEATS)
"""Path of a topology's task heartbeat record."""
gray_upgrade = partial(under, GRAY_UPGRADE)
"""Path of a topology's gray upgrade."""
blob = partial(under, BLOBS)
"""Path of a blob's metadata."""
submission = partial(under, SUBMISSIONS)
"""Path that marks a topology name as being submitted."""
deploy = partial(under, DEPLOYS)
"""Path of a hot deploy under way, by topology name."""
request = partial(under, REQUESTS)
"""Path of a client's request."""
outcome = partial(under, OUTCOMES)
"""Path of a request's outcome."""
log_config = partial(under, LOG_CONFIGS)
"""Path of the log levels of a topology's workers."""
store_mark = partial(under, STORE_MARKS)
"""Path of what is known of a topology's data in Redis."""
cell_marks = partial(under, CELL_MARKS)
"""Path of the same for the cells of a topology over several Redis, the first left out."""
stop_slots = partial(under, STOP_SLOTS)
"""Path that ends the slots of one driver, by the driver's id."""
driver = partial(under, DRIVERS)
"""Path of a driver's ephemeral node, by the driver's id."""


def workerbeat(topology_id: str, slot: WorkerSlot) -> str:
    """Path of a worker's beat, `<node>-<port>`."""
    return under(WORKERBEATS, topology_id, f"{slot.node}-{slot.port}")


def slot_of_workerbeat(node: str) -> WorkerSlot | None:
    """Return the slot of a heartbeat's node name, None for a foreign name."""
    host, _, port = node_to_name(node).rpartition("-")
    return WorkerSlot(host, int(port)) if host and port.isascii() and port.isdecimal() else None


def error_prefix(topology_id: str, component: str) -> str:
    """Prefix of a component's sequential error nodes."""
    return under(ERRORS, topology_id, component) + "/e"


def upgrading_workers(topology_id: str) -> str:
    """Parent of the workers that a gray upgrade is to restart."""
    return under(GRAY_UPGRADE, topology_id, "upgrading_workers")


def upgraded_workers(topology_id: str) -> str:
    """Parent of the workers that run the code that a gray upgrade gave them."""
    return under(GRAY_UPGRADE, topology_id, "upgraded_workers")


def driver_number(number: int) -> str:
    """Path of the claim to a driver's number."""
    return under(DRIVER_NUMBERS, str(number))
