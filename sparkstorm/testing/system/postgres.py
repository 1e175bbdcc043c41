"""PostgresServer: a real PostgreSQL for tests, on loopback, from Debian's package."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from sparkstorm.embedded.process import free_port
from sparkstorm.testing.system.processes import descendants, is_gone

PASSWORD = "of-the-tests"
_USER = "postgres"


class PostgresServer:
    """One server with a database `postgres` and the user `postgres`; its data outlive `kill` and `start`."""

    def __init__(self) -> None:
        self._bin = install_postgres()
        self._folder = Path(tempfile.mkdtemp(prefix="sparkstorm-postgres-"))
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            os.chown(self._folder, pwd.getpwnam(_USER).pw_uid, pwd.getpwnam(_USER).pw_gid)
            self._as_user = {"user": _USER, "group": pwd.getpwnam(_USER).pw_gid, "extra_groups": []}
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self.port = free_port()
        self.url = f"postgresql+psycopg://{_USER}@127.0.0.1:{self.port}/postgres"
        auth = ["-U", _USER, "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync"]
        self._run("initdb", "-D", str(self._folder / "data"), *auth).wait(180)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, patience_s: float = 180.0) -> None:
        """Start it, and wait until it answers."""
        sockets = ["-c", f"unix_socket_directories={self._folder}", "-c", "listen_addresses=127.0.0.1"]
        self._process = self._run("postgres", "-D", str(self._folder / "data"), "-p", str(self.port), *sockets)
        deadline = time.monotonic() + patience_s
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {(self._folder / 'log').read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def run(self, *statements: str) -> list[Any]:
        """Run statements; the rows of the last one that has any."""
        import psycopg  # of the extra `test`: this module is in the wheel, which does not ask for it

        rows: list[Any] = []
        with psycopg.connect(self._address(), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else rows
        return rows

    def kill(self) -> None:
        """End it and its children as kill -9 does; return when all of them are gone.

        Each child leads a process group of its own, and the shared memory of one that lives on keeps the next server from starting.
        """
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # it forks no child between the look at /proc and its end
        children = descendants(self._process.pid)
        for pid in (self._process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        deadline = time.monotonic() + 30.0
        while not all(is_gone(pid) for pid in children):
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL's processes {sorted(children)} are not gone 30 s after SIGKILL")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it and delete its data."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self._bin / program), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder, start_new_session=True,
                **self._as_user,
            )  # fmt: skip

    def _address(self) -> str:
        return f"postgresql://{_USER}:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def _answers(self) -> bool:
        import psycopg

        try:
            return bool(self.run("SELECT 1"))
        except psycopg.OperationalError:
            return False


def install_postgres() -> Path:
    """Return the folder of PostgreSQL's programs; root installs Debian's package where there is none. RuntimeError otherwise."""
    if not (found := _programs()) and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "postgresql"], check=False, capture_output=True)
        found = _programs()
    if not found:
        raise RuntimeError("PostgreSQL is not installed: apt-get install postgresql")
    return found[-1]


def _programs() -> list[Path]:
    on_path = shutil.which("initdb")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return [path.parent for path in found] or ([Path(on_path).resolve().parent] if on_path else [])
