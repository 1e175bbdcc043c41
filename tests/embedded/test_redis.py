"""Owns the tests of the embedded Redis and of the check on a user's one."""

from __future__ import annotations

import pytest

from sparkstorm.embedded import RedisServer

pytestmark = pytest.mark.system


def test_redis_answers_with_its_password_and_keeps_what_it_is_given(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.set("embedded:key", b"value")
        assert client.get("embedded:key") == b"value"
