"""Security settings of a Spark context: authentication and encryption of its connections, loopback,
private scratch space.

Without `spark.authenticate`, any process that reaches a port of the driver or of an executor can
fetch its blocks (closures among them) and send it serialised Java objects, which is enough to run
code there. Spark reads all of these settings when the context is made, so they take effect from
Python too, after spark-submit has started the JVM.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.spark_versions import accumulator_server, delete_at_exit
from sparkstorm.driver.hosting.peers import is_of_another_user

_LOG = logging.getLogger(__name__)

SWITCH: Final = "sparkstorm.spark.authenticate"
_AUTHENTICATE: Final = "spark.authenticate"
_SECRET: Final = "spark.authenticate.secret"
_SCRATCH: Final = "sparkstorm-spark-"
_LOCK: Final = "in-use"  # file in a scratch folder that its driver holds locked as long as it lives
_LOOPBACK: Final = "127.0.0.1"
_ENCRYPTED: Final[Mapping[str, str]] = {"spark.network.crypto.enabled": "true"}
# Every process is started with this conf, so no older handshake has to be understood.
_STRICT: Final[Mapping[str, str]] = {
    **_ENCRYPTED,
    "spark.network.crypto.saslFallback": "false",
    "spark.network.crypto.authEngineVersion": "2",
}
# for these masters Spark makes a secret for each application
_WITH_OWN_SECRET: Final = ("local", "yarn", "k8s://")


def is_local(master: str) -> bool:
    """Return whether everything of this master runs on this machine; `local-cluster` (executors as
    processes) included.
    """
    return master.startswith("local")


def secured(conf: SparkConf, wants_authentication: bool) -> SparkConf:
    """Put authentication, encryption and, on local masters, loopback into a conf that names its
    master.

    What the conf has already stays, except a `spark.authenticate` that contradicts
    `wants_authentication`. Raises InvalidConfigError when it contradicts, or when the master needs
    a secret that only its owner has.
    """
    master = conf.get("spark.master") or "local"
    if wants_authentication:
        _authenticated(conf, master)
    if is_local(master) and "SPARK_LOCAL_IP" not in os.environ:
        conf.setIfMissing("spark.driver.bindAddress", _LOOPBACK).setIfMissing(
            "spark.driver.host", _LOOPBACK
        )
    return conf.setIfMissing("spark.ui.enabled", "false")


def _authenticated(conf: SparkConf, master: str) -> None:
    if (conf.get(_AUTHENTICATE) or "true") != "true":
        raise InvalidConfigError(
            f"{_AUTHENTICATE} is {conf.get(_AUTHENTICATE)}: whoever reaches Spark's ports could run code in this job; "
            f"take that setting away, or accept it with {SWITCH}: false"
        )
    if master.startswith("local-cluster") and not conf.get(_SECRET):
        # its master and workers live in the driver's JVM and read this conf
        conf.set(_SECRET, secrets.token_hex(32))
    if not master.startswith(_WITH_OWN_SECRET) and not conf.get(_SECRET):
        raise InvalidConfigError(
            f"master {master} needs authentication: set {_AUTHENTICATE}=true and {_SECRET} for the master, its workers and "
            f"this job in a spark-defaults.conf that only you can read, or accept an open cluster with {SWITCH}: false"
        )
    conf.set(_AUTHENTICATE, "true")
    for name, value in (_STRICT if master.startswith(_WITH_OWN_SECRET) else _ENCRYPTED).items():
        conf.setIfMissing(name, value)


def guard_accumulators() -> None:
    """Have PySpark's accumulator server refuse other users of the host, and report what is no
    update in one line.

    It serves one connection at a time, and prints a traceback for a wrong token: a foreign client
    that sends nothing would stop every job that ends a task, one that sends anything would fill the
    console.
    """
    server = accumulator_server()
    server.verify_request = lambda _server, request, _address: not is_of_another_user(request)
    server.handle_error = _report_error


def _report_error(_server: object, _request: object, address: object) -> None:
    error = sys.exception()
    # the end of a connection that has shown the token: Spark's own
    if not isinstance(error, EOFError):
        _LOG.warning("a connection from %s to Spark's accumulators was ended: %s", address, error)


def with_private_scratch(conf: SparkConf) -> SparkConf:
    """Let Spark on local masters keep shuffled rows and cached blocks in a folder of mode 0700.

    Spark's own folders below /tmp can be read by every user. `remove_at_exit` has the JVM remove
    the folder; those of drivers that were killed are removed here.
    """
    named = conf.get("spark.local.dir") or os.environ.get("SPARK_LOCAL_DIRS")
    if is_local(conf.get("spark.master") or "local") and not named:
        _remove_left_over(Path(tempfile.gettempdir()))
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH))
        # until the process ends
        fcntl.flock(
            os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX
        )
        conf.set("spark.local.dir", str(folder))
    return conf


def _remove_left_over(parent: Path) -> None:
    """Remove the scratch folders of this user's drivers that have ended; a process id would not
    distinguish those of containers.
    """
    for folder in parent.glob(f"{_SCRATCH}*"):
        # another user's, in use, without a lock, or another driver was first
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def remove_at_exit(sc: SparkContext) -> None:
    """Have the JVM delete the folder of `with_private_scratch` when it ends."""
    folder = sc.getConf().get("spark.local.dir") or ""
    if os.path.basename(folder).startswith(_SCRATCH):
        delete_at_exit(sc, folder)


def check_given(sc: SparkContext, wants_authentication: bool) -> str:
    """A warning about a context that the caller made without authentication, empty when it has it.

    Raises InvalidConfigError in place of the warning when its master is not local and
    authentication is wanted.
    """
    if (sc.getConf().get(_AUTHENTICATE) or "false") == "true":
        return ""
    danger = f"the given Spark context has no {_AUTHENTICATE}: whoever reaches its ports can run code in this job"
    if is_local(sc.master or "") or not wants_authentication:
        return f"{danger}; set it before the context is made, or let SparkStorm make the context"
    raise InvalidConfigError(
        f"{danger}; set it before the context is made, or accept an open cluster with {SWITCH}: false"
    )
