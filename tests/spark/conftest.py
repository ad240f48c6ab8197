"""Spark for the tests: one context with two executors of one core for all of them (a process can have only one)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.checkers.sessions import make_session
from trimtab.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Real executor processes. Tests that call `join` take `spark` instead, which is a session of their own."""
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    spark = make_session("local-cluster[2,1,1024]", **{"spark.sql.warehouse.dir": warehouse})
    yield spark
    spark.stop()


@pytest.fixture
def spark(spark_cluster: SparkSession) -> SparkSession:
    """A session of the test's own: `join` sets the shuffle partitions and refuses others."""
    return spark_cluster.newSession()


@pytest.fixture(scope="session")
def spark_local(spark_cluster: SparkSession) -> SparkSession:
    """A session for tests that want Spark's opinion only."""
    return spark_cluster.newSession()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server
