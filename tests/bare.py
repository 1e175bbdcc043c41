"""The tutorial on a bare Debian: a root that debootstrap makes, with no compiler and no Python, and
every command of the page copied into it.

`make bare`, as root, with debootstrap on the machine (docs/maintaining/test-suite.md). The wheels of `dist/` are
the index that has SparkStorm; all else comes from the package indexes of this machine. The root is
deleted at the end, with what still runs in it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.tutorial import follow

ROOT = Path(__file__).parents[1]
MIRROR = "http://deb.debian.org/debian"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# its own place: the package of certificates writes the usual one when Java brings it
_CERTIFICATES_INSIDE = "/etc/ssl/of-the-host.pem"
_ENVIRONMENT = {
    "HOME": "/root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PIP_FIND_LINKS": "/dist",
    # pip and Python do not know the certificate of an index on the local network, which the host does
    "PIP_CERT": _CERTIFICATES_INSIDE,
    "SSL_CERT_FILE": _CERTIFICATES_INSIDE,
    # debconf asks where it sees no terminal, too
    "DEBIAN_FRONTEND": "noninteractive",
}
_LIMIT_S = 1800.0
# of roots that this program has made, and may delete
_MARK = "made-by-tests.bare"
# Debian, Java and PostgreSQL, the packages, and pip's cache of PySpark take more than half of it
_WANTED_BYTES = 6 << 30


def make_root(root: Path, suite: str) -> None:
    """Make a bare Debian in a folder, unless it is there: what dpkg and apt need and no more."""
    if (root / _MARK).exists():
        return
    if root.exists() and any(root.iterdir()):
        raise SystemExit(f"{root} has other files: --root names a folder that is empty or new")
    root.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(root.parent).free) < _WANTED_BYTES:
        raise SystemExit(
            f"{root.parent} has {free >> 20:,} MiB free, and {_WANTED_BYTES >> 20:,} are wanted: "
            "--root names a folder on another disk"
        )
    # in its own namespace, with which its mounts end: what is deleted has none
    command = ["unshare", "--mount", "debootstrap", "--variant=minbase", suite, str(root), MIRROR]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    (root / _MARK).touch()


def prepare(root: Path, wheels: Path) -> Path:
    """Give a root its wheels, certificates and /proc; return the reader's folder in it.

    The mounts are seen by this process and its children alone.
    """
    for name in ("dist", "root/shop"):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
    for wheel in wheels.glob("*.whl"):
        shutil.copy(wheel, root / "dist")
    certificates = root / _CERTIFICATES_INSIDE.removeprefix("/")
    certificates.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(_CERTIFICATES, certificates)
    # from here the packages of certificates take them, for Java too
    own = Path("usr/local/share/ca-certificates")
    shutil.copytree("/" / own, root / own, dirs_exist_ok=True)
    # as Debian's installer has it; Spark asks for the address of its host's name
    name = socket.gethostname()
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
    # no server of a package is to start: there is no init that would end it
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    for kind, name in (("proc", "proc"), ("tmpfs", "dev/shm")):
        subprocess.run(["mount", "-t", kind, kind, str(root / name)], check=True)
    return root / "root" / "shop"


def processes_in(root: Path) -> list[int]:
    """Return the processes whose root is that folder."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(process / "root") == str(root.resolve()):
                pids.append(int(process.name))
    return pids


def remove(root: Path) -> None:
    """End what still runs in a root, and delete it; its mounts ended with their namespace."""
    assert (root / _MARK).exists(), root
    while pids := processes_in(root):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    command = ["du", "--summarize", "--block-size=1M", str(root)]
    used = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    shutil.rmtree(root)
    print(f"{root} is deleted: {used[0] if used else '?'} MiB")


def main(arguments: Sequence[str]) -> int:
    """Follow the tutorial in a bare root; return 0 when its last command has been copied."""
    parser = argparse.ArgumentParser(prog="python -m tests.bare", description=main.__doc__)
    parser.add_argument("--suite", default="trixie", help="release of Debian (default trixie)")
    parser.add_argument("--root", type=Path, help="folder of the root (default .bare/SUITE)")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="default dist")
    parser.add_argument(
        "--keep", action="store_true", help="keep the root; a later run goes on in it"
    )
    parser.add_argument("--in-namespace", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    root = asked.root or ROOT / ".bare" / asked.suite
    if not asked.in_namespace:
        make_root(root, asked.suite)
        print(f"{asked.suite} is in {root}", flush=True)
        again = [sys.executable, "-m", "tests.bare", *arguments, "--in-namespace"]
        try:
            return subprocess.run(["unshare", "--mount", *again], cwd=ROOT, check=False).returncode
        finally:
            if not asked.keep:
                remove(root)
    folder = prepare(root, asked.wheels)
    inside = [f"{name}={value}" for name, value in _ENVIRONMENT.items()]
    begin = "cd /root/shop && exec bash"
    shell = ["chroot", str(root), "/usr/bin/env", "-i", *inside, "bash", "-c", begin]
    assert not any((root / "usr/bin" / name).exists() for name in ("cc", "gcc")), "a compiler"
    took = follow(shell, folder, environ=dict(os.environ), limit_s=_LIMIT_S)
    print(f"{len(took)} commands in {sum(seconds for _, seconds in took):.0f} s on {asked.suite}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
