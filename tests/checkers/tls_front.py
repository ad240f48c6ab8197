"""TLS in front of a server on this machine: the Valkey of the tests is built without it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificate:
    """For localhost and 127.0.0.1, made for one test: no key lies in the repository."""

    authority: Path
    chain: Path
    key: Path


def make_certificate(directory: Path) -> Certificate:
    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    made = Certificate(directory / "authority.pem", directory / "chain.pem", directory / "key.pem")
    authority.cert_pem.write_to_path(made.authority)
    made.chain.write_bytes(b"".join(each.bytes() for each in server.cert_chain_pems))
    server.private_key_pem.write_to_path(made.key)
    return made


@contextlib.contextmanager
def tls_front(port: int, certificate: Certificate) -> Iterator[int]:
    """The port on which `port` answers with TLS."""
    loop = asyncio.new_event_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, before = await asyncio.open_connection("127.0.0.1", port)
        ways = [asyncio.create_task(_pump(reader, before)), asyncio.create_task(_pump(behind, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for each in (before, writer):
            each.close()

    server = loop.run_until_complete(asyncio.start_server(relay, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
