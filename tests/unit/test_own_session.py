"""What `make_session` asks Spark for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from commands.runner.spark_session import make_session
from split_union.session import UNIX_SOCKETS


class Builder:
    """Takes settings, starts nothing."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}

    def appName(self, name: str) -> Builder:  # noqa: N802
        return self

    def master(self, master: str) -> Builder:
        return self

    def config(self, name: str, value: str) -> Builder:
        self.made[name] = value
        return self

    def getOrCreate(self) -> Any:  # noqa: N802
        return None


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    made = Builder()
    monkeypatch.setattr(SparkSession, "builder", made)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    return made


@pytest.mark.parametrize("master", ["local[2]", "k8s://https://host", "spark://host:7077"])
def test_python_is_reached_by_unix_sockets(master: str, builder: Builder, tmp_path: Path) -> None:
    make_session(master=master, app_name="x", config={}, scratch=tmp_path)
    assert builder.made[UNIX_SOCKETS[0]] == "true"


def test_sockets_that_somebody_has_chosen_stay(builder: Builder, tmp_path: Path) -> None:
    make_session(master="local[2]", app_name="x", config={UNIX_SOCKETS[0]: "false"}, scratch=tmp_path)
    assert builder.made[UNIX_SOCKETS[0]] == "false"


def test_an_application_that_somebody_has_started_keeps_its_sockets(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    make_session(master=None, app_name="x", config={"spark.sql.session.timeZone": "UTC"}, scratch=tmp_path)
    assert builder.made == {"spark.sql.session.timeZone": "UTC"}
