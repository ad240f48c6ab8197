"""A join from Kafka to Kafka as `trimtab run` runs it, fed wave by wave, and what it must have written."""

from __future__ import annotations

import datetime
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from examples.kafka.jars import jars
from tests.checkers.harness import kill_tree, poll
from tests.checkers.multiset import Multiset, difference, multiset
from tests.checkers.oracle import Oracle, Recorded, Row
from tests.outside.kafka_topics import Record, Topics

ROOT: Final = Path(__file__).resolve().parents[2]
START: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
WAVE_S: Final = 1.0
PATIENCE_S: Final = 900.0
COLUMNS: Final = ("n", "user", "price", "at")
SCHEMA: Final = "n long, user long, price double, at timestamp"
_QUICK: Final = "-XX:TieredStopAtLevel=1"
_JOB: Final = """
spark:
  master: "{master}"
  config:
    spark.jars: "{jars}"
    spark.sql.session.timeZone: UTC
    spark.driver.extraJavaOptions: "{quick}"
    spark.executor.extraJavaOptions: "{quick}"
redis: {redis}
checkpoint: {base}/checkpoint
query:
  name: {name}
  window: 1 second
  lateness: 1 second
  partitions: 12
  workers: 3
  where: [A.price < 90, A.price < B.price + 50]
  streams:
    A: {{key: user, time: at, source: {{format: kafka, servers: "{servers}", topics: {name}-a,
        dead_letters: {name}-dead, value: {{format: json, schema: "{schema}"}},
        options: {{startingOffsets: earliest}}}}}}
    B: {{key: user, time: at, source: {{format: kafka, servers: "{servers}", topics: {name}-b,
        value: {{format: json, schema: "{schema}"}}, options: {{startingOffsets: earliest}}}}}}
sink: {{format: kafka, servers: "{servers}", topic: {name}-out, id_field: id}}
"""


def connector() -> str:
    return ",".join(map(str, jars("connector")))


