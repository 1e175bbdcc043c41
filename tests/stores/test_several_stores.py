"""URLs of several stores: their names, what is refused, and that no message, closure record or
configuration shows a password.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.common.config import Conf, merge
from sparkstorm.common.errors import InvalidConfigError, StoreInconsistentError
from sparkstorm.common.model.worker_spec import RedisAddress, RedisStores
from sparkstorm.common.stores.addresses import check_addresses, not_configured, redis_stores
from sparkstorm.common.stores.connection import (
    Connection,
    ZooKeeperEndpoint,
    load_connection,
    new_secret,
    save_connection,
)
from sparkstorm.common.stores.passwords import exposed


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
    assert redis_stores(merge({"sparkstorm.redis.url": "redis://h"})) == RedisStores(
        RedisAddress("h", 6379)
    )
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
    with pytest.raises(
        StoreInconsistentError,
        match=r"t-1-1 are in the store 'c', which is not known here \(a, b\)",
    ):
        stores.of("t-1-1", "c")
    with pytest.raises(
        StoreInconsistentError, match=r"'b', which is not known here \(one store without a name\)"
    ):
        RedisStores(RedisAddress("a", 1)).of("t-1-1", "b")
