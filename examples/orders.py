"""Joins three streams of orders for 20 seconds: python examples/orders.py [redis://localhost:6379/0]"""

import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession

from trimtab import JoinQuery, Stream
from trimtab.embedded import ensure_java, set_pyspark_python

redis = sys.argv[1] if len(sys.argv) > 1 else "redis://localhost:6379/0"
ensure_java()  # where no JDK is installed
set_pyspark_python()
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", False).getOrCreate()
spark.sparkContext.setLogLevel("FATAL")


def orders(step: int) -> DataFrame:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    return rows.selectExpr(f"value * {step} % 50 AS user", "double(value % 90) AS price", "timestamp AS at")


query = JoinQuery(
    name="orders",
    window="10 seconds",
    lateness="2 seconds",
    workers=4,
    streams=[Stream(name, key="user", time="at") for name in ("A", "B", "C")],
    where=["A.price < B.price"],
)
with tempfile.TemporaryDirectory() as checkpoint:
    inputs = {"A": orders(7), "B": orders(3), "C": orders(7)}
    result = query.join(spark, inputs, redis=redis, checkpoint=checkpoint)
    sink = result.writeStream.format("console").option("truncate", False).option("numRows", 5)
    running = sink.option("checkpointLocation", checkpoint).trigger(processingTime="2 seconds").start()
    while running.lastProgress is None:
        running.awaitTermination(1)  # until the executors have started; raises if the query fails
    running.awaitTermination(20)
    running.stop()
    spark.stop()
