"""SqlLookup, RedisLookup and HttpLookup: against SQLite, a real Redis and an HTTP server."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from sparkstorm.api import TopologyBuilder, TopologyContext
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.connectors import HttpLookup, RedisLookup, SqlLookup
from sparkstorm.extensions.embedded import RedisServer
from sparkstorm.streams import LookupBolt
from sparkstorm.testing import FeederSpout, complete_topology

CONTEXT = cast(TopologyContext, None)
FIELDS = {"country": "string", "age": "bigint"}


def opened(lookup: Any, fields: Any = FIELDS) -> Any:
    lookup.open(fields, CONTEXT)
    return lookup


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = tmp_path / "users.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE users (name TEXT, shop INTEGER, country TEXT, years INTEGER)")
    rows = [("ann", 1, "NL", 30), ("bob", 1, "BE", None), ("ann", 2, "FR", 31)]
    connection.executemany("INSERT INTO users VALUES (?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return f"sqlite:///{path}"


def test_rows_of_a_table_are_looked_up_by_one_column_or_several(database: str) -> None:
    one = opened(SqlLookup(database, "users", "shop", columns={"age": "years"}))
    assert one.fetch([1, 2, 3])[2] == ("FR", 31)
    both = opened(SqlLookup(database, "users", ["name", "shop"], columns={"age": "years"}))
    keys = [("ann", 1), ("ann", 2), ("zoe", 1)]
    assert both.fetch(keys) == {("ann", 1): ("NL", 30), ("ann", 2): ("FR", 31)}
    both.close()


def test_a_query_may_join_and_compute(database: str) -> None:
    query = "SELECT name, max(country), count(*) FROM users WHERE name IN :keys GROUP BY name"
    lookup = opened(SqlLookup(database, query=query))
    assert lookup.fetch(["ann", "bob", "zoe"]) == {"ann": ("NL", 2), "bob": ("BE", 1)}


def test_a_key_that_the_database_refuses_fails_alone(database: str) -> None:
    lookup = opened(SqlLookup(database, "users", "shop", columns={"age": "years"}))
    answers = lookup.fetch([2, 2**70])
    assert answers[2] == ("FR", 31)
    assert isinstance(answers[2**70], ValueError)


@pytest.mark.parametrize("key", [Decimal(1), UUID(int=1)])
def test_a_key_of_a_type_that_the_driver_does_not_take_fails_alone(key: Any, database: str) -> None:
    lookup = opened(SqlLookup(database, "users", "shop", columns={"age": "years"}))
    answers = lookup.fetch([2, key])
    assert answers[2] == ("FR", 31)
    assert "is not supported" in str(answers[key])
    lookup.close()


def test_an_answer_by_a_key_of_another_type_is_not_taken_for_a_missing_one(database: str) -> None:
    lookup = opened(SqlLookup(database, "users", "shop", columns={"age": "years"}))
    answers = lookup.fetch([2, "1", 3])
    assert list(answers) == [2, "1"] and answers[2] == ("FR", 31)
    assert "it answers the key 1, which was not asked for: its type or case" in str(answers["1"])
    lookup.close()


@pytest.mark.parametrize("other", [1, "ANN"])
def test_a_key_in_another_form_than_its_neighbours_is_no_missing_one(
    other: Any, tmp_path: Path
) -> None:
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.execute("CREATE TABLE t (k TEXT COLLATE NOCASE, v INT)")
    connection.execute("INSERT INTO t VALUES ('1', 5), ('ann', 6)")
    connection.commit()
    connection.close()
    lookup = opened(SqlLookup(f"sqlite:///{tmp_path}/a.db", "t", "k"), ["v"])
    alone = lookup.fetch([other])
    answers = lookup.fetch(["1", other, "ann", "zoe"])
    assert answers.pop("1") == (5,) and answers.pop("ann") == (6,)
    assert str(answers) == str(alone) and "which was not asked for" in str(answers[other])
    lookup.close()


def test_a_bolt_looks_up_in_a_table(database: str) -> None:
    bolt = LookupBolt(
        SqlLookup(database, "users", "name"), "user", keep=["user"], add=["country"], kind="inner"
    )
    builder = TopologyBuilder()
    builder.set_spout("users", FeederSpout(["user"]))
    builder.set_bolt("country", bolt, inputs="users")
    rows = [["bob"], ["zoe"], ["bob"]]
    assert complete_topology(builder.build(), {"users": rows})["country"] == [("bob", "BE")] * 2


@pytest.mark.parametrize(
    ("lookup", "sentence"),
    [
        (lambda url: SqlLookup(url, "gone", "name"), "table gone at .*no such table"),
        (
            lambda url: SqlLookup(url, "users", "nome"),
            "table users at .*no such column: users.nome",
        ),
        (
            lambda url: SqlLookup(url, query="SELECT name FROM users WHERE name IN :keys"),
            "gives 1 columns; wanted are the key's 1, then country, age",
        ),
        (
            lambda url: SqlLookup(url, query="SELECT ':x' FROM users WHERE name IN :keys"),
            r"the query at .* asks for :x, and is given :keys alone; write \\: for a colon",
        ),
        (
            lambda url: SqlLookup(url, "users", ["name", "shop"], columns={"age": "years"}),
            "table users at .* is looked up by name, shop, and the bolt's key has 1 fields",
        ),
    ],
)
def test_a_mistake_that_lasts_is_named(lookup: Any, sentence: str, database: str) -> None:
    with pytest.raises(InvalidConfigError, match=sentence):
        opened(lookup(database)).fetch(["ann"])


def test_a_table_that_is_missing_is_found_before_the_first_key(database: str) -> None:
    with pytest.raises(InvalidConfigError, match="no such table"):
        opened(SqlLookup(database, "gone", "name"))
    with pytest.raises(InvalidConfigError, match="no such column"):
        opened(SqlLookup(database, "users", ["name", "gone"]))


def test_a_server_that_is_away_is_no_error_before_the_first_key() -> None:
    for lookup in (
        RedisLookup("redis://127.0.0.1:1", "{}"),
        HttpLookup("http://127.0.0.1:1/{}"),
    ):
        made = opened(lookup)
        with pytest.raises(ConnectionError, match=r"127.0.0.1:1.*[Rr]efused"):
            made.fetch(["ann"])


def test_hashes_and_texts_of_a_redis_are_looked_up(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_REDIS_PASSWORD", redis_server.password)
    url = f"redis://{redis_server.host}:{redis_server.port}"
    with redis_server.client() as client:
        client.hset("user:ann:1", mapping={"country": "NL", "age": "30"})
        client.hset("user:bob:1", mapping={"age": "old"})
        client.set("user:eve:1", "no hash")
        client.set("city:ann", "Delft")
        client.set(b"city:\xff", "Nice")
    lookup = opened(RedisLookup(url, "user:{}:{}", password_env="TEST_REDIS_PASSWORD"))
    answers = lookup.fetch([("ann", 1), ("bob", 1), ("eve", 1), ("zoe", 1)])
    assert answers["ann", 1] == ("NL", 30)
    assert isinstance(answers["bob", 1], ValueError) and "WRONGTYPE" in str(answers["eve", 1])
    assert ("zoe", 1) not in answers
    lookup.close()
    text = RedisLookup(url, "city:{}", text=True, password_env="TEST_REDIS_PASSWORD")
    result = opened(text, ["city"]).fetch(["ann", b"\xff", "bob"])
    assert result == {"ann": ("Delft",), b"\xff": ("Nice",)}
    text.close()
    with redis_server.client() as client:
        for key, value in (("a", "Y"), ("b", "no"), ("c", "on")):
            client.set(f"on:{key}", value)
    flag = RedisLookup(url, "on:{}", text=True, password_env="TEST_REDIS_PASSWORD")
    flags = opened(flag, {"on": "boolean"}).fetch(["a", "b", "c"])
    assert (flags["a"], flags["b"]) == ((True,), (False,))
    assert "b'on' is no boolean" in str(flags["c"])
    flag.close()


class Users(BaseHTTPRequestHandler):
    """Answers GET /users/NAME and POST /users, and counts connections."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        cast(Any, self.server).connections += 1

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if name == "large":
            self._stream(b"[" + b"1," * (1 << 19) + b"1]")
            return
        if name == "deep":
            self._answer(200, "[" * 100_000)
            return
        status = {"zoe": 404, "mallory": 400, "down": 503, "secret": 401}.get(name, 200)
        text = "[]" if name == "list" else json.dumps({"country": name.upper(), "age": len(name)})
        self._answer(status, text)
        if name == "last":  # without saying so
            self.close_connection = True

    def do_POST(self) -> None:
        names = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == "Bearer secret"
        rows = {
            "/".join(map(str, name)) if isinstance(name, list) else str(name): {
                "country": str(name).upper()
            }
            for name in names
            if name != "zoe"
        }
        self._answer(200, json.dumps(rows))

    def _stream(self, text: bytes) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(OSError):  # the client may have enough of it
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text))

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Any]:
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Users)
    made.connections = 0
    made.url = f"http://127.0.0.1:{made.server_address[1]}/users"
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_objects_are_looked_up_by_http(server: Any) -> None:
    lookup = opened(HttpLookup(f"{server.url}/{{}}"))
    answers = lookup.fetch(["ann", "zoe", "mallory", "list", "deep", "last"])
    assert answers["ann"] == {"country": "ANN", "age": 3}
    assert "zoe" not in answers
    assert "answers 400" in str(answers["mallory"]) and "no object" in str(answers["list"])
    assert "/deep answers no JSON" in str(answers["deep"])
    assert server.connections == 1
    assert lookup.fetch(["a b/c"])["a b/c"]["country"] == "A%20B%2FC"
    assert server.connections == 2
    with pytest.raises(ConnectionError, match="/down answers 503"):
        lookup.fetch(["down"])
    with pytest.raises(InvalidConfigError, match=r"/secret answers 401.*name the token's place"):
        lookup.fetch(["secret"])
    lookup.close()


