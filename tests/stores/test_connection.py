"""The connection file, and the values derived from its secret."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.common.config import Conf, merge
from sparkstorm.common.errors import (
    InvalidConfigError,
    StoreInconsistentError,
    StoreUnavailableError,
)
from sparkstorm.common.model.worker_spec import RedisAddress, RedisStores
from sparkstorm.common.stores.addresses import check_addresses, not_configured, redis_stores
from sparkstorm.common.stores.connection import (
    Connection,
    ZooKeeperEndpoint,
    load_connection,
    new_secret,
    parse_redis_url,
    redis_password,
    save_connection,
    signing_key,
    zookeeper_password,
)
from sparkstorm.common.stores.passwords import exposed
from sparkstorm.common.stores.redis_client import check_redis


def a_connection() -> Connection:
    redis = RedisAddress("127.0.0.1", 6379, "of-redis")
    return Connection(
        redis, ZooKeeperEndpoint("127.0.0.1:2181", "/storm", "me", "of-zookeeper"), new_secret()
    )


def test_a_saved_connection_is_loaded_unchanged_and_only_its_owner_may_read_it(
    tmp_path: Path,
) -> None:
    path, connection = tmp_path / "new-folder" / "connection.json", a_connection()
    save_connection(path, connection)
    assert load_connection(path) == connection
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["connection.json"]


def test_a_file_of_a_version_without_tls_is_still_read(tmp_path: Path) -> None:
    path, connection = tmp_path / "connection.json", a_connection()
    save_connection(path, connection)
    fields = json.loads(path.read_text())
    del fields["redis"]["tls_files"], fields["zookeeper"]["tls"]
    path.write_text(json.dumps(fields))
    assert load_connection(path) == connection
    del fields["redis"]["password"]
    path.write_text(json.dumps(fields))
    with pytest.raises(InvalidConfigError, match=r"redis\.password: missing"):
        load_connection(path)


def test_saving_again_replaces_a_file_that_others_could_read(tmp_path: Path) -> None:
    path, connection = tmp_path / "connection.json", a_connection()
    path.write_text("{}")
    path.chmod(0o644)
    save_connection(path, connection)
    assert load_connection(path) == connection


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_touch_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "connection.json"
    save_connection(path, a_connection())
    path.chmod(mode)
    with pytest.raises(InvalidConfigError, match=f"chmod 600 {path}"):
        load_connection(path)


def test_a_link_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "connection.json"
    save_connection(path, a_connection())
    (tmp_path / "link").symlink_to(path)
    for name in ("link", ".", "missing"):
        sentence = f"connection file {tmp_path / name} (cannot be read|is not one)"
        with pytest.raises(InvalidConfigError, match=sentence):
            load_connection(tmp_path / name)


@pytest.mark.parametrize("damage", ["not json", "{}", "[]", "\udcff", "x" * 70_000])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "connection.json"
    save_connection(path, a_connection())
    path.write_bytes(damage.encode("utf-8", "surrogateescape"))
    with pytest.raises(InvalidConfigError, match=r"connection\.json"):
        load_connection(path)


@pytest.mark.parametrize("secret", ["", "abcd", "z" * 64])
def test_a_weak_or_damaged_secret_is_refused(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "connection.json"
    save_connection(path, a_connection())
    path.write_text(json.dumps({**json.loads(path.read_text()), "secret": secret}))
    with pytest.raises(InvalidConfigError, match="its secret is damaged"):
        load_connection(path)


def test_passwords_and_keys_follow_from_the_secret_and_differ_from_each_other() -> None:
    one, other = new_secret(), new_secret()
    derived = [redis_password(one), zookeeper_password(one), signing_key(one).hex(), one]
    assert len(set(derived)) == 4
    assert redis_password(one) == redis_password(one) != redis_password(other)


def test_derivation_stays_the_same_from_release_to_release_so_that_kept_data_opens() -> None:
    result = signing_key("00" * 32).hex()
    assert result == "8b4591022b7f3905b4d8800dd54356efbaf6740fa1a7c43153b38f7e9ce8d282"


def test_no_repr_shows_a_password() -> None:
    connection = a_connection()
    assert not [
        secret
        for secret in ("of-redis", "of-zookeeper", connection.secret)
        if secret in repr(connection)
    ]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://somewhere", RedisAddress("somewhere", 6379)),
        ("redis://:p%40ss@somewhere:7000/3", RedisAddress("somewhere", 7000, "p@ss", "", 3)),
        ("rediss://me:pw@[::1]:7000", RedisAddress("::1", 7000, "pw", "me", 0, True)),
        ("redis+sentinel://s/m", RedisAddress("s", 26379, master="m", sentinels=("s:26379",))),
        (
            "rediss+sentinel://me:p%40@s:1,t/m/2#name",
            RedisAddress(
                "s", 1, "p@", "me", 2, True, name="name", master="m", sentinels=("s:1", "t:26379")
            ),
        ),
        (
            "redis+cluster://n",
            RedisAddress("n", 6379, nodes=("n:6379",)),
        ),
        (
            "rediss+cluster://me:p%40+@n:1,[::1]/0#name",
            RedisAddress("n", 1, "p@+", "me", 0, True, name="name", nodes=("n:1", "[::1]:6379")),
        ),
    ],
)
def test_a_redis_url_is_taken_apart(url: str, expected: RedisAddress) -> None:
    assert parse_redis_url(url) == expected


def test_a_password_beside_the_url_counts_only_where_the_url_has_none() -> None:
    assert parse_redis_url("redis://h", "beside").password == "beside"
    assert parse_redis_url("redis://:inside@h", "beside").password == "inside"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "somewhere:6379",
        "http://h",
        "redis://",
        "redis://:geheim@h:x",
        "redis://:geheim@h/db",
        "redis://h?a=1",
        "redis+sentinel://h",
        "redis+sentinel://:geheim@/m",
        "redis+sentinel://:geheim@h:x/m",
        "redis+sentinel://:geheim@h/m/x",
        "http+sentinel://:geheim@h/m",
        "redis+sentinel://:geheim@h/m?a=1",
        "redis+sentinel://h,,i/m",
        "redis+cluster://",
        "redis+cluster://:geheim@",
        "redis+cluster://:geheim@h:x",
        "redis+cluster://:geheim@h,,i",
        "redis+cluster://:geheim@h/words",
        "redis+cluster://:geheim@h?a=1",
        "redis+cluster://:geheim@h#a/b",
        "redis+clusters://:geheim@h",
        "http+cluster://:geheim@h",
    ],
)
def test_a_bad_redis_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"sparkstorm\.redis\.url") as caught:
        parse_redis_url(url)
    assert "geheim" not in str(caught.value)


def test_a_database_of_a_cluster_is_refused_since_it_has_one() -> None:
    sentence = "a cluster has database 0 alone, and the URL says 3"
    with pytest.raises(InvalidConfigError, match=sentence):
        parse_redis_url("redis+cluster://h,i/3")


def test_sentinels_that_do_not_answer_are_named() -> None:
    at = RedisAddress("127.0.0.1", 1, master="words", sentinels=("127.0.0.1:1", "127.0.0.1:2"))
    words = r"no Sentinel names a primary words: asked at 127\.0\.0\.1:1, 127\.0\.0\.1:2, the last"
    with pytest.raises(StoreUnavailableError, match=words):
        check_redis(at)


# -- URLs of several stores ------------------------------------------------------------------------


def conf_of(urls: list[Any] | None, **more: Any) -> Conf:
    return merge(
        {
            "sparkstorm.redis.urls": urls,
            **{key.replace("__", "."): value for key, value in more.items()},
        }
    )


@pytest.mark.parametrize(
    ("urls", "names"),
    [
        (["redis://a"], ["a:6379"]),
        (
            ["redis://a", "redis://:geheim@b:7000/2", "redis://c#fast.1"],
            ["a:6379", "b:7000/2", "fast.1"],
        ),
        (["redis://a#one", "redis://a/1#two"], ["one", "two"]),
    ],
)
def test_a_store_is_named_by_its_url_or_by_its_address_without_a_password(
    urls: list[str], names: list[str]
) -> None:
    stores = redis_stores(conf_of(urls, sparkstorm__redis__password="of all"))
    assert stores is not None and [each.name for each in stores.all()] == names
    assert {each.password for each in stores.all()} <= {"of all", "geheim"}


def test_one_url_is_a_store_without_a_name_as_before() -> None:
    result = redis_stores(merge({"sparkstorm.redis.url": "redis://h"}))
    assert result == RedisStores(RedisAddress("h", 6379))
    assert redis_stores(merge({})) is None and not_configured(merge({})) == ["redis", "zookeeper"]
    assert not_configured(conf_of(["redis://a"])) == ["zookeeper"]


@pytest.mark.parametrize(
    ("urls", "words"),
    [
        (
            ["redis://a", "http://:geheim@b"],
            r"sparkstorm\.redis\.urls, number 2: expected redis://",
        ),
        (["redis://a", 7], r"number 2: expected the URL of a Redis as a text"),
        (["redis://a#of two words"], r"number 1: a store's name \(#name\) has up to 60 letters"),
        (
            ["redis://:geheim@a#x", "redis://:geheim@b#x"],
            r"number 2 is the same store as number 1 \(x\)",
        ),
        (
            ["redis+cluster://a,b#x", "redis+cluster://:geheim@c,b:6379#y"],
            r"number 2 is the same store as number 1 \(x\)",
        ),
        (
            ["redis://:geheim@a#x", "redis://me@a:6379/0#y"],
            r"number 2 is the same store as number 1",
        ),
    ],
)
def test_urls_that_are_unfit_are_refused_without_showing_them(urls: list[Any], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words) as caught:
        check_addresses(conf_of(urls))
    assert "geheim" not in str(caught.value)


def test_one_key_or_the_other() -> None:
    with pytest.raises(InvalidConfigError, match="are both set: keep one of them"):
        check_addresses(conf_of(["redis://a"], sparkstorm__redis__url="redis://b"))


def test_the_urls_are_a_secret_of_the_driver() -> None:
    own = {"sparkstorm.redis.urls": ["redis://:geheim@a", "redis://b"]}
    conf = merge(own)
    assert "geheim" not in repr(
        [conf, conf.for_slots(), conf.for_clients(), conf.without_secrets()]
    )
    assert merge(conf.for_slots())["sparkstorm.redis.urls"] is None
    assert (
        "sparkstorm.redis.urls on the command line shows a password"
        in exposed(own, own, "nowhere")[0]
    )
    assert (
        exposed(
            {"sparkstorm.redis.urls": ["redis://b"]},
            {"sparkstorm.redis.urls": ["redis://b"]},
            "nowhere",
        )
        == []
    )


def test_a_connection_file_holds_all_stores_and_an_older_one_its_only_one(tmp_path: Path) -> None:
    keeper, others = ZooKeeperEndpoint("h:1", "/storm", ""), (RedisAddress("b", 2, "pw", name="b"),)
    file = tmp_path / "connection.json"
    save_connection(file, Connection(RedisAddress("a", 1), keeper, new_secret(), others))
    assert load_connection(file).stores == RedisStores(RedisAddress("a", 1), others)
    fields = json.loads(file.read_text())
    del fields["other_redis"]
    file.write_text(json.dumps(fields))
    assert load_connection(file).stores == RedisStores(RedisAddress("a", 1))


def test_a_topologys_store_is_found_by_name_and_an_unknown_one_is_refused_in_a_sentence() -> None:
    home, other = RedisAddress("a", 1, name="a"), RedisAddress("b", 1, "geheim", name="b")
    stores = RedisStores(home, (other,))
    assert [stores.of("t-1-1", name) for name in ("", "a", "b")] == [home, home, other]
    sentence = r"t-1-1 are in the store 'c', which is not known here \(a, b\)"
    with pytest.raises(StoreInconsistentError, match=sentence):
        stores.of("t-1-1", "c")
    sentence = r"'b', which is not known here \(one store without a name\)"
    with pytest.raises(StoreInconsistentError, match=sentence):
        RedisStores(RedisAddress("a", 1)).of("t-1-1", "b")
