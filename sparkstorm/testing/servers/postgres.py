"""PostgresServer: a PostgreSQL on loopback, from Debian's package or from PATH."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkstorm.common.errors import EmbeddedServerError
from sparkstorm.extensions.embedded.process import free_port
from sparkstorm.testing.servers.processes import descendants, is_gone
from sparkstorm.testing.servers.server import OwnServer

PASSWORD = "of-the-tests"
_USER = "postgres"
_END_LIMIT_S = 180.0
_SETPRIV = "/usr/bin/setpriv"  # of util-linux, which every Debian has


class PostgresServer(OwnServer):
    """One server with a database and a user `postgres`; its data outlive `kill` and `start`.

    `url` is SQLAlchemy's, without the password, as `SqlSource` and `SqlSink` take it. As root the
    server runs as the user `postgres`.
    """

    name = "postgres"

    def __init__(self, password: str = PASSWORD) -> None:
        self._bin = install_postgres()
        super().__init__()
        self._password = password
        as_user: dict[str, Any] = {}
        self._as_user: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            owner = pwd.getpwnam(_USER)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            as_user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
            # the kernel forgets the signal of a parent's death when the user changes: it is set
            # anew
            ids = [
                f"--reuid={owner.pw_uid}",
                f"--regid={owner.pw_gid}",
                "--clear-groups",
                "--pdeathsig=KILL",
            ]
            self._as_user = [_SETPRIV, *ids]
        secret = self.folder / "password"
        secret.write_text(password)
        secret.chmod(0o644)  # the folder is closed to others
        self.port = free_port()
        self.url = f"postgresql+psycopg://{_USER}@127.0.0.1:{self.port}/postgres"
        command = [str(self._bin / "initdb"), "-D", str(self.folder / "data"), "-U", _USER]
        command += ["--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync"]
        # without a locale, as in containers, it would take SQL_ASCII, whose text clients give as bytes
        command += ["--encoding=UTF8", "--locale=C"]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        done = subprocess.run(
            command, cwd=self.folder, timeout=180, check=False, **pipes, **as_user
        )
        if done.returncode:
            self.stop()
            raise EmbeddedServerError(
                f"PostgreSQL could not begin: {(done.stdout + done.stderr)[-1000:].strip()}"
            )

    def run(self, *statements: str) -> list[Any]:
        """Run statements and return the rows of the last one that has any."""
        # of the extra `servers`: this module is in the wheel, which does not require it
        import psycopg

        rows: list[Any] = []
        with psycopg.connect(self.address, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else rows
        return rows

    def kill(self) -> None:
        """End it and its children as kill -9 does.

        Each child leads its own process group, and the shared memory of one that lives on
        keeps the next server from starting.
        """
        if self._process is None:
            return
        children: set[int] = set()
        with contextlib.suppress(ProcessLookupError):
            # it forks no child between the look at /proc and its end
            os.kill(self.pid, signal.SIGSTOP)
            children = descendants(self.pid)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().kill()
        deadline = time.monotonic() + _END_LIMIT_S
        while not all(is_gone(pid) for pid in children):
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"PostgreSQL's processes {sorted(children)} are not gone {_END_LIMIT_S:g} s after SIGKILL"
                )
            time.sleep(0.01)

    @property
    def address(self) -> str:
        """Address with the password, for psycopg."""
        return (
            f"postgresql://{_USER}:{quote(self._password, safe='')}@127.0.0.1:{self.port}/postgres"
        )

    def answers(self) -> bool:
        """Return whether it answers a query."""
        import psycopg

        try:
            return bool(self.run("SELECT 1"))
        except psycopg.OperationalError:
            return False

    def _command(self) -> list[str]:
        settings = [
            "-c",
            f"unix_socket_directories={self.folder}",
            "-c",
            "listen_addresses=127.0.0.1",
        ]
        return [
            *self._as_user,
            str(self._bin / "postgres"),
            "-D",
            str(self.folder / "data"),
            "-p",
            str(self.port),
            *settings,
        ]


def install_postgres() -> Path:
    """Return the folder of PostgreSQL's programs; root installs Debian's package where there is
    none.

    EmbeddedServerError where neither is possible.
    """
    if importlib.util.find_spec("psycopg") is None:
        raise EmbeddedServerError(
            "PostgreSQL needs the package psycopg: pip install 'sparkstorm[servers]'"
        )
    if not (programs := _programs()) and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "postgresql"], check=False, capture_output=True
        )
        programs = _programs()
    if not programs:
        raise EmbeddedServerError("PostgreSQL is not installed: apt-get install postgresql")
    return programs[-1]


def _programs() -> list[Path]:
    on_path = shutil.which("initdb")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return [path.parent for path in programs] or (
        [Path(on_path).resolve().parent] if on_path else []
    )
