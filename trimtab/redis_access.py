"""Who we are to Redis: user, password and certificate authority, from the environment or from files.

A URL with a user or a password in it is used as it is. Any other gets the credentials that the environment has for the
server named by TRIMTAB_REDIS, and only if it is that server: a password is sent to no other one, whatever a query's
file names, and the servers that we start ourselves, which have none, are never asked for one.

Passwords in files are read anew for each connection, so a rotated Secret needs no restart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from redis.credentials import CredentialProvider

from trimtab.defaults import DEFAULT_REDIS, DEFAULT_REDIS_PORT, REDIS_VARIABLE
from trimtab.errors import InvalidInput

USER: Final = "TRIMTAB_REDIS_USER"
PASSWORD: Final = "TRIMTAB_REDIS_PASSWORD"
PASSWORD_FILE: Final = "TRIMTAB_REDIS_PASSWORD_FILE"
CA_FILE: Final = "TRIMTAB_REDIS_CA_FILE"
API_USER: Final = "TRIMTAB_REDIS_API_USER"
API_PASSWORD: Final = "TRIMTAB_REDIS_API_PASSWORD"
API_PASSWORD_FILE: Final = "TRIMTAB_REDIS_API_PASSWORD_FILE"

PASSWORD_REMEDY: Final = (
    f"Put the URL into {REDIS_VARIABLE}, or the password into {PASSWORD} or into the file that {PASSWORD_FILE} names."
)


class Credentials(CredentialProvider):
    """User and password for one role, as they are when a connection is made."""

    def __init__(self, user: str, password: str, password_file: str) -> None:
        self._user = user
        self._password = password
        self._file = password_file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._password
        if self._file:
            try:
                password = Path(self._file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                # A connection that fails, not a process: the file may be back for the next one.
                raise ConnectionError(f"the password of Redis cannot be read from {self._file}: {error}") from None
        return (self._user, password) if self._user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


def connection_options(url: str, *, api: bool = False, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Keyword arguments for `Redis.from_url`: nothing where the URL says everything itself.

    `api`: the REST API has a user of its own, where the environment names one.
    """
    parts = urlsplit(url)
    if not _is_ours(url, environ):
        return {}
    options: dict[str, Any] = {}
    if parts.scheme == "rediss" and (authority := environ.get(CA_FILE)):
        _check_file(CA_FILE, authority)
        options["ssl_ca_certs"] = authority
    if "@" in parts.netloc:
        return options
    names = (API_USER, API_PASSWORD, API_PASSWORD_FILE)
    if not api or not any(environ.get(name) for name in names):
        names = (USER, PASSWORD, PASSWORD_FILE)
    user, password, file = (environ.get(name, "") for name in names)
    if password and file:
        raise InvalidInput(names[2], file, f"cannot be combined with {names[1]}", "Set only one of the two.")
    if user and not (password or file):
        raise InvalidInput(names[0], user, "has no password", f"Set {names[2]} (or {names[1]}), too.")
    if file:
        _check_file(names[2], file)
    if password or file:
        options["credential_provider"] = Credentials(user, password, file)
    return options


def password_problem(url: str) -> str:
    """Why a URL must not be given on a command line, or nothing."""
    if ":" not in urlsplit(url).netloc.rpartition("@")[0]:
        return ""
    return "has a password, which other users of this machine can see (ps)"


def reason(error: Exception) -> str:
    """Whether nobody is there, or somebody who refuses us: never with an address or a name in it."""
    if isinstance(error, redis.AuthenticationError):
        return f"user or password is wrong or missing: see {USER} and {PASSWORD_FILE}, or {API_USER}"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return f"this user may not do that: see {USER} and {API_USER}, and docs/security.md for what each role may do"
    text = str(error).lower().replace("_", " ")
    if "certificate verify failed" in text:
        return f"its certificate is not trusted: name its authority in {CA_FILE}"
    if "wrong version number" in text or "record layer failure" in text:
        return "it does not speak TLS: write redis://, or another port"
    return type(error).__name__


def redacted(url: str) -> str:
    """The URL without its password: what may appear in messages."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://***@{tail}" if at else url


def _is_ours(url: str, environ: Mapping[str, str]) -> bool:
    return _place(url) == _place(environ.get(REDIS_VARIABLE) or DEFAULT_REDIS)


def _place(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        return (parts.hostname or "").replace("localhost", "127.0.0.1"), parts.port or DEFAULT_REDIS_PORT
    except ValueError:
        return url, 0


def _check_file(variable: str, path: str) -> None:
    if not os.access(path, os.R_OK) or not Path(path).is_file():
        raise InvalidInput(variable, path, "is not a file that can be read", "Name a file, or unset the variable.")
