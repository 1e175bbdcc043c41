"""Driver of `sparkstorm dev`: a standing cluster with its page, and next to it Kafka, PostgreSQL and
an object store with data.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sparkstorm.common.config import merge, parse_override
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.stores.addresses import connection_path
from sparkstorm.common.stores.contexts import VARIABLE
from sparkstorm.common.stores.folders import discard_folder, own_folder
from sparkstorm.driver.exit_status import guarded
from sparkstorm.driver.job_options import add_dev_options
from sparkstorm.driver.standing import hold, require_web
from sparkstorm.extensions.embedded.process import refuse_busy
from sparkstorm.testing.servers import KafkaServer, ObjectStore, PostgresServer
from sparkstorm.testing.servers.server import OwnServer

_Server = TypeVar("_Server", bound="OwnServer")
FOLDER = Path("storm-local", "dev")
EXITS = (
    "exit status: 0 stopped from outside (Ctrl-C, SIGTERM), 1 failed, 130 stopped while starting"
)
TOPIC = BUCKET = "clicks"
CLICKS = 6000
_PARTITIONS = 3
_USERS = 20
_OUT_OF_ORDER_MS = 5000
_FIRST_MS = 1_790_000_000_000
_PAGES = ("/", "/shop/shoes/17", "/shop/shoes/4", "/shop/hats/3", "/shop/books/12", "/about")
_TABLES = (
    "CREATE TABLE users (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT NOT NULL UNIQUE, country TEXT NOT NULL)",
    "CREATE TABLE sessions (name TEXT NOT NULL, clicks BIGINT NOT NULL, from_ms BIGINT NOT NULL, to_ms BIGINT NOT NULL)",
)


@dataclass(frozen=True)
class Servers:
    """The three servers, started and filled."""

    kafka: KafkaServer
    postgres: PostgresServer
    store: ObjectStore


def main(arguments: Sequence[str], prog: str = "sparkstorm dev") -> int:
    """Hold the servers and the cluster until stopped; the result is the process's exit status."""
    options = _parse(arguments, prog)
    return guarded(
        lambda: hold_all(dict(parse_override(override) for override in options.c), options.web)
    )


def hold_all(own: Mapping[str, Any], web_port: int) -> int:
    """Start the servers, fill them and hold a cluster next to them until Ctrl-C; the next start
    begins anew.
    """
    require_web("servers", web_port)
    folder = FOLDER.absolute()
    if "storm.local.dir" in own:
        raise InvalidConfigError(
            "storm.local.dir cannot be set here: sparkstorm dev keeps everything in storm-local/dev"
        )
    refuse_busy(folder / "kafka", "kafka")
    discard_folder(folder)
    own_folder(folder)
    conf = merge({**own, "storm.local.dir": str(folder / "cluster")})
    print(
        "starting Kafka, PostgreSQL and an object store (the first time they are fetched) ...",
        flush=True,
    )
    with started(folder) as servers:
        variables = environment(servers, folder, connection_path(conf).resolve())
        os.environ.update(variables)  # of the slots, so of the workers
        (folder / "env").write_text(
            "".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables.items())
        )
        for line in _up_lines(servers):
            print(line, flush=True)
        return hold(conf, web_port, "the next start deletes its topologies and all data")


@contextlib.contextmanager
def started(folder: Path, users: int = _USERS, clicks: int = CLICKS) -> Iterator[Servers]:
    """Start the servers side by side and fill them with the sample data; they end with the
    block.
    """
    password = secrets.token_urlsafe(16)
    secret = folder / "postgres.password"
    with open(
        os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(password)
    made = sample_clicks(clicks, users)
    (folder / "clicks.jsonl").write_text(
        "".join(f"{json.dumps(click)}\n" for click in made), encoding="utf-8"
    )
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(3) as pool:
            begun = (
                pool.submit(_kafka, folder, made),
                pool.submit(_postgres, password, users),
                pool.submit(_store, folder),
            )
        for future in begun:
            if future.exception() is None:
                stack.callback(future.result().stop)
        yield Servers(begun[0].result(), begun[1].result(), begun[2].result())


def _kafka(folder: Path, clicks: Sequence[Mapping[str, Any]]) -> KafkaServer:
    with _kept(KafkaServer(folder / "kafka")) as kafka:
        kafka.create_topic(TOPIC, _PARTITIONS)
        kafka.send(TOPIC, clicks, key="user")
    return kafka


def _postgres(password: str, users: int) -> PostgresServer:
    countries = ("AT", "BR", "CA", "DK")
    rows = ", ".join(f"('user {n}', '{countries[n % len(countries)]}')" for n in range(users))
    with _kept(PostgresServer(password)) as postgres:
        postgres.run(*_TABLES, f"INSERT INTO users (name, country) VALUES {rows}")
    return postgres


def _store(folder: Path) -> ObjectStore:
    with _kept(ObjectStore(folder / "object-store")) as store:
        store.create_bucket(BUCKET)
    return store


@contextlib.contextmanager
def _kept(server: _Server) -> Iterator[_Server]:
    """Start a server that goes on behind the block, unless the block raises."""
    try:
        server.start()
        yield server
    except BaseException:
        server.stop()
        raise


def sample_clicks(count: int, users: int = _USERS) -> list[dict[str, Any]]:
    """Return clicks (user, page, at_ms), the same ones at each call, out of order by less than five
    seconds.

    Every thousandth is of a shop's front page, which has no category: code that expects one fails
    on it.
    """
    chance = random.Random(0)
    at_ms = _FIRST_MS
    clicks = []
    for number in range(1, count + 1):
        at_ms += chance.choice([100, 1000, 8000])
        page = "/shop" if number % 1000 == 0 else chance.choice(_PAGES)
        clicks.append({"user": f"user {chance.randrange(users)}", "page": page, "at_ms": at_ms})
    return sorted(clicks, key=lambda click: click["at_ms"] + chance.randrange(_OUT_OF_ORDER_MS))


def environment(servers: Servers, folder: Path, connection: Path) -> dict[str, str]:
    """Return the variables by which job files, clients and workers find the cluster and the
    servers.
    """
    return {
        VARIABLE: str(connection),
        "DEV_KAFKA": servers.kafka.address,
        "DEV_POSTGRES": servers.postgres.url,
        "DEV_POSTGRES_PASSWORD_FILE": str(folder / "postgres.password"),
        "DEV_BUCKET": f"s3://{BUCKET}",
        **servers.store.environment,
    }


def _up_lines(servers: Servers) -> list[str]:
    return [
        f"Kafka is at {servers.kafka.address}: topic {TOPIC}, {CLICKS:,} clicks in {_PARTITIONS} partitions",
        f"PostgreSQL is at 127.0.0.1:{servers.postgres.port}: table users, {_USERS} rows, and an empty table sessions",
        f"an object store is at {servers.store.url}: bucket {BUCKET}",
        f"their addresses, for other terminals:  . {FOLDER}/env",
        "other users of this machine reach Kafka and the object store",
    ]


def _parse(arguments: Sequence[str], prog: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=prog, description=hold_all.__doc__, epilog=EXITS)
    add_dev_options(parser)
    return parser.parse_args(list(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
