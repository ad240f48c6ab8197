"""What Trimtab needs beside Python, brought along: a Redis-protocol server and a Java runtime.

Demo, benchmarks and tests must run on a machine where nobody installed anything. Nothing here is
imported by a production worker, which is given the URL of a Redis that others run.
"""

from __future__ import annotations

from trimtab.embedded.java import JavaUnavailableError, ensure_java, set_pyspark_python
from trimtab.embedded.redis_server import EmbeddedRedis, EmbeddedRedisError, shared_redis

__all__ = [
    "EmbeddedRedis",
    "EmbeddedRedisError",
    "JavaUnavailableError",
    "ensure_java",
    "set_pyspark_python",
    "shared_redis",
]
