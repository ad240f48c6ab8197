"""Random joins: definition, rows and batches, all from one seed.

A theme fixes what a case must cover (key type, streams, plan ...); everything else is drawn. Times lie on a coarse grid
where `grid_us` says so: then rows fall exactly on the window's edge and on the watermark, where off-by-one errors live.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.checkers.oracle import Combination, Condition, Row
from trimtab import JoinQuery, Stream

UTC = datetime.UTC
SECOND = 1_000_000
START_US = 1_700_000_000 * SECOND
NAN = float("nan")


@dataclass(frozen=True)
class Key:
    """A type of key: its columns, and the n-th value of each (n below the number of different keys wanted)."""

    columns: tuple[tuple[str, pa.DataType], ...]
    value: Callable[[int], tuple[Any, ...]]
    spark: str | None = None
    """SQL that makes the key column from the file's, for types that Parquet does not have."""


def _one(kind: pa.DataType, value: Callable[[int], Any], spark: str | None = None) -> Key:
    return Key((("k", kind),), lambda n: (value(n),), spark)


_DOUBLES = [NAN, -0.0, 0.0, float("inf"), float("-inf"), 5e-324, 1.5]
_STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string()), ("d", pa.float64())])

KEYS: dict[str, Key] = {
    "bigint": _one(pa.int64(), lambda n: n - 2**63 if n % 3 == 0 else n),
    "int": _one(pa.int32(), lambda n: -n),
    "string": _one(pa.string(), lambda n: f"k{n}" if n else ""),
    "collated": _one(pa.string(), lambda n: f"K{n}" if n % 2 else f"k{n}", "collate(k, 'UTF8_LCASE')"),
    "double": _one(pa.float64(), lambda n: _DOUBLES[n] if n < len(_DOUBLES) else n / 7),
    "float": _one(pa.float32(), lambda n: _DOUBLES[n] if n < 5 else n * 0.5),
    "decimal(10,2)": _one(pa.decimal128(10, 2), lambda n: Decimal(n - 3) / 100),
    "decimal(30,3)": _one(pa.decimal128(30, 3), lambda n: Decimal(n) * 10**20 + Decimal("0.125")),
    "date": _one(pa.date32(), lambda n: datetime.date(1969, 12, 30) + datetime.timedelta(n)),
    "timestamp": _one(
        pa.timestamp("us", "UTC"),
        lambda n: datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC) + datetime.timedelta(microseconds=n),
    ),
    "boolean": _one(pa.bool_(), lambda n: n % 2 == 0),
    "binary": _one(pa.binary(), lambda n: bytes([n % 256, 0, n // 256])),
    "int,string": Key((("k1", pa.int32()), ("k2", pa.string())), lambda n: (n % 3, f"s{n // 3}")),
    "int,int": Key((("k1", pa.int32()), ("k2", pa.int32())), lambda n: (-(n % 3), n // 3 - 1)),
    "short,float,byte": Key(
        (("k1", pa.int16()), ("k2", pa.float32()), ("k3", pa.int8())),
        lambda n: (-n, [NAN, -0.0, 0.0, 1.0][n % 4], -(n % 2)),
    ),
    "struct": _one(_STRUCT, lambda n: {"a": None if n % 4 == 0 else n, "b": f"b{n % 3}", "d": _DOUBLES[n % 5]}),
    "array<int>": _one(pa.list_(pa.int32()), lambda n: [None if n % 2 else n, *range(n % 3)]),
}

PAYLOAD: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "list": (
        pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())])),
        lambda r: [
            None if r.random() < 0.2 else {"x": r.randrange(9), "y": "é" * r.randrange(3)}
            for _ in range(r.randrange(4))
        ],
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        lambda r: [(name, r.choice([None, 1, 2**40])) for name in r.sample(["a", "b", "c"], r.randrange(4))],
    ),
    "struct": (
        pa.struct([("d", pa.decimal128(12, 3)), ("t", pa.timestamp("us", "UTC")), ("b", pa.binary())]),
        lambda r: {
            "d": Decimal(r.randrange(-(10**9), 10**9)) / 1000,
            "t": datetime.datetime(1900, 1, 1, tzinfo=UTC) + datetime.timedelta(microseconds=r.randrange(10**15)),
            "b": r.randbytes(r.randrange(5)),
        },
    ),
    "wide": (pa.decimal128(38, 10), lambda r: Decimal(r.randrange(10**30)) / 10**10),
    "double": (pa.float64(), lambda r: r.choice(_DOUBLES)),
    "date": (pa.date32(), lambda r: datetime.date(1, 1, 1) + datetime.timedelta(r.randrange(3_000_000))),
    "nothing": (pa.string(), lambda r: None),
}


