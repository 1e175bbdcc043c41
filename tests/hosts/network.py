"""Hosts on one machine: namespaces of network, names, processes and mounts, joined by a bridge that
leads nowhere else.

Linux and root only. A host ends with its first process, and all that runs on it at once with it, as
when its power is cut; the bridge, its ports and the hosts' addresses are in namespaces too, so that
nothing is left of a network whose process is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.waiting import wait_until

_PREFIX = "10.77.0."
_TOOLS = ("ip", "unshare", "nsenter")
# the address of no port of the bridge: a frame to it reaches nobody, and its sender hears nothing
_NOBODY = "02:00:00:00:00:fe"
# a host that is switched on again is known to the others by the same
_FRAME = "02:00:00:00:00:{:02x}"
# what ends is killed: the time is the machine's, which may be busy with other tests
_SECONDS = 180.0
_WIRE = Path(__file__).with_name("wire.py")
# settings of anyone who makes the hosts: `make test` sets SPARK_LOCAL_IP to loopback, where no
# executor of a host finds its driver
_NOT_A_HOSTS = ("SPARK", "PYSPARK")
_A_HOST = (
    "mount --make-rprivate /; mount -t proc proc /proc; hostname a-host; mount --bind /tmp /srv; "
    "ip link add br0 type bridge; ip link add p1 type veth peer name eth0; "
    "test -c /dev/net/tun || { echo /dev/net/tun is missing >&2; exit 1; }"
)
_NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})
_NO_USERS: Mapping[str, User] = MappingProxyType({})
_ROOT = Path(__file__).parents[2]
# of Java, and of what `sparkstorm.extensions.embedded --install` and other environments put elsewhere
_PATHS = [os.environ["JAVA_HOME"]] if os.environ.get("JAVA_HOME") else []


def why_not() -> str:
    """Return why no hosts can be made here, in a clause; empty when they can.

    One host's devices and mounts are tried: containers may make namespaces of network and yet
    mount nothing in them.
    """
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"{missing[0]} is missing (Debian: apt-get install iproute2 util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "sh", "-ec", _A_HOST],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    return (
        ""
        if not tried.returncode
        else f"namespaces may not be made: {(tried.stderr.strip() or 'no reason given').splitlines()[-1]}"
    )


@dataclass(frozen=True)
class User:
    """A user of hosts, without rights of root; its home is /srv/home there."""

    name: str
    number: int


class Namespaces:
    """A process of namespaces of its own, which live as long as it does."""

    def __init__(self, kinds: Sequence[str], commands: str) -> None:
        self._kinds = kinds
        self._holder = subprocess.Popen(
            [
                "unshare",
                *(f"--{kind}" for kind in kinds),
                "--fork",
                "--kill-child",
                "sh",
                "-ec",
                f"{commands}\necho up\nexec sleep infinity",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline()
        assert said == "up\n", f"the namespaces of {commands!r} did not come up"
        self.pid = int(
            Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
            .read_text()
            .split()[0]
        )

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` inside."""
        flags = {"net": "--net", "uts": "--uts", "mount": "--mount", "pid": "--pid"}
        return [
            "nsenter",
            "--target",
            str(self.pid),
            *(flags[kind] for kind in self._kinds),
            "--",
            *command,
        ]

    def close(self) -> None:
        """End all that runs inside, at once; return when it is gone."""
        # with which its child goes, and with that, the first of a process namespace, all of that
        self._holder.kill()
        self._holder.wait(_SECONDS)
        wait_until(
            lambda: not Path(f"/proc/{self.pid}").exists(), "the end of the namespaces", _SECONDS
        )
        assert self._holder.stdout is not None
        self._holder.stdout.close()


