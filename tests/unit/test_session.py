"""What the driver knows of Spark's settings."""

from __future__ import annotations

import pytest

from split_union.session import attempts_under
from worker.transfers import insists


@pytest.mark.parametrize(
    ("master", "max_failures", "attempts"),
    [
        ("local", "8", 1),
        ("local[2]", "8", 1),
        ("local[*]", None, 1),
        ("local[2,3]", "8", 3),
        ("local[*, 5]", None, 5),
        ("local-cluster[2,1,1024]", "8", 8),
        ("local-cluster[2,1,1024]", None, 4),
        ("spark://host:7077", None, 4),
        ("yarn", "6", 6),
        ("k8s://https://host", None, 4),
    ],
)
def test_how_often_spark_tries_a_task(master: str, max_failures: str | None, attempts: int) -> None:
    assert attempts_under(master, max_failures) == attempts


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [(1, [False, False]), (2, [True, False]), (3, [True, True, False]), (8, [True, True, False, False])],
)
def test_the_last_attempt_does_not_insist_on_the_transfer_store(attempts: int, expected: list[bool]) -> None:
    assert [insists(attempt, attempts) for attempt in range(len(expected))] == expected
