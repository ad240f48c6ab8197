"""Keys from files: a directory such as a mounted Secret, with one file per key.

The file's name is the key's name, its lines are `field: value`:

    scope: operate
    key: trimtab_5f0c2a9d11e8_...

or, where the server is not to have the secret itself (`trimtab keys create --into DIR` writes this):

    scope: operate
    id: 5f0c2a9d11e8
    salt: ...
    hash: ...

The directory is read again at most once a second. A changed file is another key, a file that is gone is a key that is
revoked; nothing is restarted. A file that cannot be understood is refused when the server starts. Later it only
withdraws its own key: an operator's typing error must not lock everybody else out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from api.keys import NAME, KeyRecord, checked_scope, hashed, parse_key
from trimtab.errors import InvalidInput

REREAD_S: Final = 1.0
FILE_BYTES_MAX: Final = 4096
_FIELDS: Final = ("scope", "key", "id", "salt", "hash")
_RECORD: Final = {"id": "[0-9a-f]{12}", "salt": "[0-9a-f]{32}", "hash": "[0-9a-f]{64}"}
log = logging.getLogger("trimtab.keys")


class KeyFiles:
    """The keys in one directory."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.directory = directory
        self._clock = clock
        self._records: Mapping[str, KeyRecord] = {}
        self._known: dict[str, tuple[str, KeyRecord]] = {}
        """File name -> its text's hash under a salt of this process, and what it says: salts stay while texts do."""
        self._salt = secrets.token_hex(16)
        self._read_at = float("-inf")
        self._complaints: frozenset[str] = frozenset()
        self._lock = asyncio.Lock()

    def check(self) -> None:
        """Refuse a directory or a file in it that cannot be used: before the server starts."""
        records, complaints = self._read()
        for complaint in complaints:
            raise complaint
        self._records = records

    async def records(self) -> Mapping[str, KeyRecord]:
        """By id, as the files are now or were a second ago."""
        if self._clock() - self._read_at >= REREAD_S:
            async with self._lock:
                if self._clock() - self._read_at >= REREAD_S:
                    # In a thread: a volume that hangs must not keep the manager from its lease.
                    records, complaints = await asyncio.to_thread(self._read)
                    self._take(records, complaints)
        return self._records

    def _take(self, records: Mapping[str, KeyRecord], complaints: list[InvalidInput]) -> None:
        new, old = records.keys() - self._records.keys(), self._records.keys() - records.keys()
        for identity in sorted(new):
            log.info("key %s (%s, %s) is accepted now", identity, records[identity].name, records[identity].scope)
        for identity in sorted(old):
            log.info("key %s (%s) is revoked: its file is gone or changed", identity, self._records[identity].name)
        texts = frozenset(map(str, complaints))
        for text in sorted(texts - self._complaints):
            log.warning("a key is not accepted: %s", text)
        self._records, self._complaints, self._read_at = records, texts, self._clock()

    def _read(self) -> tuple[dict[str, KeyRecord], list[InvalidInput]]:
        complaints: list[InvalidInput] = []
        records: dict[str, KeyRecord] = {}
        try:
            # Kubernetes keeps the real files of a mounted Secret in directories whose names begin with two dots.
            paths = sorted(path for path in self.directory.iterdir() if not path.name.startswith("."))
        except OSError as error:
            remedy = "Name a directory with one file per key: trimtab keys create --into DIR makes one."
            return {}, [InvalidInput("--keys", str(self.directory), f"cannot be read ({error.strerror})", remedy)]
        for path in paths:
            try:
                record = self._record(path)
                if record.id in records:
                    raise InvalidInput(
                        str(path),
                        record.id,
                        f"is the key of {records[record.id].name}, too",
                        "Remove one of the files.",
                    )
                records[record.id] = record
            except InvalidInput as complaint:
                complaints.append(complaint)
        return records, complaints

    def _record(self, path: Path) -> KeyRecord:
        text, created_ms = _content(path)
        digest = hashed(self._salt, text)
        known = self._known.get(path.name)
        if known is None or known[0] != digest:
            known = self._known[path.name] = (digest, parse_key_file(path, text, created_ms))
        return known[1]


