"""A clean server for tests of the manager."""

from __future__ import annotations

import pytest
import redis

from trimtab.embedded import EmbeddedRedis


@pytest.fixture
def raw(server: EmbeddedRedis) -> redis.Redis:
    client = redis.Redis.from_url(server.url)
    client.flushall()
    return client
