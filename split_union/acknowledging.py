"""Reading what the JVM sends over TCP, without the pauses of two rules that wait for each other.

Spark leaves Nagle's algorithm on: the JVM keeps a small write back until what it sent before is acknowledged. The
kernel on this side delays acknowledgements by 40 ms, since an answer might carry them. The last words of a stream are
such a small write, and many a split task waited for them. TCP_QUICKACK sends what is due at once; the kernel forgets
it, so it is said again before each read. Over Unix sockets there is nothing to acknowledge.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, TypeVar

Batch = TypeVar("Batch")
_QUICK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)
_OPEN: Final = "/proc/self/fd"


def promptly(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same batches, whatever this process is connected to."""
    with ExitStack() as stack:
        connections = [stack.enter_context(each) for each in connected_here()]
        acknowledge(connections)
        for batch in batches:
            yield batch
            acknowledge(connections)


def acknowledge(connections: Sequence[socket.socket]) -> None:
    for each in connections:
        try:
            if _QUICK is not None:
                each.setsockopt(socket.IPPROTO_TCP, _QUICK, 1)
        except OSError:
            # Closed by now: there is nothing to wait for.
            pass


def connected_here() -> list[socket.socket]:
    """This process's TCP connections to its own machine, under numbers of their own: close them."""
    found: list[socket.socket] = []
    if _QUICK is None or not os.path.isdir(_OPEN):
        return found
    for name in os.listdir(_OPEN):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            each = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        if _is_local(each):
            found.append(each)
        else:
            each.close()
    return found


def _is_local(each: socket.socket) -> bool:
    if each.family not in (socket.AF_INET, socket.AF_INET6) or each.type != socket.SOCK_STREAM:
        return False
    try:
        return ipaddress.ip_address(each.getpeername()[0]).is_loopback
    except (OSError, ValueError):
        return False
