"""The runner without Spark: what a query.yaml may say, how it is refused, and what is shown."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from commands.runner.failures import root_cause_of_text
from commands.runner.job import JobFile, SourcePart, load_job
from commands.runner.progress import parse_progress
from commands.runner.spark_session import quiet_log4j
from commands.runner.stderr_filter import LineFilter
from commands.runner.trigger import trigger_arguments
from commands.runner.worker_table import newest_reports, shares
from commands.runner.yaml_part import option_text
from commands.runner.yaml_text import fill_in
from trimtab.errors import InvalidInput
from trimtab.reports import WorkerReport

GOOD = """
spark: {master: "local[2]", config: {spark.sql.ansi.enabled: true}}
redis: redis://localhost:6379/0
checkpoint: checkpoint
query:
  name: orders
  window: 10 seconds
  lateness: 5 seconds
  partitions: 16
  workers: 2
  where: [A.price < B.price]
  streams:
    A:
      {key: user, time: at, source: {format: json, path: a, schema: "user long, price double, at timestamp"}}
    B: {key: [user], time: at, source: {format: rate, options: {rowsPerSecond: 5}, select: [value AS user]}}
sink: {format: parquet, path: out, trigger: processing 1 second}
"""


def _load(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> JobFile:
    path = tmp_path / "query.yaml"
    path.write_text(text)
    return load_job(path, environ or {})


def _refused(tmp_path: Path, old: str, new: str) -> InvalidInput:
    assert old in GOOD
    with pytest.raises(InvalidInput) as caught:
        _load(tmp_path, GOOD.replace(old, new, 1))
    return caught.value


def test_a_good_file_gives_the_query_that_a_program_would_write(tmp_path: Path) -> None:
    job = _load(tmp_path, GOOD)
    query = job.join_query()
    assert query.stream_names == ("A", "B")
    assert (query.window_us, query.partitions, query.workers) == (10_000_000, 16, 2)
    assert query.where == ("A.price < B.price",)
    assert query.streams[1].key_columns == ("user",)
    source = job.query.streams["A"].source
    assert isinstance(source, SourcePart) and source.data_schema == "user long, price double, at timestamp"
    assert option_text(job.spark.config["spark.sql.ansi.enabled"]) == "true"


def test_plans_by_worker_and_numbers_from_the_environment(tmp_path: Path) -> None:
    text = GOOD.replace("workers: 2", "workers: ${N}\n  plan: {0: mjoin, '1': (B A)}")
    query = _load(tmp_path, text, {"N": "3"}).join_query()
    assert query.workers == 3
    assert query.plans == ("mjoin", "(B A)", "left-deep")


def test_a_relative_checkpoint_becomes_absolute_and_a_uri_stays(tmp_path: Path) -> None:
    assert Path(_load(tmp_path, GOOD).checkpoint).is_absolute()
    home = _load(tmp_path, GOOD.replace("checkpoint: checkpoint", "checkpoint: ~/ckpt")).checkpoint
    assert home == str(Path.home() / "ckpt")
    remote = GOOD.replace("checkpoint: checkpoint", "checkpoint: s3a://bucket/ckpt")
    assert _load(tmp_path, remote).checkpoint == "s3a://bucket/ckpt"


def test_the_example_is_good() -> None:
    example = Path(__file__).parents[2] / "examples" / "orders.yaml"
    assert load_job(example, {}).join_query().stream_names == ("A", "B", "C")


def test_owners_by_share_and_by_list(tmp_path: Path) -> None:
    text = GOOD.replace("workers: 2", "workers: 3\n  owners: {0: '${SHARE}', '2': [15]}")
    query = _load(tmp_path, text, {"SHARE": "50%"}).join_query()
    assert query.first_owners == (0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2)


@pytest.mark.parametrize(
    ("old", "new", "field", "words"),
    [
        ("window: 10 seconds", "window: 0 seconds", "query.window", "not positive"),
        ("window: 10 seconds", "window: soon", "query.window", "not a duration"),
        ("workers: 2", "workers: 99", "query.workers", "more than the 16 partitions"),
        ("workers: 2", "workers: two", "query.workers", "Write a whole number"),
        ("workers: 2", "workers:", "query.workers", "leave the line out"),
        ("where: [A.price < B.price]", "where:", "query.where", "leave the line out"),
        ("checkpoint: checkpoint", "checkpoint: ''", "checkpoint", "is not a directory"),
        ("  streams:\n", "  plan: {7: mjoin}\n  streams:\n", "query.plan", "is not a worker"),
        ("  streams:\n", "  owners: {7: 50%}\n  streams:\n", "query.owners", "is not a worker of this query"),
        ("  streams:\n", "  owners: {0: half}\n  streams:\n", "query.owners[0]", "is not a share"),
        ("  streams:\n", "  owners: 50%\n  streams:\n", "query.owners", "name: value"),
        ("  workers: 2", "  wokers: 2", "query.wokers", "Did you mean 'workers'?"),
        ("  name: orders\n", "", "query.name", "is missing"),
        ("    A:\n", "    1x:\n", "query.streams.1x", "is not a name for a stream"),
        ("    A:\n", "    on:\n", "query.streams.True", "quotes"),
        ("    B: {", "    A: {", "query.streams.A", "appears twice"),
        ("    B: {", "    a: {", "query.streams[1].name", "is used twice"),
        (
            "time: at, source: {format: json",
            "source: {format: json",
            "query.streams.A.time",
            "is missing",
        ),
        ("{format: rate,", "{fromat: rate,", "query.streams.B.source.format", "is missing"),
        ("trigger: processing 1 second", "trigger: hourly", "sink.trigger", "available now"),
        ("path: out", "path: out, mode: complete", "sink.mode", "append"),
        ("checkpoint: checkpoint\n", "", "checkpoint", "is missing"),
        (
            "time: at, source: {format: rate",
            "time: at, watermark: -1 s, source: {format: rate",
            "watermark",
            "negative",
        ),
        ("redis: redis://localhost:6379/0", "redis: ${NOT_THERE}", "redis", "NOT_THERE, which is not set"),
        ("  streams:\n", "  plan: ((A\n  streams:\n", "query.plan", "plan"),
    ],
)
def test_bad_input_names_the_field_and_the_remedy(tmp_path: Path, old: str, new: str, field: str, words: str) -> None:
    error = _refused(tmp_path, old, new)
    assert error.field.endswith(field), error
    assert words in str(error)
    assert error.remedy


def test_one_stream_is_refused(tmp_path: Path) -> None:
    text = "\n".join(line for line in GOOD.splitlines() if not line.startswith("    B:"))
    with pytest.raises(InvalidInput, match="2 to 8 streams"):
        _load(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("query: [", "line 1"),
        ("- a list", "is not a mapping"),
        ("", "is not a mapping"),
        ("query: !!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_what_is_not_plain_yaml_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        _load(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_job(tmp_path / "no.yaml")


def test_variables_are_filled_in() -> None:
    given = {"a": ["${HOST}:${PORT:-6379}"], "b": "$${HOST}", "c": 1, "d": "$HOST"}
    assert fill_in(given, {"HOST": "h"}) == {"a": ["h:6379"], "b": "${HOST}", "c": 1, "d": "$HOST"}


def test_a_secret_from_the_environment_is_not_in_the_message(tmp_path: Path) -> None:
    text = GOOD.replace("trigger: processing 1 second", "trigger: '${SECRET}'")
    with pytest.raises(InvalidInput) as caught:
        _load(tmp_path, text, {"SECRET": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "${SECRET}" in str(caught.value)


def test_triggers() -> None:
    assert trigger_arguments(None) == {}
    assert trigger_arguments("Available  now") == {"availableNow": True}
    assert trigger_arguments("once") == {"once": True}
    assert trigger_arguments("processing 1 minute 30 seconds") == {"processingTime": "90000 milliseconds"}


def test_the_root_cause_of_a_python_failure_is_its_last_line() -> None:
    text = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
trimtab.errors.BindingError: checkpoint = '/x' belongs to query 1
second line of it

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace:
"""
    expected = "trimtab.errors.BindingError: checkpoint = '/x' belongs to query 1\nsecond line of it"
    assert root_cause_of_text(text) == expected


