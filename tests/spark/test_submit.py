"""`spark-submit` on a cluster of Spark's own where Trimtab is not installed: the archive brings all that is needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.checkers.harness import poll
from tests.checkers.jobs import write_input, write_job
from trimtab.embedded import ensure_java

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TIMEOUT_S = 240
NOT_INSTALLED = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
"""
"""As sitecustomize, forgets this checkout's editable installation in every Python process of the cluster."""


@contextmanager
def _service(environ: Mapping[str, str], log: Path, *arguments: str) -> Iterator[None]:
    import pyspark

    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with log.open("w") as sink:
        process = subprocess.Popen([spark_class, *arguments], env=environ, stdout=sink, stderr=sink, cwd=log.parent)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _address(log: Path) -> str:
    found = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
    return found.group(1) if found else ""


def test_the_archive_is_all_that_a_cluster_needs(tmp_path: Path) -> None:
    import pyspark

    ensure_java()
    write_input(tmp_path)
    job = write_job(tmp_path)
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(NOT_INSTALLED)
    environ = {**os.environ, "PYTHONPATH": str(hiding), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    written = subprocess.run(
        [sys.executable, "-m", "commands.cli", "archive", tmp_path / "archive"],
        capture_output=True,
        text=True,
        check=True,
    )
    (packages,) = (tmp_path / "archive").glob("*.zip")
    assert str(packages) in written.stdout
    missing = subprocess.run([sys.executable, "-c", "import trimtab"], env=environ, cwd=tmp_path, capture_output=True)
    assert missing.returncode != 0, "the test would show nothing: Trimtab is there without the archive"

    master = "org.apache.spark.deploy.master.Master"
    with _service(environ, tmp_path / "master.log", master, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"):
        address = poll(lambda: _address(tmp_path / "master.log"), "the master's address")
        worker = ["org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "2g", "--webui-port", "0"]
        with _service(environ, tmp_path / "worker.log", *worker, "--work-dir", str(tmp_path / "work"), address):
            submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
            outcome = subprocess.run(
                [submit, "--master", address, "--py-files", packages, tmp_path / "archive" / "submit.py", job],
                env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S,
            )  # fmt: skip
    told = [line for line in outcome.stderr.splitlines() if " INFO " not in line and not line.startswith("\tat ")]
    assert outcome.returncode == 0, "\n".join(told)
    # spark-submit has the program's two streams in one.
    assert "spark.master = 'local[2]' is ignored" in outcome.stdout
    result = pq.read_table(tmp_path / "out")
    assert result.select(["A_price", "B_price"]).to_pylist() == [{"A_price": 1.0, "B_price": 2.0}]
