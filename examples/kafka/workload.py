"""Orders and payments, the same in every run, and what their join must be."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

START_MS: Final = 1_767_225_600_000
USERS: Final = 100
ROWS: Final = 400
"""Of each stream in a wave, which is a second of event time."""
BAD_EVERY: Final = 100
WINDOW_MS: Final = 2_000

Record = tuple[bytes | None, bytes, int]
"""Key, value, milliseconds."""


@dataclass
class Workload:
    """Waves of records. Rows of a wave are in disorder, but never so late that one may be dropped."""

    orders: list[tuple[int, int, float, int]] = field(default_factory=list)
    """number, user, price, milliseconds"""
    payments: list[tuple[int, int, float, int]] = field(default_factory=list)
    bad: int = 0
    waves: int = 0

    def wave(self) -> tuple[list[Record], list[Record]]:
        """The next orders and payments; a few orders cannot be used."""
        chance = np.random.default_rng(self.waves)
        orders: list[Record] = []
        payments: list[Record] = []
        for number in range(self.waves * ROWS, (self.waves + 1) * ROWS):
            user, paying = (int(each) for each in USERS * chance.random(2) ** 2)
            price, amount = (round(float(each), 2) for each in chance.uniform(1, 100, 2))
            ordered_ms, paid_ms = (START_MS + self.waves * 1000 + int(each) for each in chance.integers(0, 1000, 2))
            at = np.datetime64(ordered_ms, "ms").item().isoformat() + "Z"
            if number % BAD_EVERY == BAD_EVERY - 1:
                self.bad += 1
                orders.append((None, b"not an order" if number % 200 > BAD_EVERY else b'{"number": 1}', ordered_ms))
            else:
                self.orders.append((number, user, price, ordered_ms))
                body = {"number": number, "user": user, "price": price, "at": at}
                orders.append((None, json.dumps(body).encode(), ordered_ms))
            self.payments.append((number, paying, amount, paid_ms))
            body = {"number": number, "amount": amount}
            payments.append((str(paying).encode(), json.dumps(body).encode(), paid_ms))
        self.waves += 1
        return orders, payments


@dataclass(frozen=True)
class Verdict:
    expected: int
    got: int
    missing: int
    extra: int

    @property
    def good(self) -> bool:
        return self.missing == 0 and self.extra == 0

    def __str__(self) -> str:
        return f"expected {self.expected:,}, got {self.got:,}, missing {self.missing:,}, extra {self.extra:,}"


def verdict(load: Workload, results: list[tuple[int, int]]) -> Verdict:
    """DuckDB joins what was sent; `results` are pairs of numbers, each as often as the consumer has it."""
    connection = duckdb.connect()
    try:
        for name, rows in (("orders", load.orders), ("payments", load.payments)):
            columns = list(zip(*rows, strict=True))
            table = pa.table(dict(zip(("number", "person", "price", "ms"), columns, strict=True)))
            connection.register(name, table)
        pairs = pa.table({"a": pa.array([a for a, _ in results], pa.int64()), "b": [b for _, b in results]})
        connection.register("got", pairs.cast(pa.schema([("a", pa.int64()), ("b", pa.int64())])))
        connection.execute(
            "CREATE TEMP TABLE expected AS SELECT o.number AS a, p.number AS b FROM orders o JOIN payments p "
            f"ON o.person = p.person AND abs(o.ms - p.ms) <= {WINDOW_MS} AND o.price < p.price"
        )
        counts = [
            connection.execute(f"SELECT count(*) FROM ({select})").fetchall()[0][0]
            for select in (
                "SELECT * FROM expected",
                "SELECT * FROM got",
                "SELECT * FROM expected EXCEPT ALL SELECT * FROM got",
                "SELECT * FROM got EXCEPT ALL SELECT * FROM expected",
            )
        ]
        return Verdict(*counts)
    finally:
        connection.close()