def test_the_root_cause_of_a_jvm_failure_is_the_innermost_one() -> None:
    text = "[STREAM_FAILED] Query [id = 1] terminated with exception: Writing job aborted"
    stack = """org.apache.spark.sql.streaming.StreamingQueryException: ...
\tat org.apache.Some.thing(Some.scala:1)
Caused by: org.apache.spark.SparkException: Writing job aborted
\tat org.apache.Some.thing(Some.scala:1)
Caused by: java.io.IOException: No space left on device
\t... 12 more
"""
    assert root_cause_of_text(text, stack) == "IOException: No space left on device"


def test_a_message_loses_plan_and_stack() -> None:
    text = "[PATH_NOT_FOUND] Path does not exist: file:/x.\n=== Streaming Query ===\nIdentifier: 1"
    assert root_cause_of_text(text) == "[PATH_NOT_FOUND] Path does not exist: file:/x."


def test_a_progress_line_counts_the_sources_and_not_the_control_source() -> None:
    progress = {
        "batchId": 3,
        "durationMs": {"addBatch": 400, "triggerExecution": 500},
        "eventTime": {"watermark": "2026-01-01T00:00:01.500Z"},
        "observedMetrics": {"trimtab": {"results": 12_345}},
        "sources": [
            {"endOffset": '{"logOffset":1}', "numInputRows": 1000},
            {"endOffset": '{"trimtab": {"epoch": 1}}', "numInputRows": 1},
        ],
    }
    batch = parse_progress(progress)
    assert batch is not None
    assert (batch.batch, batch.rows, batch.results, batch.ms) == (3, 1000, 12_345, 500)
    assert batch.line().split() == ["3", "1,000", "12,345", "2,000", "500", "2026-01-01", "00:00:01.500"]
    assert parse_progress({**progress, "durationMs": {"latestOffset": 1}}) is None


