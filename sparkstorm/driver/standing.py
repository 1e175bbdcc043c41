"""Standing cluster: Nimbus and the slots, held until stopped, for topologies that other processes
submit.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkstorm.common.config import Conf, load_conf, merge, parse_override
from sparkstorm.common.errors import InvalidConfigError, SparkStormError, StoreUnavailableError
from sparkstorm.common.model.names import counted, shown
from sparkstorm.common.model.status import TopologyStatus
from sparkstorm.common.ports import listen
from sparkstorm.common.settings import DriverSettings
from sparkstorm.common.stores.addresses import connection_path, not_configured
from sparkstorm.common.stores.connection import read_only_path
from sparkstorm.common.stores.contexts import VARIABLE
from sparkstorm.control_plane.cluster.nimbus_state import DriverInfo
from sparkstorm.driver.cluster import Cluster
from sparkstorm.driver.console import RunConsole
from sparkstorm.driver.exit_status import INTERRUPTED, OK, guarded, leave
from sparkstorm.driver.hosting.tied_child import tied
from sparkstorm.driver.job_file import say_warnings
from sparkstorm.driver.job_options import add_cluster_options
from sparkstorm.driver.own_cluster import check_spark, spark_may_end, starting_text
from sparkstorm.driver.run import Signals, StoppedError

_SHARES = re.compile(r"[\d.,]+(%| bytes| MiB| s\b)")
_AFTER = "topologies go on with the next start"
_LOOK_EVERY_S = 1.0
_PROBLEMS_EVERY_S = 2.0  # all heartbeats are read: with one a second a problem shows within 5 s
_REPEAT_S = 60.0
EXITS = (
    "exit status: 0 stopped from outside (Ctrl-C, SIGTERM), 1 failed, 130 stopped while starting"
)


def main(arguments: Sequence[str], prog: str = "run_cluster.py") -> int:
    """Hold a cluster until stopped; the result is the process's exit status."""
    options = _parse(arguments, prog)
    return guarded(lambda: hold(_read_conf(options), options.web))


def _read_conf(options: argparse.Namespace) -> Conf:
    """Read the configuration; warn of exposed passwords and of keys without effect."""
    overrides = dict(parse_override(argument) for argument in options.c)
    own = {**(load_conf(options.conf) if options.conf else {}), **overrides}
    say_warnings(overrides, own, options.conf or "")
    return cluster_conf(own)


def cluster_conf(own: Mapping[str, Any]) -> Conf:
    """Return the configuration; a cluster with servers of its own has its own folder below the
    default one.
    """
    conf = merge(own)
    if "storm.local.dir" in own or not not_configured(conf):
        return conf
    return merge(conf, {"storm.local.dir": str(Path(DriverSettings.of(conf).local_dir, "cluster"))})


def hold(conf: Conf, web_port: int | None = None, after: str = _AFTER) -> int:
    """Start a cluster and hold it until Ctrl-C or SIGTERM; `after` says what a next start does with
    its topologies.
    """

    if web_port is not None:
        require_web("web", web_port)
    console = RunConsole()
    stopping = threading.Event()
    is_up = threading.Event()

    def stop() -> None:
        if stopping.is_set():
            console.say(
                "stopped at once; topologies go on from their last commits with the next start"
            )
            leave(OK)
        stopping.set()
        console.say(
            "stopping: slots, Nimbus, Spark and the servers are ended (again to stop at once) ..."
        )
        if not is_up.is_set():
            raise StoppedError

    console.say(starting_text("a cluster", not_configured(conf)))
    with Signals(stop), spark_may_end(is_up.is_set):
        try:
            with Cluster.open(conf, say=console.say, is_shared=True) as cluster:
                is_up.set()
                for line in up_lines(
                    conf, sum(cluster.slots_by_node().values()), cluster.logs_place, after
                ):
                    console.say(line)
                with _page(conf, web_port):
                    rest = _watch_until(stopping, cluster, console.say)
        except StoppedError:
            console.say("stopped while starting; nothing was changed")
            return INTERRUPTED
    console.say(f"stopped{rest if after == _AFTER else ''}")
    return OK


def require_web(extra: str, port: int) -> None:
    """Refuse to go on without the packages of the web UI, which `extra` installs, or without its
    port: its child would say so only when the cluster is up.
    """
    if missing := [
        name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None
    ]:
        raise InvalidConfigError(
            f"the web UI needs {' and '.join(missing)}: pip install 'sparkstorm[{extra}]'"
        )
    listen("127.0.0.1", port, "--web").close()


@contextlib.contextmanager
def _page(conf: Conf, port: int | None) -> Iterator[None]:
    """Serve the page by a child, which is a client of the cluster like any other: a page cannot
    slow Nimbus.
    """
    if port is None:
        yield
        return
    file = str(connection_path(conf).resolve())
    with tied(
        [
            sys.executable,
            "-m",
            "sparkstorm.cli",
            "web",
            "--cluster",
            file,
            "--port",
            str(port),
            "--until-input-ends",
        ]
    ):
        yield


