"""`valkey-server FILE`: the embedded server. It was built without TLS, so where the file asks for it, this ends TLS.

Certificate and key are the files that the configuration names; behind it the server listens on loopback only.
"""

import asyncio
import os
import ssl
import sys
from pathlib import Path

server = os.environ["VALKEY_SERVER"]
lines = [line.split(maxsplit=1) for line in Path(sys.argv[1]).read_text().splitlines() if not line.startswith("#")]
settings = {words[0]: words[1] for words in lines if len(words) == 2}
if "tls-port" not in settings:
    os.execv(server, [server, sys.argv[1], *sys.argv[2:]])


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        inner = await asyncio.open_connection("127.0.0.1", 6000)
        await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer), return_exceptions=True)
    finally:
        writer.close()


async def main() -> int:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(settings["tls-cert-file"], settings["tls-key-file"])
    plain = {name: value for name, value in settings.items() if not name.startswith("tls-")}
    options = {**plain, "port": "6000", "bind": "127.0.0.1"}
    command = [server]
    for name, value in options.items():
        command += [f"--{name}", value.strip('"')]
    process = await asyncio.create_subprocess_exec(*command)
    loop = asyncio.get_running_loop()
    for number in (2, 15):
        loop.add_signal_handler(number, process.terminate)
    listener = await asyncio.start_server(joined, "0.0.0.0", int(settings["tls-port"]), ssl=context)
    async with listener:
        return await process.wait()


sys.exit(asyncio.run(main()))
