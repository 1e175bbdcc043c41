"""Paths in the cluster's tree, with the names of Storm (S3.38-S3.42) and JStorm (S0.14-S0.48)."""

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


def storm(topology_id: str) -> str:
    """Path of a topology's base."""
    return under(STORMS, topology_id)


def assignment(topology_id: str) -> str:
    """Path of a topology's assignment."""
    return under(ASSIGNMENTS, topology_id)


def supervisor(supervisor_id: str) -> str:
    """Path of a supervisor's ephemeral node."""
    return under(SUPERVISORS, supervisor_id)


def workerbeat(topology_id: str, slot: WorkerSlot) -> str:
    """Path of a worker's beat, `<node>-<port>`."""
    return under(WORKERBEATS, topology_id, f"{slot.node}-{slot.port}")


def slot_of_workerbeat(node: str) -> WorkerSlot | None:
    """Return the slot of a heartbeat's node name, None for a foreign name."""
    host, _, port = node_to_name(node).rpartition("-")
    return WorkerSlot(host, int(port)) if host and port.isascii() and port.isdecimal() else None


def workerbeats(topology_id: str) -> str:
    """Parent of a topology's worker beats."""
    return under(WORKERBEATS, topology_id)


def errors(topology_id: str) -> str:
    """Parent of a topology's error folders."""
    return under(ERRORS, topology_id)


def outline(topology_id: str) -> str:
    """Path of a topology's outline."""
    return under(OUTLINES, topology_id)


def error_prefix(topology_id: str, component: str) -> str:
    """Prefix of a component's sequential error nodes."""
    return under(ERRORS, topology_id, component) + "/e"


def tasks(topology_id: str) -> str:
    """Path of a topology's task table."""
    return under(TASKS, topology_id)


def taskbeats(topology_id: str) -> str:
    """Path of a topology's task heartbeat record."""
    return under(TASKBEATS, topology_id)


def gray_upgrade(topology_id: str) -> str:
    """Path of a topology's gray upgrade."""
    return under(GRAY_UPGRADE, topology_id)


def upgrading_workers(topology_id: str) -> str:
    """Parent of the workers that a gray upgrade is to restart."""
    return under(GRAY_UPGRADE, topology_id, "upgrading_workers")


def upgraded_workers(topology_id: str) -> str:
    """Parent of the workers that run the code that a gray upgrade gave them."""
    return under(GRAY_UPGRADE, topology_id, "upgraded_workers")


def blob(key: str) -> str:
    """Path of a blob's metadata."""
    return under(BLOBS, key)


def submission(name: str) -> str:
    """Path that marks a topology name as being submitted."""
    return under(SUBMISSIONS, name)


def deploy(name: str) -> str:
    """Path of a hot deploy under way, by topology name."""
    return under(DEPLOYS, name)


def request(request_id: str) -> str:
    """Path of a client's request."""
    return under(REQUESTS, request_id)


def outcome(request_id: str) -> str:
    """Path of a request's outcome."""
    return under(OUTCOMES, request_id)


def log_config(topology_id: str) -> str:
    """Path of the log levels of a topology's workers."""
    return under(LOG_CONFIGS, topology_id)


def store_mark(topology_id: str) -> str:
    """Path of what is known of a topology's data in Redis."""
    return under(STORE_MARKS, topology_id)


def cell_marks(topology_id: str) -> str:
    """Path of the same for the cells of a topology over several Redis, the first left out."""
    return under(CELL_MARKS, topology_id)


def stop_slots(driver: str) -> str:
    """Path that ends the slots of one driver, by the driver's id."""
    return under(STOP_SLOTS, driver)


def driver(driver_id: str) -> str:
    """Path of a driver's ephemeral node, by the driver's id."""
    return under(DRIVERS, driver_id)


def driver_number(number: int) -> str:
    """Path of the claim to a driver's number."""
    return under(DRIVER_NUMBERS, str(number))