def _watch_until(stopping: threading.Event, cluster: Cluster, say: Callable[[str], None]) -> str:
    """Show changes of leader and topologies until stopped; return a clause on the topologies that
    are left, or nothing.
    """
    lead = LeaderWatch(cluster.me, lambda: cluster.leader, say)
    watch = TopologyWatch(
        lambda: {s.topology_id: str(s.status) for s in cluster.client.summaries()}, say
    )
    problems = ProblemWatch(cluster.client.problem_sentences, say)
    while not stopping.wait(_LOOK_EVERY_S):
        check_spark(cluster)
        lead.look()
        watch.look()
        problems.look()
    watch.look()
    names = ", ".join(watch.names())
    others = cluster.other_drivers()
    if not names:
        return ""
    return (
        f"; {others[0]} goes on with {names}" if others else f"; with the next start go on: {names}"
    )


def up_lines(conf: Conf, slots: int, logs: str, after: str = _AFTER) -> list[str]:
    """Return the lines for the terminal of the cluster."""
    path = connection_path(conf).resolve()
    viewer = read_only_path(path)
    return [
        f"the cluster is up: {counted(slots, 'slot')}; logs are in {logs}",
        f"connection file: {path} (it gives full control of the cluster)",
        f"for those who only look: {viewer if viewer.exists() else 'none (see sparkstorm.redis.viewer.user)'}",
        f"submit from any process:  export {VARIABLE}={shlex.quote(str(path))}",
        "                          sparkstorm submit JOB.yaml    sparkstorm list    sparkstorm --help",
        f"Ctrl-C stops the cluster; {after}",
    ]


class LeaderWatch:
    """Readable lines when another driver begins to lead; none while this one is the only one.

    Nimbus's `is_leading` is not asked: it is False during each request of an election.
    """

    def __init__(
        self, me: DriverInfo, look: Callable[[], DriverInfo | None], say: Callable[[str], None]
    ) -> None:
        self._look = look
        self._say = say
        self._me = me.id
        self._known = me.id

    def look(self) -> None:
        """Compare with the last look."""
        leader = self._look()
        if leader is None or leader.id == self._known:
            return
        self._known = leader.id
        if leader.id == self._me:
            self._say("this driver leads now")
        else:
            self._say(f"{leader} leads; this one stands by")


class TopologyWatch:
    """Readable lines on topologies that come, change their status and go."""

    def __init__(
        self, statuses: Callable[[], Mapping[str, str]], say: Callable[[str], None]
    ) -> None:
        self._statuses = statuses
        self._say = say
        self._known: Mapping[str, str] = {}

    def look(self) -> None:
        """Compare with the last look; a store that is away is looked at next time."""
        try:
            statuses = self._statuses()
        except StoreUnavailableError:
            return
        for topology_id in [
            topology_id for topology_id in self._known if topology_id not in statuses
        ]:
            self._say(f"{topology_id} is gone")
        for topology_id, status in statuses.items():
            if self._known.get(topology_id) != status:
                self._say(f"{topology_id} is {status}")
        self._known = statuses

    def names(self) -> list[str]:
        """Return the ids that were there at the last look and had not been killed."""
        return sorted(
            topology_id
            for topology_id, status in self._known.items()
            if status != TopologyStatus.KILLED
        )


class ProblemWatch:
    """Readable lines on the problems of a cluster: each once when it comes and again while it
    lasts, every minute.
    """

    def __init__(
        self,
        sentences: Callable[[], Mapping[str, Sequence[str]]],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sentences = sentences
        self._say = say
        self._clock = clock
        self._due = 0.0
        self._said_at: dict[tuple[str, str], float] = {}

    def look(self) -> None:
        """Compare with the last look, when it is time to; a store that is away is looked at next
        time.
        """
        now = self._clock()
        if now < self._due:
            return
        self._due = now + _PROBLEMS_EVERY_S
        try:
            sentences = self._sentences()
        except SparkStormError:
            return
        self._said_at = {
            kind: said_at for kind, said_at in self._said_at.items() if now - said_at < _REPEAT_S
        }
        for about, sentence in (
            (about, text) for about, several in sorted(sentences.items()) for text in several
        ):
            # A share or a size changes all the time; the number of a worker, a moment or a count of
            # deaths is another problem.
            kind = (about, _SHARES.sub("", sentence))
            if kind not in self._said_at:
                self._said_at[kind] = now
                self._say(f"problem ({about}): {shown(sentence)}")


def _parse(arguments: Sequence[str], prog: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Hold a cluster on Spark until stopped, for topologies that other processes submit.",
        epilog=EXITS,
    )
    add_cluster_options(parser)
    return parser.parse_args(list(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
