"""What the driver knows of Spark's settings."""

from __future__ import annotations

import pytest

from split_union.session import attempts_under, slots_under
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


@pytest.mark.parametrize(
    ("master", "settings", "slots"),
    [
        ("local", {}, 1),
        ("local[3]", {}, 3),
        ("local[3, 2]", {}, 3),
        ("local[*]", {}, 7),
        ("local[*,4]", {}, 7),
        ("local[4]", {"spark.task.cpus": "2"}, 2),
        ("local[1]", {"spark.task.cpus": "2"}, 1),
        ("local-cluster[2,1,1024]", {}, 2),
        ("local-cluster[3,4,1024]", {"spark.task.cpus": "3"}, 3),
        ("k8s://https://host", {}, 2),
        ("k8s://https://host", {"spark.executor.instances": "4", "spark.executor.cores": "2"}, 8),
        ("yarn", {"spark.executor.instances": "4", "spark.executor.cores": "5", "spark.task.cpus": "2"}, 8),
        ("spark://host:7077", {"spark.cores.max": "12"}, 12),
    ],
)
def test_how_many_tasks_may_run_at_once(master: str, settings: dict[str, str], slots: int) -> None:
    assert slots_under(master, settings, processors=7) == slots


@pytest.mark.parametrize(
    ("master", "settings"),
    [
        # Every worker that joins the cluster adds cores.
        ("spark://host:7077", {}),
        ("spark://host:7077", {"spark.executor.cores": "2"}),
        ("something://else", {"spark.cores.max": "4"}),
        ("k8s://https://host", {"spark.dynamicAllocation.enabled": "true"}),
        ("yarn", {"spark.dynamicAllocation.enabled": "true", "spark.executor.instances": "2"}),
        ("yarn", {"spark.dynamicAllocation.enabled": "TRUE", "spark.dynamicAllocation.maxExecutors": "infinity"}),
        ("yarn", {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "2147483647"}),
        ("spark://host:7077", {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "9"}),
    ],
)
def test_where_nobody_says_how_many_tasks_may_run_at_once(master: str, settings: dict[str, str]) -> None:
    assert slots_under(master, settings, processors=7) is None


@pytest.mark.parametrize("master", ["k8s://https://host", "yarn", "spark://host:7077"])
def test_under_dynamic_allocation_only_its_maximum_counts(master: str) -> None:
    settings = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": "6",
        "spark.executor.instances": "2",
        "spark.executor.cores": "4",
    }
    assert slots_under(master, settings, processors=7) == 24
