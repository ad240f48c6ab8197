"""Redis with its append-only file: killed and brought back, emptied, set back to what it was some seconds ago."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import redis

from trimtab.embedded import EmbeddedRedis
from trimtab.embedded.redis_server import EmbeddedRedisError


class RedisProcess:
    """For one thread at a time."""

    def __init__(self) -> None:
        self._server = EmbeddedRedis(appendonly=True)
        self._server.start()
        self.away_since: float | None = None
        self.troubled_at = -1e9
        """When it last was away, lost something or came back."""

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def port(self) -> int:
        return self._server.port

    def kill(self) -> None:
        self._server.kill()
        self.away_since = self.troubled_at = time.monotonic()

    def bring_back(self) -> None:
        self._server.start()
        self.away_since, self.troubled_at = None, time.monotonic()

    def flush(self) -> None:
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
        self.troubled_at = time.monotonic()

    def copy_files(self, target: Path) -> None:
        """As they are on disk: what the server wrote up to now, the last command perhaps in part."""
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self._files(), target)

    def go_back_to(self, copy: Path) -> None:
        """The server dies, and returns with an older state of its files."""
        self.kill()
        shutil.rmtree(self._files())
        shutil.copytree(copy, self._files())
        try:
            self.bring_back()
        except EmbeddedRedisError:
            # Copied in the middle of a rewrite: then it has lost everything.
            shutil.rmtree(self._files())
            self.bring_back()

    def stop(self) -> None:
        self._server.stop()

    def _files(self) -> Path:
        assert self._server.directory is not None
        return self._server.directory / "appendonlydir"
