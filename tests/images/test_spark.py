"""The image of drivers and executors, built and run: a join to its end, and an executor as Kubernetes starts one."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.checkers.jobs import JOB, SCHEMA, write_input
from tests.images.test_manager import WRITES, free_port, wait_for
from tests.images.tools import Container, Image, Start, run
from trimtab.embedded.redis_server import EmbeddedRedis

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Mounted as /data, for whoever the image runs as."""
    directory = tmp_path / "data"
    directory.mkdir()
    write_input(directory)
    directory.chmod(0o777)
    return directory


def test_a_join_runs_to_its_end_as_a_driver(
    spark_image: Image, server: EmbeddedRedis, data: Path, tmp_path: Path
) -> None:
    """As in a pod that Spark's scheduler made: settings in /opt/spark/conf, `driver`, our submit.py."""
    (data / "query.yaml").write_text(
        JOB.format(base="/data", trigger="available now", schema=SCHEMA, sink="parquet").replace("master: local[2]", "")
    )
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark.properties").write_text(
        "spark.master=local[2]\nspark.app.name=tiny\nspark.sql.session.timeZone=UTC\nspark.sql.warehouse.dir=/tmp/warehouse\n"
    )
    start = Start(
        arguments=[
            *("driver", "--properties-file", "/opt/spark/conf/spark.properties"),
            *("--class", "org.apache.spark.deploy.PythonRunner", "local:///opt/trimtab/submit.py", "/data/query.yaml"),
        ],
        environ={"SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1", "TRIMTAB_REDIS": server.url},
        mounts={"/data": data, "/opt/spark/conf": conf},
    )
    code, out = run(spark_image, start, tmp_path)
    assert code == 0, out
    result = pq.read_table(data / "out")
    assert result.select(["A_price", "B_price"]).to_pylist() == [{"A_price": 1.0, "B_price": 2.0}]


DRIVER = """
import os, sys, time
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local-cluster[1,1,512]").config("spark.driver.host", "127.0.0.1")
         .config("spark.driver.port", sys.argv[1]).config("spark.ui.enabled", "false")
         .config("spark.executor.memory", "512m").getOrCreate())
context = spark.sparkContext
print("driver is up", flush=True)
deadline = time.monotonic() + 300
while context._jsc.sc().getExecutorMemoryStatus().size() < 3:  # the driver, its own executor and the other one
    assert time.monotonic() < deadline, "no second executor"
    time.sleep(0.2)
def where(number):
    time.sleep(0.05)
    return os.environ.get("TRIMTAB_POD", "own")
print("ran on", sorted(set(context.parallelize(range(60), 60).map(where).collect())), flush=True)
spark.stop()
"""


def test_an_executor_serves_a_driver(spark_image: Image, data: Path, tmp_path: Path) -> None:
    """Told in the environment what Spark's scheduler tells. Its driver is any: registering is the same everywhere."""
    port = free_port()
    (data / "driver.py").write_text(DRIVER)
    work = tmp_path / "work"
    work.mkdir()
    work.chmod(0o777)
    # `local-cluster` keeps its own executor's files below Spark; on Kubernetes nothing does.
    driver = Start(arguments=["python3", "/data/driver.py", str(port)], mounts={"/data": data, "/opt/spark/work": work})
    executor = Start(
        arguments=["executor"],
        environ={
            "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
            "SPARK_EXECUTOR_ID": "77",
            "SPARK_EXECUTOR_CORES": "1",
            "SPARK_EXECUTOR_MEMORY": "512m",
            "SPARK_APPLICATION_ID": "app-images",
            "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
            "SPARK_EXECUTOR_POD_NAME": "images-exec-77",
            "SPARK_RESOURCE_PROFILE_ID": "0",
            "SPARK_JAVA_OPT_0": "-XX:TieredStopAtLevel=1",
            "TRIMTAB_POD": "images-exec-77",
        },
    )
    with Container(spark_image, driver, tmp_path) as first:
        wait_for(lambda: "driver is up" in first.output, first, "a driver")
        with Container(spark_image, executor, tmp_path) as second:
            wait_for(lambda: "Successfully registered with driver" in second.output, second, "an executor")
            assert second.healthy()
            assert first.ended() == 0, first.output + second.output
        assert "ran on ['images-exec-77', 'own']" in first.output


def test_a_command_is_run_as_it_is(spark_image: Image, server: EmbeddedRedis, data: Path, tmp_path: Path) -> None:
    """What the chart's own drivers do: `trimtab run`, checked here and run above."""
    (data / "query.yaml").write_text(JOB.format(base="/data", trigger="available now", schema=SCHEMA, sink="parquet"))
    start = Start(
        arguments=["trimtab", "run", "/data/query.yaml", "--check"],
        environ={"TRIMTAB_REDIS": server.url},
        mounts={"/data": data},
    )
    code, out = run(spark_image, start, tmp_path)
    assert code == 0, out
    assert "tiny: 2 streams, 2 workers: ready to run" in out


def test_it_runs_as_spark_does_on_a_root_that_is_read_only(spark_image: Image, tmp_path: Path) -> None:
    code, out = run(spark_image, Start(arguments=["python3", "-c", WRITES]), tmp_path)
    assert (code, out.split()) == (0, ["185", "185", "ro"])
    code, out = run(spark_image, Start(arguments=["executor"]), tmp_path)
    assert code == 127
    assert "SPARK_EXECUTOR_MEMORY is not set" in out
