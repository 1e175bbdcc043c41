"""Executors of another user than the driver's, on hosts where the driver's folders are not its own."""

from __future__ import annotations

import os
import re

from tests.hosts.lab import ANN, SPARK_USER, Lab
from tests.hosts.network import Host
from tests.hosts.settings import SLOTS
from tests.waiting import wait_until

PER_SECOND = 500
_CLIENTS, _DRIVERS = "/srv/connection.json", "/srv/storm-local/connection.json"
_FOLDER = "/srv/storm-local/supervisors"


def require_a_refusal(lab: Lab) -> str:
    """Start a driver whose folder nobody but root may write to on worker hosts; return the sentence
    by which it ends. AssertionError when it does not name the folder, the host and the key.
    """
    process = lab.begin_cluster("d1", SLOTS)
    said = (lab.hosts["d1"].folder / "driver.log").read_text()
    assert process.poll() not in (None, 0), f"the driver's exit status is {process.poll()}: {said}"
    sentence = (
        f": the folder {_FOLDER} cannot be made (Permission denied), "
        f"slots run as user {SPARK_USER.name} there: name another one in sparkstorm.worker.local.dir"
    )
    found = [line for line in said.splitlines() if sentence in line]
    assert found and any(host.name in found[-1] for host in lab.workers), said
    return found[-1]


def require_own_folders(lab: Lab) -> int:
    """Run a topology; AssertionError when a file of slots is another user's than of executors, when
    its logs are not shown at a client's or driver's host, or when its sums are wrong. Return how
    many numbers were counted.
    """
    watch = lab.submit("users", PER_SECOND)
    lab.wait_for(watch, 4 * PER_SECOND)
    for host in lab.workers:
        folder = host.folder / "home" / "of-slots"
        files = [folder, *folder.rglob("*")]
        owners = {path.lstat().st_uid for path in files}
        assert owners == {SPARK_USER.number}, f"{host.name}: files of users {owners}"
        assert list(folder.glob("logs/slot-*.log")), f"{host.name}: no logs in {folder}"
        modes = {each.name: each.stat().st_mode & 0o777 for each in folder.iterdir()}
        assert modes == {"logs": 0o700, "supervisors": 0o700}, f"{host.name}: {modes}"
        assert not os.listdir(host.folder / "storm-local"), f"{host.name}: the driver's folder"
    # slots publish logs a second later
    for host, connection in [(lab.client, _CLIENTS), (lab.hosts["d2"], _DRIVERS)]:
        wait_until(
            lambda host=host, connection=connection: _shows_all(lab, host, connection),  # type: ignore[misc]
            f"the logs of all hosts at {host.name}",
        )
    return lab.end("users", watch)


def _shows_all(lab: Lab, host: Host, connection: str) -> bool:
    """Return whether `sparkstorm logs` shows lines of a worker on each worker host."""
    assert host.user == ANN
    done = lab.verb("logs", "users", host=host, connection=connection)
    assert not done.returncode, f"{host.name}: {done.stdout}{done.stderr}"
    return all(re.search(rf"^{each.name}\b.* counts$", done.stdout, re.M) for each in lab.workers)