def test_an_answer_in_chunks_that_is_too_large_fails_its_key_alone(server: Any) -> None:
    lookup = opened(HttpLookup(f"{server.url}/{{}}"))
    answers = lookup.fetch(["ann", "large", "bob"])
    assert answers["bob"] == {"country": "BOB", "age": 3}
    assert "more than 1,048,576 bytes" in str(answers["large"])
    lookup.close()


def test_a_key_of_dots_leads_to_no_other_folder(server: Any) -> None:
    lookup = opened(HttpLookup(f"{server.url}/{{}}/row"))
    answers = lookup.fetch(["..", ".", "..."])
    assert "a path of dots, and the key is '..'" in str(answers[".."])
    assert isinstance(answers["."], ValueError) and not isinstance(answers["..."], ValueError)
    assert server.connections == 1
    lookup.close()


def test_a_key_of_bytes_stands_in_a_url_as_it_is(server: Any) -> None:
    lookup = opened(HttpLookup(f"{server.url}/{{}}"))
    assert lookup.fetch([b"b\xff"])[b"b\xff"]["country"] == "B%FF"
    lookup.close()


@pytest.mark.parametrize("key", [b"bob", math.nan, -math.inf])
def test_keys_that_json_lacks_fail_alone(
    key: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_TOKEN", "secret")
    lookup = opened(HttpLookup(server.url, post=True, token_env="TEST_TOKEN"))
    answers = lookup.fetch(["ann", key])
    assert answers["ann"] == {"country": "ANN"}
    assert f"which has no place for the key {key}" in str(answers[key])
    lookup.close()


def test_keys_of_a_call_may_travel_together(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_TOKEN", "secret")
    lookup = opened(HttpLookup(server.url, post=True, token_env="TEST_TOKEN"))
    answers = lookup.fetch(["ann", "zoe", "bob"])
    assert answers == {"ann": {"country": "ANN"}, "bob": {"country": "BOB"}}
    lookup.close()


def test_keys_of_one_text_get_their_own_answers(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_TOKEN", "secret")
    lookup = opened(HttpLookup(server.url, post=True, token_env="TEST_TOKEN"))
    keys: list[Any] = [1, "1", ("a/b", "c"), ("a", "b/c"), "zoe"]
    answers = lookup.fetch(keys)
    wanted = {key: str(list(key) if isinstance(key, tuple) else key).upper() for key in keys[:4]}
    assert {key: answer["country"] for key, answer in answers.items()} == wanted
    lookup.close()


WRONG: dict[str, tuple[Any, str]] = {
    "neither table nor query": (
        lambda: SqlLookup("sqlite://"),
        "SqlLookup: name a table and the columns of its key, or a query; not both",
    ),
    "a table without a key": (lambda: SqlLookup("sqlite://", "users"), "the columns of its key"),
    "a query without keys": (
        lambda: SqlLookup("sqlite://", query="SELECT 1"),
        "the query 'SELECT 1' asks for no keys: it needs WHERE ... IN :keys",
    ),
    "a query and a key": (
        lambda: SqlLookup("sqlite://", query="SELECT a, b FROM c WHERE a IN :keys", key="a"),
        "key, columns and schema are those of a table; a query has its own, so drop them",
    ),
    "a column of an unknown field": (
        lambda: opened(SqlLookup("sqlite://", "users", "name", columns={"aeg": "years"})),
        "columns names the field 'aeg'; those looked up are country, age; did you mean 'age'?",
    ),
    "a password in a URL of HTTP": (
        lambda: HttpLookup("https://me:secret@host/{}"),
        "take the password out of the URL, and name its place with token_file or token_env",
    ),
    "a password in a URL": (
        lambda: SqlLookup("postgresql://me:secret@host/db", "users", "name"),
        "SqlLookup: take the password out of the URL",
    ),
    "a pattern without a place": (
        lambda: RedisLookup("redis://host", "user"),
        "RedisLookup: 'user' has no place for the key: write {} where it stands",
    ),
    "more places than fields": (
        lambda: opened(RedisLookup("redis://127.0.0.1:1", "{}:{}")).fetch(["a"]),
        "'{}:{}' has 2 places, and the key 1 fields",
    ),
    "a text of two fields": (
        lambda: opened(RedisLookup("redis://host", "{}", text=True)),
        "RedisLookup: a text is one field, and 2 are wanted: country, age",
    ),
    "a type that no text has": (
        lambda: opened(RedisLookup("redis://host", "{}"), {"born": "date"}),
        "RedisLookup: field 'born' is 'date'; of a text it can make any, string, tinyint",
    ),
    "a time-out that is text": (
        lambda: HttpLookup("https://host/{}", timeout_secs=cast(Any, "5")),
        "HttpLookup: timeout_secs is '5'; write a number of at least 0",
    ),
    "another scheme": (
        lambda: HttpLookup("ftp://host/{}"),
        "HttpLookup: 'ftp://host/{}' is no URL of the form https://host/path/{}",
    ),
    "a place in a URL that is posted to": (
        lambda: HttpLookup("https://host/{}", post=True),
        "with post=True the keys travel in the body; drop the {} or post",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_source_is_refused_in_a_sentence(case: str) -> None:
    make, sentence = WRONG[case]
    with pytest.raises(InvalidConfigError) as error:
        make()
    assert sentence in str(error.value)