@dataclass
class Pipe:
    """One query, its topics and everything that was sent."""

    base: Path
    topics: Topics
    redis: str
    name: str
    master: str = "local-cluster[2,1,1024]"
    sent: dict[str, dict[str, list[Row]]] = field(default_factory=lambda: {"A": {}, "B": {}})
    """Stream -> place of a record -> its row: one file of the oracle for each record."""
    bad: dict[str, bytes] = field(default_factory=dict)
    """Place of a record that cannot be used -> its value."""

    def __post_init__(self) -> None:
        self._random = random.Random(7)
        self._wave = 0
        self._rows = 0
        for name, partitions in (("a", 2), ("b", 3), ("out", 2), ("dead", 1)):
            self.topics.create(f"{self.name}-{name}", partitions)

    @property
    def checkpoint(self) -> Path:
        return self.base / "checkpoint"

    def wave(self, bad: int = 0) -> None:
        """The next second of both streams; some rows are late."""
        for stream in "AB":
            rows = [self._row() for _ in range(40)]
            records = [(row["n"] % 2, b"k", _encoded(row), 0) for row in rows]
            for place, row in zip(self.topics.send(f"{self.name}-{stream.lower()}", records), rows, strict=True):
                self.sent[stream][place] = [row]
        values = [
            (b'{"user": "nobody"}', b"no JSON", _encoded({**self._row(), "user": None}))[n % 3] for n in range(bad)
        ]
        for place, value in zip(
            self.topics.send(f"{self.name}-a", [(n % 2, b"bad", value, 0) for n, value in enumerate(values)]),
            values,
            strict=True,
        ):
            self.bad[place] = value
        self._wave += 1

    def _row(self) -> Row:
        self._rows += 1
        late = self._random.random() < 0.03
        shift_s = self._random.uniform(-6, -3) if late else self._random.uniform(-0.8, WAVE_S)
        at = START + datetime.timedelta(microseconds=round((self._wave * WAVE_S + shift_s) * 1e6))
        price = float(self._random.randrange(100))
        return {"n": self._rows, "user": self._random.randrange(12), "price": price, "at": at}

    def write_job(self) -> Path:
        path = self.base / "query.yaml"
        path.write_text(
            _JOB.format(
                base=self.base,
                name=self.name,
                redis=self.redis,
                servers=self.topics.servers,
                schema=SCHEMA,
                master=self.master,
                jars=connector(),
                quick=_QUICK,
            )
        )
        return path

    def start(self, *command: str) -> Driver:
        return Driver(command, self.base)

    def batches(self) -> dict[int, dict[str, Any]]:
        """Of each batch in the offset log: watermark, and where it ends in each topic."""
        found = {}
        log = self.checkpoint / "offsets"
        for path in log.iterdir() if log.exists() else ():
            if path.name.isdigit():
                _, metadata, *lines = path.read_text().splitlines()
                ends: dict[str, dict[str, int]] = {}
                for line in lines:
                    body = json.loads(line) if line.startswith("{") else {}
                    ends |= {topic: each for topic, each in body.items() if topic.startswith(f"{self.name}-")}
                found[int(path.name)] = {"watermark_us": json.loads(metadata)["batchWatermarkMs"] * 1000, "ends": ends}
        return found

    def committed(self) -> int:
        log = self.checkpoint / "commits"
        names = [path.name for path in log.iterdir()] if log.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def caught_up(self) -> bool:
        """Whether everything that was sent is in a committed batch."""
        batch = self.batches().get(self.committed())
        if batch is None:
            return False
        topics = [f"{self.name}-a", f"{self.name}-b"]
        there = {topic: {str(p): end for p, end in self.topics.ends(topic).items()} for topic in topics}
        return bool(batch["ends"] == there)

    def recorded(self) -> Recorded:
        batches = self.batches()
        batch_of: dict[str, int] = {}
        for place in (*self.sent["A"], *self.sent["B"], *self.bad):
            topic, partition, offset = place.rsplit("/", 2)
            reading = [b for b, each in batches.items() if each["ends"].get(topic, {}).get(partition, 0) > int(offset)]
            if reading:
                batch_of[place] = min(reading)
        return Recorded({number: each["watermark_us"] for number, each in batches.items()}, batch_of)

    def expected(self) -> Multiset:
        return self.oracle().expected(self.sent, self.recorded())

    def oracle(self) -> Oracle:
        from tests.checkers.oracle import Condition

        return Oracle(
            window_us=1_000_000,
            keys={"A": ["user"], "B": ["user"]},
            times={"A": "at", "B": "at"},
            columns={"A": COLUMNS, "B": COLUMNS},
            conditions=[
                Condition("", ("A",), lambda c: c["A"]["price"] < 90),
                Condition("", ("A", "B"), lambda c: c["A"]["price"] < c["B"]["price"] + 50),
            ],
        )

    def results(self) -> dict[str, list[Row]]:
        """By id, each copy of a result."""
        found: dict[str, list[Row]] = {}
        for record in self.topics.read(f"{self.name}-out"):
            body = decoded(record)
            assert body.pop("id") == record.headers["trimtab-id"]
            assert record.key == str(body["A_user"]).encode()
            found.setdefault(record.headers["trimtab-id"], []).append(body)
        return found

    def check(self) -> tuple[dict[str, list[Row]], Multiset]:
        """One of each id is exactly what the oracle wants; returns all copies."""
        results = self.results()
        assert all(copy == copies[0] for copies in results.values() for copy in copies), "one id, two results"
        columns = self.oracle().result_columns
        expected = self.expected()
        problem = difference(expected, multiset([copies[0] for copies in results.values()], columns), columns)
        assert problem is None, problem
        assert expected.total() > 100, f"a test that proves little: {expected.total()} results"
        return results, expected

    def batch_of_result(self, row: Row, recorded: Recorded) -> int:
        """The batch that made it: the one that read the later of its two rows."""
        places = {s: {rows[0]["n"]: place for place, rows in self.sent[s].items()} for s in "AB"}
        return max(recorded.batch_of[places[s][row[f"{s}_n"]]] for s in "AB")

    def dead(self) -> list[Record]:
        return self.topics.read(f"{self.name}-dead")


class Driver:
    """A driver process and what it printed."""

    def __init__(self, command: tuple[str, ...], base: Path) -> None:
        self._out = base / f"driver-{len(list(base.glob('driver-*')))}"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )

    def said(self) -> str:
        return self._out.read_text(errors="replace")

    def rows(self) -> Counter[int]:
        """Rows by batch, as the driver counted them."""
        lines = (json.loads(line) for line in self.said().splitlines() if line.startswith('{"batch"'))
        return Counter({line["batch"]: line["rows"] for line in lines})

    def until(self, look: Callable[[], Any], what: str) -> Any:
        def looked() -> Any:
            assert self.process.poll() is None, f"the driver ended: {self.said()[-3000:]}"
            return look()

        return poll(looked, f"{what}\n{self.said()[-3000:]}", PATIENCE_S)

    def kill(self) -> None:
        kill_tree(psutil.Process(self.process.pid))
        self.process.wait(60)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, self.said()[-3000:]

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()


def decoded(record: Record) -> Row:
    assert record.value is not None
    body: Row = json.loads(record.value)
    return {name: _time(value) if name.endswith("_at") else value for name, value in body.items()}


def _time(text: Any) -> Any:
    return None if text is None else datetime.datetime.fromisoformat(text)


def _encoded(row: Row) -> bytes:
    return json.dumps({**row, "at": row["at"].isoformat()}).encode()
