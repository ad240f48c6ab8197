"""Durations as Spark writes them."""

from __future__ import annotations

import pytest

from trimtab.durations import parse_us, spark_interval
from trimtab.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "expected_us"),
    [
        ("10 seconds", 10_000_000),
        ("1 second", 1_000_000),
        ("interval 5 minutes", 300_000_000),
        ("1 minute 30 seconds", 90_000_000),
        ("1 hour, 5 ms", 3_600_005_000),
        ("250 milliseconds", 250_000),
        ("7 us", 7),
        ("2 days", 172_800_000_000),
        ("1 week", 604_800_000_000),
        ("1.5 SECONDS", 1_500_000),
        ("-1 second", -1_000_000),
    ],
)
def test_durations(text: str, expected_us: int) -> None:
    assert parse_us(text, "window") == expected_us
    assert parse_us(spark_interval(expected_us), "window") == expected_us


@pytest.mark.parametrize(
    "text",
    ["", "soon", "10", "seconds", "10 parsecs", "3 months", "1 year", "5 seconds of rain", f"1{'0' * 400} seconds"],
)
def test_what_is_no_fixed_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_us(text, "window")
    assert (caught.value.field, caught.value.value) == ("window", text)
