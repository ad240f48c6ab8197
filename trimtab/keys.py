"""Join keys: which bits identify one, and what to compare when a hash alone cannot tell.

A key whose columns fit into 64 bits together is its own code (`exact`). Any other key has Spark's xxhash64 as its code
and canonical bytes beside it, which are compared wherever two codes meet: equality is on values as Spark sees it, never
on a hash alone. Floating point numbers are normalised first (every NaN is one value, -0.0 is 0.0).
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

GROUP: Final = "__trimtab_group"
CODE: Final = "__trimtab_code"
KEY: Final = "__trimtab_key"
PROBLEM: Final = "__trimtab_problem"
"""A column that an input may have: why a row cannot be used, or null. Key and time of such a row are null, so that the
split drops and counts it; conditions on the stream do not hide it."""
INTERNAL: Final = "__trimtab_"
"""How the names of columns begin that are ours."""


@dataclass(frozen=True)
class KeySpec:
    """How one stream's key is read. `kind` is the same for all streams of a query, because the types are."""

    columns: tuple[str, ...]
    kind: Literal["exact", "column", "bytes"]
    """exact: the columns' bits; column: one text or binary column, compared itself; bytes: the column KEY."""

    @property
    def compared(self) -> str | None:
        """The column that decides equality where codes are hashes."""
        return {"exact": None, "column": self.columns[0], "bytes": KEY}[self.kind]


def exact_bits(arrow_type: pa.DataType) -> int | None:
    """Bits that tell any two values of the type apart, or None if there is no such small number."""
    if pa.types.is_boolean(arrow_type):
        return 8
    if pa.types.is_decimal128(arrow_type):
        return 64 if arrow_type.precision <= 18 else None
    if pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type) or pa.types.is_temporal(arrow_type):
        return int(arrow_type.bit_width)
    return None


def exact_codes(arrays: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """One integer per row, equal where and only where the key values are equal. No nulls."""
    code: npt.NDArray[np.int64] | None = None
    for array in arrays:
        bits = exact_bits(array.type)
        assert bits is not None
        part = _integers(array)
        if code is None:
            code = part
        else:
            low = part if bits == 64 else part & ((1 << bits) - 1)
            code = (code << bits) | low
    assert code is not None
    return code


def codes(batch: pa.RecordBatch, key: KeySpec) -> npt.NDArray[np.int64]:
    """Codes of a frame's rows."""
    if key.kind == "exact":
        return exact_codes([batch.column(name) for name in key.columns])
    return _integers(batch.column(CODE))


def canonical_bytes(arrays: Sequence[pa.Array]) -> pa.Array:
    """A binary column, equal where and only where all key columns are equal. No nulls at the top."""
    columns = [_parts(array) for array in arrays]
    if len(columns) == 1:
        return pa.array(columns[0], pa.binary())
    return pa.array([_joined(parts) for parts in zip(*columns, strict=True)], pa.binary())


def _joined(parts: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def _parts(array: pa.Array) -> list[bytes]:
    if exact_bits(array.type) is not None:
        raw = _integers(array).astype("<i8").tobytes()
        return [raw[i : i + 8] for i in range(0, len(raw), 8)]
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return array.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]
    return [_encoded(value) for value in array.cast(_with_plain_times(array.type)).to_pylist()]


def _with_plain_times(kind: pa.DataType) -> pa.DataType:
    """The type with numbers for times in it: Python's own end with the year 9999, Spark's do not."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_plain_times(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_plain_times(kind.value_type)))
    if pa.types.is_temporal(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    return kind


def _encoded(value: Any) -> bytes:
    """A value of any type as bytes that no other value of its type has."""
    if value is None:
        return b"n"
    if isinstance(value, dict):
        return b"s" + _joined([_encoded(field) for field in value.values()])
    if isinstance(value, list):
        return b"l" + _joined([_encoded(item) for item in value])
    if isinstance(value, float):
        return b"f" + struct.pack("<d", float("nan") if value != value else value + 0.0)
    if isinstance(value, bytes):
        return b"b" + value
    if isinstance(value, str):
        return b"t" + value.encode()
    if isinstance(value, bool | int | decimal.Decimal):
        return b"i" + str(value).encode()
    raise TypeError(f"a {type(value).__name__} cannot be part of a key")


def _integers(array: pa.Array) -> npt.NDArray[np.int64]:
    kind = array.type
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif pa.types.is_decimal128(kind):
        # A decimal of at most 18 digits lives in the low one of its two 64-bit halves.
        halves = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
        return np.ascontiguousarray(halves[::2])
    elif pa.types.is_floating(kind):
        numbers = array.to_numpy(zero_copy_only=False) + kind.to_pandas_dtype()(0)
        numbers[np.isnan(numbers)] = np.nan
        bits: npt.NDArray[np.int64] = numbers.view(np.int64 if kind.bit_width == 64 else np.int32).astype(np.int64)
        return bits
    elif pa.types.is_temporal(kind):
        array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    whole: npt.NDArray[np.int64] = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return whole


def complete_rows(arrays: Sequence[pa.Array]) -> pa.Array | None:
    """Which rows have a value in every column, or None if all have: a null in key or time never joins."""
    mask: pa.Array | None = None
    for array in arrays:
        if array.null_count:
            valid = pc.is_valid(array)
            mask = valid if mask is None else pc.and_(mask, valid)
    return mask


def timestamps_us(array: pa.Array) -> npt.NDArray[np.int64]:
    """Event times as microseconds since 1970."""
    return array.view(pa.int64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
