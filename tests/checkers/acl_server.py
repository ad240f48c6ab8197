"""A real Valkey that asks for a password, with the users of an ACL file."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import redis

from trimtab.embedded.redis_server import find_server_binary, free_port

ACL_FILE = Path(__file__).parents[2] / "deploy/helm/trimtab/files/users.acl"
ROLES = ("manager", "api", "query", "probe")
ADMIN = "user admin on >admin-password ~* &* +@all\n"


def acl_text(passwords: Mapping[str, str]) -> str:
    """The chart's ACL file with passwords filled in."""
    text = ACL_FILE.read_text(encoding="utf-8")
    for role in ROLES:
        text = text.replace(f"{role.upper()}_PASSWORD", passwords[role])
    return text


class AclServer:
    def __init__(self, port: int, directory: Path) -> None:
        self.port = port
        self.directory = directory
        self.url = f"redis://127.0.0.1:{port}/0"

    def url_as(self, user: str, password: str) -> str:
        return f"redis://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/0"

    def client(self, user: str, password: str) -> redis.Redis:
        return redis.Redis.from_url(self.url_as(user, password), decode_responses=True)

    def admin(self) -> redis.Redis:
        return self.client("admin", "admin-password")


@contextmanager
def acl_server(directory: Path, text: str, options: Mapping[str, str] | None = None) -> Iterator[AclServer]:
    """It reads users from a file, as the chart's does."""
    users = directory / "users.acl"
    users.write_text(text + ADMIN, encoding="utf-8")
    port = free_port()
    settings = {"port": str(port), "bind": "127.0.0.1", "save": "", "dir": str(directory), "aclfile": str(users)}
    command = [str(find_server_binary())]
    for name, value in {**settings, **(options or {})}.items():
        command += [f"--{name}", value]
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        server = AclServer(port, directory)
        deadline = time.monotonic() + 15
        with server.admin() as admin:
            while True:
                try:
                    admin.ping()
                    break
                except redis.ConnectionError:
                    said = (directory / "server.log").read_text(errors="replace")
                    assert process.poll() is None and time.monotonic() < deadline, said
                    time.sleep(0.02)
        yield server
    finally:
        process.kill()
        process.wait()
