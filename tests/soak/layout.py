"""Where a soak keeps its files, and the query that it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
QUERY: Final = "soak"
STREAMS: Final = ("A", "B", "C")
WORKERS: Final = 4
PARTITIONS: Final = 32
WINDOW_US: Final = 500_000
LATENESS_US: Final = 3_000_000
"""Short, both of them: a parallel track lasts for window and lateness, and moves are to end within seconds."""
COMMAND: Final = ("-m", "commands.cli")

# Spark gives up after so many failures of one task or stage, or of executors in a row. The soak kills more often than
# a cluster would, and how long Spark's patience lasts is not what it is about.
_JOB: Final = """
spark:
  master: local-cluster[2,1,1024]
  config:
    spark.sql.session.timeZone: UTC
    spark.sql.parquet.outputTimestampType: TIMESTAMP_MICROS
    spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    spark.executor.extraJavaOptions: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    spark.local.dir: {base}/spark
    spark.task.maxFailures: 16
    spark.stage.maxConsecutiveAttempts: 32
    spark.deploy.maxExecutorRetries: -1
redis: {redis}
checkpoint: {base}/checkpoint
query:
  name: {name}
  window: {window_us} microseconds
  lateness: {lateness_us} microseconds
  partitions: {partitions}
  workers: {workers}
  owners: {{0: 50%}}
  plan: {{1: mjoin, 2: ((B C) A)}}
  where: A.price < B.price
  streams:
{streams}
sink: {{format: parquet, path: {base}/output}}
"""
_STREAM: Final = """\
    {name}:
      key: user
      time: at
      source:
        format: parquet
        path: {base}/input/{name}
        schema: user long, price double, at timestamp
        options: {{maxFilesPerTrigger: 3}}
"""


@dataclass(frozen=True)
class Layout:
    """One soak's directory."""

    base: Path

    @property
    def input(self) -> Path:
        return self.base / "input"

    @property
    def output(self) -> Path:
        return self.base / "output"

    @property
    def checkpoint(self) -> Path:
        return self.base / "checkpoint"

    @property
    def transfers(self) -> Path:
        return self.checkpoint / "trimtab" / "transfers"

    @property
    def logs(self) -> Path:
        return self.base / "logs"

    @property
    def job(self) -> Path:
        return self.base / "soak.yaml"

    def prepare(self, redis: str) -> None:
        """Directories, and the file that `trimtab run` is given."""
        for path in (self.logs, *(self.input / stream for stream in STREAMS)):
            path.mkdir(parents=True)
        streams = "".join(_STREAM.format(name=name, base=self.base) for name in STREAMS)
        self.job.write_text(
            _JOB.format(
                base=self.base,
                redis=redis,
                name=QUERY,
                window_us=WINDOW_US,
                lateness_us=LATENESS_US,
                partitions=PARTITIONS,
                workers=WORKERS,
                streams=streams,
            )
        )
