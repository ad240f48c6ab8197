"""TLS in front of a server on this machine: the Valkey of the tests is built without it.

The certificate is its own authority, for localhost and 127.0.0.1, and protects nothing. Made by

    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -subj "/CN=for tests only" \
        -addext "subjectAltName=DNS:localhost,IP:127.0.0.1" -addext "basicConstraints=critical,CA:TRUE" \
        -keyout tests/checkers/tls/key.pem -out tests/checkers/tls/certificate.pem
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

CERTIFICATE = Path(__file__).parent / "tls/certificate.pem"
KEY = CERTIFICATE.with_name("key.pem")


@contextlib.contextmanager
def tls_front(port: int) -> Iterator[int]:
    """The port on which `port` answers with TLS."""
    loop = asyncio.new_event_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)

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