def _values(combination: Combination, *names: str) -> list[Any] | None:
    """Values of columns written A.n, or None if one of them is null."""
    found = [combination[name[0]][name[2:]] for name in names]
    return None if any(value is None for value in found) else found


def _strict(sql: str, names: Sequence[str], holds: Callable[..., bool]) -> Condition:
    """A condition that is unknown as soon as one of its columns is null."""

    def evaluated(combination: Combination) -> bool | None:
        values = _values(combination, *names)
        return None if values is None else holds(*values)

    return Condition(sql, tuple(sorted({name[0] for name in names})), evaluated)


def _either(combination: Combination) -> bool | None:
    sides = [
        None if (v := _values(combination, "A.n", "B.n")) is None else v[0] + v[1] > 12,
        None if (v := _values(combination, "A.tag", "B.tag")) is None else v[0] == v[1],
    ]
    return True if True in sides else None if None in sides else False


IN_JOIN = [
    _strict("A.n < B.n", ["A.n", "B.n"], lambda a, b: a < b),
    _strict("B.price * 2 >= A.price", ["A.price", "B.price"], lambda a, b: b * 2 >= a),
    _strict("A.tag IN ('x', B.tag)", ["A.tag", "B.tag"], lambda a, b: a in ("x", b)),
    _strict("A.tag LIKE 'x%' OR B.tag LIKE '%y'", ["A.tag", "B.tag"], lambda a, b: a[:1] == "x" or b[-1:] == "y"),
    Condition("A.n + B.n > 12 OR A.tag = B.tag", ("A", "B"), _either),
    Condition(
        "NOT (A.n + B.n > 12 OR A.tag = B.tag)", ("A", "B"), lambda c: None if (e := _either(c)) is None else not e
    ),
    Condition("A.n IS NULL OR B.n IS NOT NULL", ("A", "B"), lambda c: c["A"]["n"] is None or c["B"]["n"] is not None),
]
IN_JOIN_3 = [
    _strict("C.n BETWEEN A.n AND B.n + 5", ["A.n", "B.n", "C.n"], lambda a, b, c: a <= c <= b + 5),
    _strict("B.n <= C.n", ["B.n", "C.n"], lambda b, c: b <= c),
    _strict("CAST(A.n AS bigint) - C.n < 6", ["A.n", "C.n"], lambda a, c: a - c < 6),
]
AFTER_UNION = [
    _strict("concat(A.tag, B.tag) <> 'xy'", ["A.tag", "B.tag"], lambda a, b: a + b != "xy"),
    _strict("length(A.tag) + length(B.tag) > 1", ["A.tag", "B.tag"], lambda a, b: len(a) + len(b) > 1),
]
ALONE = [
    _strict("A.n <> 3", ["A.n"], lambda n: n != 3),
    _strict("upper(B.tag) <> 'Z'", ["B.tag"], lambda tag: tag.upper() != "Z"),
    Condition("B.n IS NULL OR B.n % 5 <> 0", ("B",), lambda c: c["B"]["n"] is None or c["B"]["n"] % 5 != 0),
]


@dataclass(frozen=True)
class Theme:
    """What a case must have; None is left to chance."""

    key: str | None = None
    streams: int | None = None
    plan: str | None = None
    window: str | None = None
    lateness: str | None = "1 second"
    conditions: tuple[Condition, ...] | None = None
    grid_us: int | None = None
    keys: int | None = None
    """Number of different keys; 1: all rows on one."""
    partitions: int | None = None
    workers: int = 2
    rows: int = 120
    start_us: int = START_US
    ordered: bool = False
    nulls: bool = True
    time_zone: str = "UTC"
    restart: bool = False
    """The query stops in the middle and goes on from its checkpoint."""
    rebuild: bool = False
    """Every batch makes its resident state anew from the durable one."""


@dataclass(frozen=True)
class Case:
    theme: Theme
    seed: int
    query: JoinQuery
    conditions: tuple[Condition, ...]
    schemas: dict[str, pa.Schema]
    phases: list[dict[str, list[list[Row]]]]
    """Files of each stream, in phases: in each the query reads all files there are, then stops."""
    spark_types: dict[str, str]

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.theme}\n{self.query!r}"


