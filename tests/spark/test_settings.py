"""The settings that `join` makes: as many as it needs, and none that somebody has made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from split_union import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("checkpoint", ["/data/checkpoint", "file:/data/checkpoint", "file:///data/checkpoint"])
def test_local_checkpoints_are_written_without_processes(checkpoint: str, spark: SparkSession) -> None:
    session.prepare(spark, 2, checkpoint)
    assert spark.conf.get(session.LOCAL_FILES[0]) == session.LOCAL_FILES[1]


@pytest.mark.parametrize("checkpoint", ["hdfs://there/checkpoint", "s3a://bucket/checkpoint"])
def test_other_checkpoints_keep_sparks_default(checkpoint: str, spark: SparkSession) -> None:
    session.prepare(spark, 2, checkpoint)
    assert session.LOCAL_FILES[0] not in spark.conf.getAll


def test_a_file_manager_that_somebody_has_chosen_stays(spark: SparkSession) -> None:
    chosen = session.LOCAL_FILES[1].replace("FileSystem", "FileContext")
    spark.conf.set(session.LOCAL_FILES[0], chosen)
    session.prepare(spark, 2, "/data/checkpoint")
    assert spark.conf.get(session.LOCAL_FILES[0]) == chosen
