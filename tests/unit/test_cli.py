"""The command line: help, versions, exit codes, and what it says of a query in a real Redis."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.cli import exit_code, main, seconds
from trimtab import __version__
from trimtab.embedded import EmbeddedRedis
from trimtab.epochs import first_epoch
from trimtab.reports import WorkerReport
from trimtab.store import Store


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with EmbeddedRedis() as server:
        store = Store(server.url)
        store.publish(first_epoch("orders", "abc", (0, 1, 0, 1)))
        for worker in (0, 1):
            store.report(_report(worker))
        yield server.url


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--help"], "reports"),
        (["--version"], __version__),
        (["run", "--help"], "--check"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        assert words in capsys.readouterr().out


def test_the_demo_has_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    assert "--executors" in capsys.readouterr().out


def test_a_bad_file_ends_with_two_and_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "query.yaml"
    path.write_text("checkpoint: x\n")
    assert main(["run", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("trimtab: query = None: is missing. ")
    assert error.count("\n") == 1


def test_durations() -> None:
    assert seconds("90") == 90
    assert seconds("1.5") == 1.5
    assert seconds("2 minutes") == 120
    for bad in ("soon", "0", "-5s"):
        with pytest.raises(argparse.ArgumentTypeError):
            seconds(bad)


@pytest.mark.redis
def test_reports(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reports", "--query", "orders", "--redis", redis_url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split()[:3] == ["0", "exec", "5"]
    assert main(["reports", "--query", "orders", "--redis", redis_url, "--batch", "5", "--json"]) == 0
    assert [report["worker"] for report in json.loads(capsys.readouterr().out)] == [0, 1]


@pytest.mark.redis
def test_mapping(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mapping", "--query", "orders", "--redis", redis_url]) == 0
    assert "worker 1: 1 3" in capsys.readouterr().out
    assert main(["mapping", "--query", "orders", "--redis", redis_url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["number"] == 1


@pytest.mark.redis
@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("command", ["mapping", "reports"])
def test_a_reader_that_has_seen_enough(redis_url: str, command: str, options: list[str]) -> None:
    """`| head` closes the pipe: neither a stack nor a word about it."""
    theirs, ours = os.pipe()
    os.close(theirs)
    words = [sys.executable, "-m", "commands.cli", command, "--query", "orders", "--redis", redis_url, *options]
    ended = subprocess.run(words, stdout=ours, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(ours)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_another_broken_pipe_is_told() -> None:
    def broken() -> int:
        raise BrokenPipeError("not stdout")

    with pytest.raises(BrokenPipeError):
        exit_code(broken)


@pytest.mark.redis
def test_a_query_or_batch_that_is_not_there(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("reports", "mapping"):
        assert main([command, "--query", "nobody", "--redis", redis_url]) == 2
        assert "It has: orders." in capsys.readouterr().err
    assert main(["reports", "--query", "orders", "--redis", redis_url, "--batch", "99"]) == 2
    assert "--batch = 99: has no reports" in capsys.readouterr().err


def test_a_redis_that_does_not_answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_REDIS", "redis://:secret@127.0.0.1:1/0")
    assert main(["mapping", "--query", "orders"]) == 2
    error = capsys.readouterr().err
    assert "does not answer" in error
    assert "secret" not in error


def test_the_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["archive", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.startswith("spark-submit ")
    names = sorted(path.suffix for path in (tmp_path / "new").iterdir())
    assert names == [".py", ".zip"]


def _report(worker: int) -> WorkerReport:
    return WorkerReport(
        query="orders",
        batch=5,
        epoch=1,
        worker=worker,
        attempt=0,
        executor="exec",
        process=1,
        at_ms=0,
        rows={"A": 10},
        late_rows={},
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
        group_rows=[5],
    )
