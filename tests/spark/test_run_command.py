"""`trimtab run` as a user runs it: a process of its own, its exit code and what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.checkers.jobs import write_input, write_job
from trimtab.embedded.redis_server import free_port

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_input(tmp_path)
    return tmp_path


def _start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "commands.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )


def _run(*arguments: str | Path) -> tuple[int, str, str]:
    process = _start(*arguments)
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return process.returncode, out, err


def test_check_then_run_what_is_there(base: Path) -> None:
    job = write_job(base)
    code, out, err = _run("run", job, "--check")
    assert (code, err) == (0, "")
    assert "tiny: 2 streams, 2 workers: ready to run" in out
    assert "A_user bigint, A_price double, A_at timestamp, B_user bigint" in out
    assert not (base / "checkpoint").exists()
    assert not (base / "out").exists()

    code, out, err = _run("run", job)
    assert code == 0
    (note,) = err.splitlines()
    assert note.startswith("trimtab: no redis is named, so one runs at redis://")
    assert out.splitlines()[0].split() == ["batch", "rows", "results", "rows/s", "ms", "watermark"]
    assert out.splitlines()[1].split()[:3] == ["0", "8", "1"]
    result = pq.read_table(base / "out")
    assert result.select(["A_price", "B_price"]).to_pylist() == [{"A_price": 1.0, "B_price": 2.0}]


def test_bad_input_ends_with_two_and_the_message_only(base: Path) -> None:
    code, out, err = _run("run", write_job(base, trigger="hourly"))
    assert (code, out) == (2, "")
    assert err.startswith("trimtab: sink.trigger = 'hourly': is not a trigger. ")
    # Only Spark can tell this: the column's type has no event time.
    code, out, err = _run("run", write_job(base, schema="user long, price double, at string"))
    assert (code, out) == (2, "")
    assert err.startswith("trimtab: ")
    assert "at" in err
    assert "Traceback" not in err
    assert "\tat " not in err
    assert not (base / "checkpoint").exists()


def test_a_kubernetes_api_that_does_not_answer_is_named_without_a_stack(base: Path) -> None:
    master = f"k8s://https://127.0.0.1:{free_port()}"
    job = write_job(base)
    pod = "spark.kubernetes.driver.pod.name: tiny-0\n    spark.kubernetes.container.image: none\n    spark.sql.session"
    job.write_text(job.read_text().replace("local[2]", master).replace("spark.sql.session", pod))
    code, out, err = _run("run", job)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"trimtab: spark.master = '{master}': the Kubernetes API cannot be reached: ")
    assert "Connection refused. Compare the address with `kubectl cluster-info`" in line
    assert not (base / "checkpoint").exists()


def test_sigterm_ends_a_running_query_in_order(base: Path) -> None:
    process = _start("run", write_job(base, trigger="processing 1 second"))
    try:
        assert process.stdout is not None
        assert process.stdout.readline().split()[:1] == ["batch"]
        assert process.stdout.readline().split()[:2] == ["0", "8"]
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert err.splitlines()[1:] == ["trimtab: stopping after the current batch; press Ctrl-C again to stop at once"]
    assert time.monotonic() - began < 60
    # What was committed is whole: the query can go on from here.
    commits = {path.name for path in (base / "checkpoint" / "commits").iterdir() if path.name.isdigit()}
    assert "0" in commits


def test_a_second_driver_on_the_same_checkpoint_is_refused_and_says_so(base: Path) -> None:
    """The first goes on, and what it writes is what it would have written alone."""
    job = write_job(base, trigger="processing 1 second")
    first = _start("run", job)
    try:
        assert first.stdout is not None
        for line in first.stdout:
            if line.split()[:1] == ["0"]:
                break
        code, _, err = _run("run", job)
        assert code == 1
        assert "another driver runs this query (process" in err
        assert "Stop that one first" in err
        assert "Traceback" not in err
        assert first.poll() is None
        first.send_signal(signal.SIGTERM)
        _, said = first.communicate(timeout=TIMEOUT_S)
        assert first.returncode == 0, said
    finally:
        first.kill()
    assert pq.read_table(base / "out").num_rows == 1
