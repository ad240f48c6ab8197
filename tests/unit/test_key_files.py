"""`trimtab serve --keys DIR`: keys from a mounted Secret, rotated and revoked without a restart."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from api.embedded import EmbeddedServer
from api.key_files import REREAD_S, KeyFiles
from api.keys import new_key
from api.tails import CHECK_S
from commands.cli import main
from tests.checkers.clock import ManualClock
from tests.checkers.served import FRESH
from tests.simulation.data_plane import DataPlane
from trimtab.embedded import EmbeddedRedis
from trimtab.errors import InvalidInput

SECRET = "A" * 43
KEY = f"trimtab_0123456789ab_{SECRET}"


def write(directory: Path, name: str, scope: str = "operate", key: str = KEY) -> None:
    (directory / name).write_text(f"# of the night shift\nscope: {scope}\nkey: {key}\n")


def mounted(directory: Path, version: str, contents: dict[str, str]) -> None:
    """As the kubelet does it: new files beside the old ones, then one link is exchanged."""
    real = directory / f"..{version}"
    real.mkdir()
    for name, text in contents.items():
        (real / name).write_text(text)
    link = directory / "..new"
    link.symlink_to(real.name)
    link.rename(directory / "..data")
    for path in directory.iterdir():
        if not path.name.startswith("..") and path.name not in contents:
            path.unlink()
    for name in contents:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")


@pytest.fixture(scope="module")
def redis_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as running:
        yield running


def test_a_key_is_accepted_rotated_and_revoked_without_a_restart(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    clock = ManualClock(100.0)
    first, second = (f"trimtab_{digit * 12}_{SECRET}" for digit in "12")
    mounted(tmp_path, "2026_01_01", {"ops": f"scope: read\nkey: {first}"})
    server = EmbeddedServer(redis_server.url, gate=FRESH, with_manager=False, clock=clock, keys=tmp_path)
    with server, httpx.Client(base_url=server.url, timeout=10) as client:

        def status(key: str, method: str = "GET", path: str = "/v1/queries") -> int:
            clock.now_s += 5.0
            return client.request(method, path, headers={"Authorization": f"Bearer {key}"}).status_code

        assert (status(first), status(second)) == (200, 401)
        mounted(tmp_path, "2026_01_02", {"ops": f"scope: admin\nkey: {second}", "old": f"scope: read\nkey: {first}"})
        assert (status(first), status(second)) == (200, 200)
        assert (status(first, path="/v1/keys"), status(second, path="/v1/keys")) == (403, 200)
        shown = client.get("/v1/keys", headers={"Authorization": f"Bearer {second}"}).json()["keys"]
        assert [(each["name"], each["scope"], each["from"]) for each in sorted(shown, key=lambda it: it["name"])] == [
            ("old", "read", "file"),
            ("ops", "admin", "file"),
        ]
        refused = client.delete("/v1/keys/old", headers={"Authorization": f"Bearer {second}"})
        assert refused.status_code == 409
        assert "Remove that file" in refused.json()["remedy"]
        mounted(tmp_path, "2026_01_03", {"ops": f"scope: admin\nkey: {second}"})
        assert (status(first), status(second)) == (401, 200)
        redis_server.kill()  # a key in a file is known without Redis: the answer is 503, not 401
        assert status(second) == 503
        redis_server.start()


def test_a_stream_ends_when_the_file_of_its_key_goes(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """As with a key in Redis, and a key whose file stays goes on."""
    clock = ManualClock(100.0)
    DataPlane(redis_server.url).step()
    kept, gone = (f"trimtab_{digit * 12}_{SECRET}" for digit in "34")
    write(tmp_path, "kept", "read", kept)
    write(tmp_path, "gone", "read", gone)
    server = EmbeddedServer(redis_server.url, gate=FRESH, with_manager=False, clock=clock, keys=tmp_path)
    path, still = "/v1/queries/orders/events", ": still here"
    with server, httpx.Client(base_url=server.url, timeout=30) as client, ExitStack() as streams:
        lines = []
        for key in (kept, gone):
            bearer = {"Authorization": f"Bearer {key}", "Accept": "text/event-stream"}
            answer = streams.enter_context(client.stream("GET", path, headers=bearer))
            lines.append(line for line in answer.iter_lines() if line)
        assert [next(each) for each in lines] == ["retry: 2000"] * 2
        clock.now_s += CHECK_S
        assert [next(each) for each in lines] == [still] * 2
        (tmp_path / "gone").unlink()
        clock.now_s += CHECK_S
        assert next(lines[0]) == still
        assert list(lines[1]) == []


def test_a_bad_file_withdraws_its_own_key_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    other = f"trimtab_{'f' * 12}_{SECRET}"
    write(tmp_path, "good")
    write(tmp_path, "bad", key=other)
    files = KeyFiles(tmp_path, clock)
    files.check()

    async def ids() -> list[str]:
        clock.now_s += REREAD_S
        return sorted((await files.records()).keys())

    assert asyncio.run(ids()) == ["0123456789ab", "f" * 12]
    write(tmp_path, "bad", scope="operator", key=other)
    with caplog.at_level(logging.INFO, "trimtab.keys"):
        assert asyncio.run(ids()) == ["0123456789ab"]
        assert asyncio.run(ids()) == ["0123456789ab"]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, "once, not every second"
    assert "scope = 'operator': is not a scope. Use one of read, operate, admin." in said[1]
    assert SECRET not in " ".join(said)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ops", f"key: {KEY}\n", "scope = None: is missing. Add a line `scope: read`"),
        ("ops", f"scope: root\nkey: {KEY}", "scope = 'root': is not a scope"),
        ("ops", f"scope: read\nkey: {KEY[:-1]}", "key = '(hidden)': is not a Trimtab key"),
        ("ops", f"scope: read\nscope: admin\nkey: {KEY}", "line 2 is not one of the fields"),
        ("ops", f"scope: read\n{KEY}", "line 2 is not one of the fields"),
        ("ops", "scope: read\nid: 0123456789ab\n", "salt = None: a file has a key, or the id, salt and hash"),
        ("ops", f"scope: read\nkey: {KEY}\nid: 0123456789ab", "a file has a key, or the id, salt and hash"),
        ("ops", "scope: read\nkey: " + "x" * 5000, "is larger than 4096 bytes"),
        ("ops", "scope: read\nkey: \N{SNOWMAN}", "is not plain text"),
        ("my key", f"scope: read\nkey: {KEY}", "is not a name for a key"),
    ],
)
def test_a_bad_file_is_refused_at_the_start(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput) as caught:
        KeyFiles(tmp_path).check()
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert SECRET[:40] not in str(caught.value)


def test_what_is_no_file_does_not_hold_up_requests(tmp_path: Path) -> None:
    """A directory, a link to nothing, and a pipe, which nobody writes."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("..data/link")
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path, "good")
    files = KeyFiles(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    assert list(asyncio.run(files.records())) == ["0123456789ab"]
    assert len(os.listdir("/proc/self/fd")) <= before
    for name in ("directory", "link", "pipe"):
        with pytest.raises(InvalidInput, match=r"--keys = .*cannot be read"):
            files.check()
        path = tmp_path / name
        path.rmdir() if name == "directory" else path.unlink()
    files.check()


def test_a_file_that_goes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet exchanges all files at once, between any two of our calls."""
    write(tmp_path, "going")
    opened = os.open

    def and_gone(path: Path, flags: int) -> int:
        descriptor = opened(path, flags)
        os.unlink(path)
        return descriptor

    monkeypatch.setattr(os, "open", and_gone)
    files = KeyFiles(tmp_path, clock := ManualClock(0.0))
    assert list(asyncio.run(files.records())) == ["0123456789ab"]
    clock.now_s += REREAD_S
    assert list(asyncio.run(files.records())) == []


def test_two_files_with_one_key_and_a_missing_directory(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b")
    with pytest.raises(InvalidInput, match="is the key of a, too"):
        KeyFiles(tmp_path).check()
    with pytest.raises(InvalidInput, match=r"--keys = .*No such file or directory.*keys create --into DIR"):
        KeyFiles(tmp_path / "nothing").check()


def test_serve_refuses_a_bad_directory_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "--keys", str(tmp_path / "nothing")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("trimtab: --keys = ")
    assert said.count("\n") == 1


def test_the_command_writes_a_file_without_the_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "keys"
    assert main(["keys", "create", "--name", "ops", "--scope", "operate", "--into", str(directory)]) == 0
    key = capsys.readouterr().out.strip()
    text = (directory / "ops").read_text()
    assert key.split("_", 2)[2] not in text
    assert key not in text
    assert os.stat(directory / "ops").st_mode & 0o777 == 0o600
    files = KeyFiles(directory)
    files.check()
    record = asyncio.run(files.records())[key.split("_")[1]]
    assert (record.name, record.scope, record.matches(key.split("_", 2)[2])) == ("ops", "operate", True)
    assert main(["keys", "create", "--name", "ops", "--into", str(directory)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_what_redis_has_is_accepted_beside_the_files(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    write(tmp_path, "ops")
    server = EmbeddedServer(redis_server.url, gate=FRESH, with_manager=False, keys=tmp_path)
    with server, httpx.Client(base_url=server.url, timeout=10) as client:
        for key in (KEY, server.key("read", "other")):
            assert client.get("/v1/queries", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        stranger, _ = new_key("x", "admin", 0)
        assert client.get("/v1/queries", headers={"Authorization": f"Bearer {stranger}"}).status_code == 401