def parse_key_file(path: Path, text: str, created_ms: int) -> KeyRecord:
    """What a file says; values that may be secret are never repeated in errors."""
    if not re.fullmatch(NAME, path.name):
        raise InvalidInput(
            str(path), path.name, "is not a name for a key", "Name the file with letters, digits and . _ @ - only."
        )
    fields: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or name not in _FIELDS or name in fields:
            problem = f"line {number} is not one of the fields {', '.join(_FIELDS)}, each at most once"
            raise InvalidInput(
                str(path), "(hidden)", problem, "Write `scope: read` and `key: trimtab_...`, a line each."
            )
        fields[name] = value
    if "scope" not in fields:
        raise InvalidInput(f"{path}: scope", None, "is missing", "Add a line `scope: read`, `operate` or `admin`.")
    scope = checked_scope(f"{path}: scope", fields["scope"])
    if "key" in fields and len(fields) == 2:
        key = parse_key(fields["key"])
        if key is None:
            raise InvalidInput(
                f"{path}: key",
                "(hidden)",
                "is not a Trimtab key",
                "Copy it as `trimtab keys create` printed it: trimtab_, 12 hex digits, _, 43 characters.",
            )
        salt = secrets.token_hex(16)
        hash_ = hashed(salt, key.secret)
        return KeyRecord(id=key.id, name=path.name, scope=scope, salt=salt, hash=hash_, created_ms=created_ms)
    for name, pattern in _RECORD.items():
        if "key" in fields or not re.fullmatch(pattern, fields.get(name, "")):
            raise InvalidInput(
                f"{path}: {'key' if 'key' in fields else name}",
                "(hidden)" if name in fields else None,
                "a file has a key, or the id, salt and hash of one",
                "Write it anew: trimtab keys create --into DIR --name NAME --scope SCOPE",
            )
    return KeyRecord(
        id=fields["id"],
        name=path.name,
        scope=scope,
        salt=fields["salt"],
        hash=fields["hash"],
        created_ms=created_ms,
    )


def key_file_text(record: KeyRecord) -> str:
    """The content of a file for this key, without the secret."""
    return f"scope: {record.scope}\nid: {record.id}\nsalt: {record.salt}\nhash: {record.hash}\n"


def write_key_file(directory: Path, record: KeyRecord) -> Path:
    """Write DIR/NAME, readable by its owner only. A file that is there is another key and stays."""
    path = directory / record.name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(key_file_text(record), encoding="ascii")
    except FileExistsError:
        raise InvalidInput(
            "--name", record.name, f"{path} exists already", "Remove it to revoke that key, or choose another name."
        ) from None
    except OSError as error:
        raise InvalidInput(
            "--into", str(directory), f"cannot be written ({error.strerror})", "Give a directory of your own."
        ) from None
    return path


def _opened(path: str, flags: int) -> int:
    """Without waiting: whoever opens a pipe waits for somebody to write into it, and so would every request."""
    return os.open(path, flags | os.O_NONBLOCK)


def _content(path: Path) -> tuple[str, int]:
    """Its text, and when it was written. Asked of the open file, which the kubelet may replace at any moment."""
    try:
        with open(path, "rb", opener=_opened) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "not a file")
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) <= FILE_BYTES_MAX:
            return data.decode("ascii"), int(status.st_mtime * 1000)
        problem = f"is larger than {FILE_BYTES_MAX} bytes"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except UnicodeDecodeError:
        problem = "is not plain text"
    raise InvalidInput(
        "--keys", str(path), problem, "A key's file has two lines: `scope: read` and `key: trimtab_...`."
    )
