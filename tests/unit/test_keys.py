"""Keys are equal where and only where Spark finds their values equal."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.keys import canonical_bytes, complete_rows, exact_bits, exact_codes


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return bool(left == right)


FLAT = {
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "boolean": (pa.bool_(), st.booleans()),
    "double": (pa.float64(), st.one_of(st.floats(), st.sampled_from([0.0, -0.0, math.nan]))),
    "float": (pa.float32(), st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, math.nan]))),
    "date": (pa.date32(), st.dates()),
    "decimal": (pa.decimal128(18, 2), st.decimals(-(10**15), 10**15, places=2)),
}


@pytest.mark.parametrize("name", FLAT)
@given(data=st.data())
def test_exact_codes_tell_values_apart(name: str, data: st.DataObject) -> None:
    kind, values = FLAT[name]
    drawn = data.draw(st.lists(values, min_size=1, max_size=12))
    drawn += drawn[:2]
    codes = exact_codes([pa.array(drawn, kind)]).tolist()
    values_held = pa.array(drawn, kind).to_pylist()
    for i, left in enumerate(values_held):
        for j, right in enumerate(values_held):
            assert (codes[i] == codes[j]) == same(left, right), (left, right)


@given(pairs=st.lists(st.tuples(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=20))
def test_two_small_columns_make_one_exact_code(pairs: list[tuple[int, int]]) -> None:
    columns = [pa.array([pair[i] for pair in pairs], pa.int32()) for i in range(2)]
    codes = exact_codes(columns).tolist()
    assert [[a == b for b in codes] for a in codes] == [[a == b for b in pairs] for a in pairs]


def test_a_slice_reads_its_own_rows() -> None:
    array = pa.array([decimal.Decimal("1.00"), decimal.Decimal("2.00"), decimal.Decimal("-3.50")], pa.decimal128(9, 2))
    assert exact_codes([array.slice(1)]).tolist() == [200, -350]
    assert exact_codes([pa.array([1, 2, 3], pa.int64()).slice(2)]).tolist() == [3]


@given(rows=st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=3)), min_size=1, max_size=15))
def test_canonical_bytes_of_two_columns_never_run_together(rows: list[tuple[str, bytes]]) -> None:
    columns = [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows], pa.binary())]
    encoded = canonical_bytes(columns).to_pylist()
    assert [[a == b for b in encoded] for a in encoded] == [[a == b for b in rows] for a in rows]


def test_nested_keys_count_nulls_and_normalise_numbers() -> None:
    kind = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.int32()))])
    rows = [
        {"x": 0.0, "y": [1, None]},
        {"x": -0.0, "y": [1, None]},
        {"x": math.nan, "y": []},
        {"x": math.nan, "y": []},
        {"x": None, "y": None},
        {"x": 0.0, "y": [1]},
    ]
    encoded = canonical_bytes([pa.array(rows, kind)]).to_pylist()
    assert encoded[0] == encoded[1]
    assert encoded[2] == encoded[3]
    assert len(set(encoded)) == 4


def test_equal_instants_in_different_zones_are_one_key() -> None:
    kind = pa.list_(pa.timestamp("us", "Europe/Berlin"))
    other = pa.list_(pa.timestamp("us", "UTC"))
    moment = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
    left = canonical_bytes([pa.array([[moment]], kind)])
    right = canonical_bytes([pa.array([[moment]], other)])
    assert left.to_pylist() == right.to_pylist()


def test_times_inside_a_key_may_lie_beyond_pythons() -> None:
    kind = pa.struct([("at", pa.timestamp("us", "UTC")), ("days", pa.list_(pa.date32()))])
    plain = pa.struct([("at", pa.int64()), ("days", pa.list_(pa.int32()))])
    rows = [{"at": 2**60, "days": [-(2**30), None]}, {"at": 2**60 + 1, "days": None}, {"at": 2**60 + 1, "days": None}]
    encoded = canonical_bytes([pa.array(rows, plain).cast(kind)]).to_pylist()
    assert encoded[0] != encoded[1] == encoded[2]


def test_rows_without_key_or_time_are_incomplete() -> None:
    mask = complete_rows([pa.array([1, None, 3]), pa.array(["a", "b", None])])
    assert mask is not None
    assert mask.to_pylist() == [True, False, False]
    assert complete_rows([pa.array([1, 2])]) is None


@pytest.mark.parametrize(
    ("kind", "bits"),
    [(pa.int64(), 64), (pa.string(), None), (pa.decimal128(19, 0), None), (pa.decimal128(18, 0), 64), (pa.bool_(), 8)],
)
def test_exact_bits(kind: pa.DataType, bits: int | None) -> None:
    assert exact_bits(kind) == bits
