"""The verdict: DuckDB joins the same input files, and the result is compared with what the query wrote.

Both are compared as multisets over all columns, so that every missing, extra or duplicate row is found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import duckdb

_COLUMNS = ("user", "price", "at")
_TYPES = {"user": "BIGINT", "price": "DOUBLE", "at": "TIMESTAMPTZ"}

# In SQL nothing equals null, so rows with a null key or time do not join here either. Rows that are older than a fixed
# time are late in every batch and are left out: the workload guarantees that.
#
# Two times that are at most one window apart lie in the same slot of that length or in neighbouring slots. So rows of b
# and c are put into three slots each, and a row of a meets them in exactly one. Without slots all rows of a hot key
# would be compared with each other.
_EXPECTED = """
CREATE TEMP TABLE expected AS
WITH a AS (SELECT *, epoch_us("at") // {width} AS slot FROM a),
     b AS (SELECT *, unnest(range(epoch_us("at") // {width} - 1, epoch_us("at") // {width} + 2)) AS slot FROM b),
     c AS (SELECT *, unnest(range(epoch_us("at") // {width} - 1, epoch_us("at") // {width} + 2)) AS slot FROM c)
SELECT {columns}
FROM a JOIN b ON a."user" = b."user" AND a.slot = b.slot
       JOIN c ON a."user" = c."user" AND a.slot = c.slot
WHERE greatest(a."at", b."at", c."at") - least(a."at", b."at", c."at") <= {window}
  AND a.price < b.price
"""


@dataclass(frozen=True)
class JoinVerdict:
    """How two multisets of rows differ: a row that is there twice instead of once is extra."""

    expected: int
    got: int
    missing: int
    extra: int
    examples: tuple[str, ...] = field(default=(), compare=False)
    """Some rows that are missing or extra."""

    @property
    def good(self) -> bool:
        return self.missing == 0 and self.extra == 0

    def __str__(self) -> str:
        return f"expected {self.expected:,}, got {self.got:,}, missing {self.missing:,}, extra {self.extra:,}"


def verdict(
    inputs: Mapping[str, Iterable[Path]], output: Iterable[Path], *, window_us: int, late_before_us: int
) -> JoinVerdict:
    """`inputs` are the files of the streams A, B and C, `output` the files that the query has committed."""
    connection = duckdb.connect()
    try:
        connection.execute("SET TimeZone = 'UTC'")
        for stream in ("A", "B", "C"):
            _load(connection, stream.lower(), _COLUMNS, _TYPES, inputs[stream], late_before_us)
        columns = ", ".join(f'{s}."{c}" AS "{s}_{c}"' for s in ("A", "B", "C") for c in _COLUMNS)
        window = f"to_microseconds({int(window_us)})"
        connection.execute(_EXPECTED.format(columns=columns, window=window, width=int(window_us)))
        names = [f"{stream}_{column}" for stream in ("A", "B", "C") for column in _COLUMNS]
        types = {name: _TYPES[name.partition("_")[2]] for name in names}
        _load(connection, "got", names, types, output, None)
        missing = "SELECT * FROM expected EXCEPT ALL SELECT * FROM got"
        extra = "SELECT * FROM got EXCEPT ALL SELECT * FROM expected"
        return JoinVerdict(
            expected=_count(connection, "SELECT * FROM expected"),
            got=_count(connection, "SELECT * FROM got"),
            missing=_count(connection, missing),
            extra=_count(connection, extra),
            examples=(*_examples(connection, "missing", missing, names), *_examples(connection, "extra", extra, names)),
        )
    finally:
        connection.close()


def committed_files(directory: Path) -> list[Path]:
    """The committed files, according to the file sink's own log: failed attempts may have left other files."""
    log = directory / "_spark_metadata"
    batches = {
        int(path.name.removesuffix(".compact")): path
        for path in sorted(log.glob("*"))  # N.compact sorts after N and has all batches up to N
        if path.name.removesuffix(".compact").isdigit()
    }
    compact = max((number for number, path in batches.items() if path.suffix == ".compact"), default=-1)
    uris: dict[str, None] = {}
    for number, path in sorted(batches.items()):
        if number < compact:
            continue
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            uris[str(json.loads(line)["path"])] = None
    return [Path(unquote(urlparse(uri).path)) for uri in uris]


def _load(
    connection: Any,
    name: str,
    columns: Sequence[str],
    types: Mapping[str, str],
    files: Iterable[Path],
    late_before_us: int | None,
) -> None:
    """A table of the files' rows without the late ones; empty if there are no files."""
    paths = [str(path) for path in files]
    quoted = [f'"{column}"' for column in columns]
    typed = ", ".join(f'"{column}" {types[column]}' for column in columns)
    connection.execute(f"CREATE TEMP TABLE {name} ({typed})")
    if not paths:
        return
    condition = "" if late_before_us is None else f'WHERE "at" >= make_timestamptz({int(late_before_us)})'
    select = f"SELECT {', '.join(quoted)} FROM read_parquet($paths) {condition}"
    connection.execute(f"INSERT INTO {name} {select}", {"paths": paths})


def _examples(connection: Any, word: str, select: str, names: Sequence[str], most: int = 3) -> list[str]:
    columns = ", ".join(f'"{name}"' for name in names)
    rows = connection.execute(f"SELECT * FROM ({select}) ORDER BY {columns} LIMIT {most}").fetchall()
    return [f"{word}: {dict(zip(names, map(str, row), strict=True))}" for row in rows]


def _count(connection: Any, select: str) -> int:
    # DuckDB 2.0: results are fetched from the connection, relations have no fetchone().
    return int(connection.execute(f"SELECT count(*) FROM ({select})").fetchall()[0][0])
