"""The query definition refuses what cannot run, naming field, value and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from trimtab import JoinQuery, Stream
from trimtab.errors import InvalidInput


def make(**changes: Any) -> JoinQuery:
    values: dict[str, Any] = {
        "name": "orders",
        "window": "10 seconds",
        "lateness": "5 seconds",
        "streams": [Stream(name, key="user", time="at") for name in "ABC"],
    }
    return JoinQuery(**{**values, **changes})


def test_the_defaults() -> None:
    query = make()
    assert (query.partitions, query.workers, query.window_us) == (64, 4, 10_000_000)
    assert make(where="A.x < B.x").where == ("A.x < B.x",)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"window": "0 seconds"}, "window", "0 seconds"),
        ({"window": "-1 seconds"}, "window", "-1 seconds"),
        ({"window": "soon"}, "window", "soon"),
        ({"lateness": "-2 seconds"}, "lateness", "-2 seconds"),
        ({"streams": [Stream("A", key="user", time="at")]}, "streams", 1),
        ({"streams": [Stream(f"S{i}", key="user", time="at") for i in range(9)]}, "streams", 9),
        ({"streams": [Stream(n, key="user", time="at") for n in ("A", "B", "A")]}, "streams[2].name", "A"),
        ({"streams": [Stream(n, key="user", time="at") for n in ("A", "a")]}, "streams[1].name", "a"),
        ({"workers": 65}, "workers", 65),
        ({"workers": 0}, "workers", 0),
        ({"partitions": 0}, "partitions", 0),
        ({"partitions": 40_000}, "partitions", 40_000),
        ({"name": "a b"}, "name", "a b"),
        ({"name": "../x"}, "name", "../x"),
        ({"plan": "(A B) D"}, "plan", "(A B) D"),
        ({"colour": "red"}, "colour", "red"),
        ({"partitions": "many"}, "partitions", "many"),
    ],
)
def test_bad_definitions(changes: dict[str, Any], field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        make(**changes)
    assert caught.value.field == field
    assert caught.value.value == value
    assert caught.value.remedy


def test_keys_of_different_width_are_refused() -> None:
    streams = [Stream("A", key="user", time="at"), Stream("B", key=("user", "shop"), time="at")]
    with pytest.raises(InvalidInput, match="different numbers of columns"):
        make(streams=streams)


@pytest.mark.parametrize("name", ["", "1A", "A B", "A-B", "A.B", "Ä"])
def test_stream_names_are_identifiers(name: str) -> None:
    with pytest.raises(InvalidInput):
        Stream(name, key="user", time="at")


@pytest.mark.parametrize("key", [(), ("a", "a"), ("",), ""])
def test_a_key_names_each_column_once(key: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Stream("A", key=key, time="at")
    assert caught.value.field == "key"
