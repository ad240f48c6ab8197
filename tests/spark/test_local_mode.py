"""In local mode Spark tries each task once: nothing may count on another attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.embedded import EmbeddedRedis

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]


def test_a_transfer_store_that_cannot_be_listed_for_good_stops_nothing(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """The move is taken back, the query goes on, and the results are the oracle's. A driver of its own: a process can
    have one Spark context only."""
    script = ROOT / "tests" / "spark" / "local_mode.py"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path), redis_server.url],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