class Host:
    """One host: its name, its address, its folder (which is /srv there), what runs on it and as
    which user (None: root).
    """

    def __init__(
        self, network: Network, name: str, number: int, folder: Path, user: User | None = None
    ) -> None:
        self.name, self.address, self.folder = name, f"{_PREFIX}{number}", folder
        self.user = user
        self._network, self._number = network, number
        self._spaces: Namespaces | None = None
        self._wire: subprocess.Popen[bytes] | None = None
        self._running: list[subprocess.Popen[bytes]] = []
        for each in ("tmp", "home") if user else ("tmp",):
            (folder / each).mkdir(parents=True, exist_ok=True)
        self.give(folder)

    def give(self, path: Path) -> None:
        """Make its user the owner of a file, or of a folder with all that is in it."""
        if self.user is None:
            return
        for each in (path, *path.rglob("*")):
            os.chown(each, self.user.number, self.user.number, follow_symlinks=False)

    @property
    def pid(self) -> int:
        """Return the number that its first process has outside."""
        assert self._spaces is not None, f"{self.name} is off"
        return self._spaces.pid

    @property
    def is_on(self) -> bool:
        """Return whether it is up."""
        return self._spaces is not None

    def switch_on(self) -> None:
        """Begin its life: an address, a name, the names of all others, an empty table of
        processes.
        """
        names = self._network.names_path
        own = self._network.commands_for_users(self) if self.user else ""
        self._spaces = Namespaces(
            ("net", "uts", "mount", "pid"),
            f"mount --make-rprivate /; mount -t proc proc /proc; hostname {self.name}; mount --bind {names} /etc/hosts; "
            f"mount --bind {self.folder} /srv; ip link set lo up; {own}",
        )
        port = f"p{self._number}"
        peer = ["eth0", "address", _FRAME.format(self._number), "netns", str(self._spaces.pid)]
        self._network.ip("link", "add", port, "type", "veth", "peer", "name", *peer)
        self._network.ip("link", "set", port, "master", "br0", "up")
        self._configure("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self._configure("ip", "link", "set", "eth0", "up")

    def close(self) -> None:
        """Switch it off, unless it is."""
        if self.is_on:
            self.switch_off()

    def switch_off(self) -> None:
        """Cut its power: all its processes and its address are gone, and nobody is told."""
        assert self._spaces is not None
        self._end_wire()
        self._spaces.close()
        self._spaces = None
        for process in self._running:
            process.wait(_SECONDS)
        self._running.clear()

    def start(
        self, log: str, command: Sequence[str], environment: Mapping[str, str] = _NO_ENVIRONMENT
    ) -> subprocess.Popen[bytes]:
        """Start a program in /srv there; its output goes to a file of that name in the host's
        folder.
        """
        with (self.folder / log).open("ab") as output:
            process = subprocess.Popen(
                self.inside(command),
                env=self._environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._running.append(process)
        return process

    @staticmethod
    def end(
        process: subprocess.Popen[Any], limit_s: float = 120.0, number: int = signal.SIGTERM
    ) -> int:
        """End a program that runs on a host by a signal; return its exit status.

        The signal is sent to the program itself: nsenter, which is its parent, hands none on. A
        driver outlived its nsenter, and the next one in its folder was refused.
        """

        def is_told() -> bool:
            if process.poll() is not None:
                return True
            # nsenter forks a moment after its start; once ended it has an entry until waited for
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(int(child), number)
            return bool(children)

        wait_until(is_told, "the program's process", limit_s)
        return process.wait(limit_s)

    def run(
        self,
        *command: str,
        environment: Mapping[str, str] = _NO_ENVIRONMENT,
        limit_s: float = 180.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in /srv there to its end."""
        return subprocess.run(
            self.inside(command),
            env=self._environment(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )

    def must(
        self,
        *command: str,
        environment: Mapping[str, str] = _NO_ENVIRONMENT,
        limit_s: float = 180.0,
    ) -> str:
        """Run a program there to its end, and return what it wrote; AssertionError when it
        fails.
        """
        done = self.run(*command, environment=environment, limit_s=limit_s)
        assert not done.returncode, f"{self.name}: {' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def cut(self, others: Iterable[Host], is_one_way: bool = False) -> None:
        """Lose everything that is sent to others, and what they send unless that is to arrive;
        nobody is told.
        """
        for other in others:
            self._lose(other)
            if not is_one_way:
                other._lose(self)

    def guard(self, ports: Iterable[int]) -> None:
        """Let connections in to these ports alone: a firewall without states, so that nothing else
        is needed of the kernel.
        """
        allowed = ", ".join(map(str, sorted(set(ports)))) or "0"
        rules = (
            "flush ruleset\ntable inet guard {\n chain input {\n  type filter hook input priority 0; policy accept;\n"
            f"  iif lo accept\n  tcp dport {{ {allowed} }} accept\n  tcp flags & (syn | ack) == syn drop\n"
            "  meta l4proto udp drop\n }\n}\n"
        )
        (self.folder / "guard.nft").write_text(rules)
        self._configure("nft", "-f", "/srv/guard.nft")

    def heal(self, others: Iterable[Host]) -> None:
        """Take the cuts to others back, in both ways."""
        for one, other in (
            (one, other) for each in others for one, other in ((self, each), (each, self))
        ):
            if one.is_on:
                # which fails where nothing was cut
                command = one._as_root(["ip", "neigh", "del", other.address, "dev", "eth0"])
                subprocess.run(command, check=False, capture_output=True, timeout=_SECONDS)

    def slow_down(self, milliseconds: float, loss: float = 0.0) -> None:
        """Delay all that it sends and gets by that, and lose that share of it, by a process between
        it and the bridge.
        """
        self.speed_up()
        self._wire = self._network.wire(f"p{self._number}", f"w{self._number}", milliseconds, loss)

    def limit(self, rate: str) -> None:
        """Let it send and get no more than that ("1gbit"), by the traffic control `tbf`."""
        shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        self._configure("tc", "qdisc", "replace", "dev", "eth0", *shape)
        self._network.run("tc", "qdisc", "replace", "dev", f"p{self._number}", *shape)

    def _end_wire(self) -> None:
        if self._wire is not None:
            self._wire.terminate()
            self._wire.wait(_SECONDS)
            self._wire = None
            self._network.ip("link", "del", f"w{self._number}b")

    def speed_up(self) -> None:
        """Take the delay back."""
        self._end_wire()
        self._network.ip("link", "set", f"p{self._number}", "master", "br0")

    def _lose(self, other: Host) -> None:
        self._configure(
            *["ip", "neigh", "replace", other.address, "lladdr", _NOBODY],
            *["dev", "eth0", "nud", "permanent"],
        )

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` in /srv there, as the host's user."""
        if self.user is None:
            return self._as_root(command)
        number, name = self.user.number, self.user.name
        become = ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups", "--"]
        return self._as_root(
            [*become, "env", "HOME=/srv/home", f"USER={name}", f"LOGNAME={name}", *command]
        )

    def _as_root(self, command: Sequence[str]) -> list[str]:
        assert self._spaces is not None, f"{self.name} is off"
        return self._spaces.inside(["env", "--chdir=/srv", *command])

    def _configure(self, *command: str) -> None:
        done = subprocess.run(
            self._as_root(command), check=False, capture_output=True, text=True, timeout=_SECONDS
        )
        assert not done.returncode, f"{self.name}: {' '.join(command)}: {done.stderr}"

    def _environment(self, added: Mapping[str, str]) -> dict[str, str]:
        own = {
            name: value for name, value in os.environ.items() if not name.startswith(_NOT_A_HOSTS)
        }
        return {**own, "TMPDIR": "/srv/tmp", "SPARK_LOCAL_DIRS": "/srv/tmp", **added}


class Network:
    """Hosts by name. Closing it ends all of them."""

    def __init__(
        self,
        folder: Path,
        names: Mapping[str, Sequence[str]],
        users: Mapping[str, User] = _NO_USERS,
    ) -> None:
        """Make a host for each name; its further names (as in /etc/hosts) are the value.

        `users` are those of hosts where programs do not run as root.
        """
        self._closers = ExitStack()
        self.names_path = folder / "hosts"
        numbers = {name: number for number, name in enumerate(names, 1)}
        lines = [
            f"{_PREFIX}{numbers[name]} {' '.join([name, *others])}\n"
            for name, others in names.items()
        ]
        self.names_path.write_text("127.0.0.1 localhost\n" + "".join(lines))
        self.hosts = {
            name: Host(self, name, number, folder / name, users.get(name))
            for name, number in numbers.items()
        }
        self._users_path = folder / "passwd"
        lines = [
            f"{each.name}:x:{each.number}:{each.number}::/srv/home:/bin/sh\n"
            for each in sorted(set(users.values()), key=lambda user: user.number)
        ]
        self._users_path.write_text(Path("/etc/passwd").read_text() + "".join(lines))

    def __enter__(self) -> Network:
        self._bridge = Namespaces(("net",), "ip link add br0 type bridge; ip link set br0 up")
        self._closers.callback(self._bridge.close)
        try:
            for host in self.hosts.values():
                self._closers.callback(host.close)
                host.switch_on()
        except BaseException:
            self._closers.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closers.close()

    def commands_for_users(self, host: Host) -> str:
        """Return the commands by which users have names on a host and can run this Python, which
        may lie in a folder that is open to root alone (/root); its parents are replaced there by
        empty ones, and what is needed is mounted in them.
        """
        named = [sys.prefix, sys.base_prefix, str(_ROOT), *_PATHS]
        needed = {Path(each).resolve() for each in named}
        commands = [f"mount --bind {self._users_path} /etc/passwd"]
        closed: dict[Path, list[Path]] = {}
        for path in sorted(needed):
            parents = [each for each in reversed(path.parents) if not each.stat().st_mode & 0o001]
            if parents:
                closed.setdefault(parents[0], []).append(path)
        for parent, paths in closed.items():
            aside = {path: f"{host.folder}/mounts/{number}" for number, path in enumerate(paths)}
            commands += [f"mkdir -p {to}; mount --bind {path} {to}" for path, to in aside.items()]
            commands += [f"mount -t tmpfs -o mode=755 tmpfs {parent}"]
            commands += [f"mkdir -p {path}; mount --move {to} {path}" for path, to in aside.items()]
        return "; ".join(commands)

    def ip(self, *words: str) -> None:
        """Configure the bridge."""
        self.run("ip", *words)

    def run(self, *command: str) -> None:
        """Run a command where the bridge and its ports are."""
        subprocess.run(
            self._bridge.inside(command),
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
        )

    def wire(
        self, port: str, name: str, milliseconds: float, loss: float
    ) -> subprocess.Popen[bytes]:
        """Put a slow wire between a port and the bridge."""
        command = [sys.executable, "-I", "-S", str(_WIRE), port, name, str(milliseconds), str(loss)]
        process = subprocess.Popen(
            self._bridge.inside(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        said = process.stdout.readline()
        process.stdout.close()
        assert said == b"up\n", f"the slow wire of {port} did not come up"
        return process
