"""Which sockets a split task acknowledges promptly, and that batches pass as they are."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from split_union import acknowledging
from split_union.acknowledging import acknowledge, connected_here, promptly


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            yield one, other


def ends(found: list[socket.socket]) -> set[object]:
    return {each.getsockname() for each in found}


def test_connections_to_this_machine_are_found_and_stay_open(connection: tuple[socket.socket, socket.socket]) -> None:
    one, other = connection
    found = connected_here()
    assert {one.getsockname(), other.getsockname()} <= ends(found)
    for each in found:
        each.close()
    one.sendall(b"still open")
    assert other.recv(20) == b"still open"


def test_nothing_else_is(connection: tuple[socket.socket, socket.socket]) -> None:
    left, right = socket.socketpair()
    with left, right, socket.create_server(("127.0.0.1", 0)) as server, open(os.devnull):
        found = connected_here()
        assert server.getsockname() not in ends(found)
        assert all(each.family != socket.AF_UNIX for each in found)
        for each in found:
            each.close()


def test_it_is_said_before_each_read(
    connection: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(acknowledging, "acknowledge", lambda _: said.append("acknowledge"))

    def batches() -> Iterator[int]:
        for number in range(2):
            said.append(f"read {number}")
            yield number
        said.append("read the end")

    assert list(promptly(batches())) == [0, 1]
    assert said == ["acknowledge", "read 0", "acknowledge", "read 1", "acknowledge", "read the end"]


def test_a_connection_that_is_closed_does_no_harm(connection: tuple[socket.socket, socket.socket]) -> None:
    one, _ = connection
    one.close()
    acknowledge([one])


def test_numbers_are_given_back(connection: tuple[socket.socket, socket.socket]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert list(promptly([1, 2, 3])) == [1, 2, 3]
    reading = promptly(iter([1, 2]))
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == before
