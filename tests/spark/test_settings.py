"""The settings that `join` makes: as many as it needs, and none that somebody has made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from split_union import session
from split_union.join import in_one_wave

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


@pytest.mark.parametrize("name", session.CHEAPER)
def test_what_is_only_cheaper_is_made_where_nobody_has_chosen(name: str, spark: SparkSession) -> None:
    session.prepare(spark, 2, "/data/checkpoint")
    assert spark.conf.get(name) == session.CHEAPER[name][0]
    theirs = spark.newSession()
    chosen = {"false": "true", "simple": "extended"}[session.CHEAPER[name][0]]
    theirs.conf.set(name, chosen)
    session.check(theirs, 2)
    session.prepare(theirs, 2, "/data/checkpoint")
    assert theirs.conf.get(name) == chosen


def test_split_tasks_are_as_many_as_run_at_once(spark: SparkSession) -> None:
    assert session.task_slots(spark) == 2
    many = spark.range(0, 100, 1, 9)
    assert in_one_wave(many, 2).rdd.getNumPartitions() == 2
    # Fewer than could run stay as they are, and so do all where nobody knows.
    assert in_one_wave(many, 16).rdd.getNumPartitions() == 9
    assert in_one_wave(many, None) is many