def test_the_reports_table() -> None:
    table = newest_reports([_report(1, 300), _report(0, 100)])
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table)
    lines = console.export_text().splitlines()
    assert lines[0].split()[:3] == ["worker", "executor", "batch"]
    assert "25%" in lines[1]
    assert "75%" in lines[2]


def test_shares_of_no_load_are_zero() -> None:
    assert shares([0, 0]) == [0.0, 0.0]


def test_chatter_is_dropped_and_all_else_passes() -> None:
    lines = [
        b"WARNING: Using incubator modules: jdk.incubator.vector\n",
        b"Streaming TransformWithStateInPandas Python worker finish init stage of Python runner.\n",
        b"\n",
        b"03:45:16 ERROR Worker: Failed\n",
        b"\n",
    ]
    assert filtered(lines) == lines[3:]


def filtered(lines: Sequence[bytes]) -> list[bytes]:
    """What a filter writes of these lines, and when they have ended."""
    line_filter = LineFilter()
    return [*itertools.chain.from_iterable(map(line_filter.passes, lines)), *line_filter.rest()]


STACK = [
    b"Traceback (most recent call last):\n",
    b'  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager\n',
    b'  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker\n',
    b"BrokenPipeError: [Errno 32] Broken pipe\n",
]
"""Seen at the end of `trimtab run`, over Unix sockets."""


@pytest.mark.parametrize("length", range(1, len(STACK) + 1))
def test_a_daemon_whose_jvm_has_gone_says_nothing(length: int) -> None:
    """Whole, broken off anywhere by a signal, or mixed with that of another process."""
    assert filtered([b"before\n", *STACK[:length]]) == [b"before\n"]
    mixed = [STACK[0], *STACK[:3], STACK[2], STACK[3], STACK[3]]
    assert filtered([*mixed, b"after\n"]) == [b"after\n"]


@pytest.mark.parametrize(
    "lines",
    [
        [*STACK[:3], b"ValueError: no\n"],
        [*STACK[:2], b'  File "/x/worker/batch.py", line 1, in run\n', STACK[3]],
        [*STACK[:2], b'  File "/x/worker/batch.py", line 1, in run\n'],
        [STACK[3]],
        [STACK[0], b"Streaming is what somebody said\n"],
    ],
)
def test_other_stacks_pass_whole(lines: list[bytes]) -> None:
    assert filtered([*lines, b"after\n"]) == [*lines, b"after\n"]
    assert filtered(lines) == lines


def test_filtered_stderr_of_a_child(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "from commands.runner.stderr_filter import filtered_stderr\n"
        "child = 'import sys; print(\"WARNING: Using incubator modules: x\\\\nkept\", file=sys.stderr)'\n"
        "with filtered_stderr():\n"
        "    started = subprocess.Popen([sys.executable, '-c', child])\n"
        "print('mine', file=sys.stderr, flush=True)\n"
        "started.wait(); time.sleep(0.3)\n"
    )
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, timeout=60)
    assert sorted(done.stderr.splitlines()) == ["kept", "mine"]


def test_the_quiet_log4j_file(tmp_path: Path) -> None:
    text = quiet_log4j(tmp_path).read_text()
    assert "rootLogger.level = error" in text
    assert "%ex{0}" in text


def _report(worker: int, load: int) -> WorkerReport:
    return WorkerReport(
        query="q",
        batch=7,
        epoch=1,
        worker=worker,
        attempt=0,
        executor=str(worker),
        process=1,
        at_ms=0,
        rows={"A": 10, "B": 5},
        late_rows={"A": 1},
        bad_rows={},
        results=3,
        state_rows=15,
        combined_rows=0,
        state_bytes=2_000_000,
        index_bytes=1000,
        watermark_us=0,
        cpu_ns=5_000_000,
        resident="hit",
        groups=[0],
        group_rows=[load // 2],
        group_probes=[load // 2],
        group_results=[0],
    )


def test_reports_survive_json() -> None:
    assert json.loads(_report(0, 2).to_text())["worker"] == 0