def make_case(seed: int, theme: Theme, name: str) -> Case:
    r = random.Random(f"{seed}")
    count = theme.streams or r.randrange(2, 6)
    names = "ABCDE"[:count]
    theme = replace(
        theme,
        key=theme.key or r.choice(sorted(KEYS)),
        grid_us=theme.grid_us or r.choice([1, 1000, 100_000]),
        window=theme.window or r.choice(["200 milliseconds", "1 second", "2 seconds 500 milliseconds"]),
        lateness=theme.lateness and r.choice([theme.lateness, "0 seconds", "500 milliseconds", "3 seconds"]),
        plan=theme.plan or r.choice(["left-deep", "mjoin", _tree(r, names)]),
    )
    assert theme.key and theme.window and theme.plan
    conditions = _conditions(r, count) if theme.conditions is None else theme.conditions
    key = KEYS[theme.key]
    query = JoinQuery(
        name=name,
        streams=tuple(
            Stream(s, key=tuple(c for c, _ in key.columns) if len(key.columns) > 1 else "k", time="at") for s in names
        ),
        window=theme.window,
        lateness=theme.lateness,
        partitions=theme.partitions or r.choice([2, 7, 64]),
        workers=theme.workers,
        where=tuple(c.sql for c in conditions),
        ordered=theme.ordered,
        plan=theme.plan,
    )
    extra = {s: r.sample(sorted(PAYLOAD), r.randrange(0, 3)) for s in names}
    time_type = pa.timestamp("us", "UTC")
    schemas = {
        s: pa.schema(
            [
                ("id", pa.int64()),
                *key.columns,
                ("at", time_type),
                ("n", pa.int32()),
                ("tag", pa.string()),
                ("price", pa.float64()),
                *((f"p_{p}", PAYLOAD[p][0]) for p in extra[s]),
            ]
        )
        for s in names
    }
    # As many keys as leave each row with about one partner in each other stream.
    density = theme.rows * 2 * query.window_us / SECOND
    keys = theme.keys or max(3, round(density / (4 if count == 2 else 3 if count == 3 else 2)))
    draw = _Draw(r, theme, key, keys, extra)
    # Files in each phase: uneven, so that streams idle at the end of the first phase; then all go on.
    phases = []
    for first, files in ((0, 3), (3, 2)):
        phase = {}
        for s in names:
            there = files - (r.randrange(0, 3) if first == 0 and s != r.choice(names) else 0)
            phase[s] = [draw.rows(s, first + b) if r.random() > 0.1 else [] for b in range(there)]
        phases.append(phase)
    if not theme.restart:
        phases = [{s: [rows for phase in phases for rows in phase[s]] for s in names}]
    spark_types = {"k": key.spark} if key.spark else {}
    return Case(theme, seed, query, tuple(conditions), schemas, phases, spark_types)


@dataclass
class _Draw:
    r: random.Random
    theme: Theme
    key: Key
    keys: int
    extra: dict[str, list[str]]
    next_id: int = 0

    def rows(self, stream: str, batch: int) -> list[Row]:
        rows: list[Row] = []
        for _ in range(self.r.randrange(self.theme.rows // 2, self.theme.rows)):
            # A row that is there twice, in every column, is there twice in the result too.
            again = rows and self.r.random() < 0.05
            rows.append(dict(self.r.choice(rows)) if again else self._row(stream, batch))
        return rows

    def _row(self, stream: str, batch: int) -> Row:
        r, grid = self.r, self.theme.grid_us or 1
        late = r.random() < 0.08
        offset = r.uniform(-8, 0) if late else r.uniform(-0.7, 1)
        time_us = self.theme.start_us + int((batch + offset) * SECOND) // grid * grid
        at = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=time_us)
        values = list(
            self.key.value(
                min(int(r.expovariate(2.5 / self.keys)), self.keys - 1) if r.random() < 0.3 else r.randrange(self.keys)
            )
        )
        at_or_none: Any = at.replace(tzinfo=UTC)
        if self.theme.nulls and r.random() < 0.04:
            values[r.randrange(len(values))] = None
        if self.theme.nulls and r.random() < 0.03:
            at_or_none = None
        self.next_id += 1
        return {
            "id": self.next_id,
            **{column: value for (column, _), value in zip(self.key.columns, values, strict=True)},
            "at": at_or_none,
            "n": None if r.random() < 0.1 else r.randrange(10),
            "tag": r.choice([None, "x", "y", "z", "xy", ""]),
            "price": None if r.random() < 0.05 else round(r.random(), 3),
            **{f"p_{p}": None if r.random() < 0.1 else PAYLOAD[p][1](r) for p in self.extra[stream]},
        }


def _conditions(r: random.Random, streams: int) -> list[Condition]:
    pool = [*IN_JOIN, *(IN_JOIN_3 if streams > 2 else []), *AFTER_UNION, *ALONE]
    return r.sample(pool, r.randrange(0, 3))


def _tree(r: random.Random, names: Sequence[str]) -> str:
    """A random tree over the streams, as the query's plan writes it."""
    nodes = list(names)
    while len(nodes) > 1:
        r.shuffle(nodes)
        width = r.randrange(2, min(3, len(nodes)) + 1)
        nodes = [f"({' '.join(nodes[:width])})", *nodes[width:]]
    return nodes[0]
