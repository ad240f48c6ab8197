"""Reading: queries, workers, partition groups."""

from __future__ import annotations

import contextlib

from fastapi import APIRouter

from api.backend import Backend, QueryName, Use, check_group
from api.routes.documents import answers
from api.views import partition_view, partitions_view, query_view, workers_view
from balancing.requests import Refused
from manager.store import Json

router = APIRouter(prefix="/v1/queries", tags=["queries"])

QUERY_EXAMPLE: Json = {
    "name": "orders",
    "running": True,
    "epoch": 12,
    "workers": 4,
    "workers_up": 4,
    "partitions": 64,
    "window_us": 10_000_000,
    "lateness_us": 5_000_000,
    "streams": ["A", "B", "C"],
    "committed_batch": 311,
    "heartbeat_ms": 1_767_225_600_000,
    "batch_ms": 840,
    "rows_per_s": 20_000.0,
    "backlog": 312,
    "lags": {"A": 312, "B": 0},
    "manager": {"leader": "host-4711-9f3c", "fence": 3},
    "auto": True,
    "open_migrations": [],
    "alarms": [],
}
WORKER_EXAMPLE: Json = {
    "worker": 0,
    "executor": "1",
    "up": True,
    "excluded": False,
    "groups": [0, 4, 9],
    "moving": [],
    "share": 0.61,
    "cpu_ms_per_s": 512.4,
    "rows_per_s": 30211.0,
    "results_per_s": 4410.5,
    "state_rows": 301_245,
    "state_bytes": 25_411_000,
    "combined_rows": 40_112,
    "late_rows": 0,
    "plan": "((A B) C)",
    "plan_states": [{"state": "A", "rows": 100_415}, {"state": "A B", "rows": 40_112}],
    "batch": 311,
    "resident": "hit",
}
PARTITION_EXAMPLE: Json = {
    "partition": 4,
    "owner": 0,
    "migration": None,
    "pinned": False,
    "share": 0.0412,
    "cpu_ms_per_s": 21.4,
    "rows_per_s": 1250.0,
    "state_rows": 12_481,
    "state_bytes": 1_048_576,
}


@router.get("", summary="All queries that this Redis knows", responses=answers({"queries": [QUERY_EXAMPLE]}))
async def list_queries(use: Use) -> Json:
    shown = []
    for name in await use.store.queries():
        # A query may vanish between the two reads.
        with contextlib.suppress(Refused):
            shown.append(await _query(use, name))
    return {"queries": shown}


@router.get("/{query}", summary="One query", responses=answers(QUERY_EXAMPLE, 404))
async def one_query(query: QueryName, use: Use) -> Json:
    return await _query(use, query)


async def _query(use: Backend, query: str) -> Json:
    store = use.store
    return query_view(
        await use.situation(query),
        await store.definition(query),
        await store.heartbeat(query),
        await store.leader(query),
        await store.auto(query),
        await store.alarms(query),
    )


@router.get(
    "/{query}/workers",
    summary="Workers: executor, groups, load",
    responses=answers({"query": "orders", "epoch": 12, "workers": [WORKER_EXAMPLE]}, 404),
)
async def workers(query: QueryName, use: Use) -> Json:
    return workers_view(await use.situation(query), await use.store.reports(query), await use.load(query))


@router.get(
    "/{query}/partitions",
    summary="Partition groups: owner, load, migration",
    responses=answers({"query": "orders", "epoch": 12, "partitions": [PARTITION_EXAMPLE]}, 404),
)
async def partitions(query: QueryName, use: Use) -> Json:
    return partitions_view(await use.situation(query), await use.load(query))


@router.get(
    "/{query}/partitions/{group}",
    summary="One partition group",
    responses=answers({"query": "orders", "epoch": 12, **PARTITION_EXAMPLE}, 404, 422),
)
async def partition(query: QueryName, group: int, use: Use) -> Json:
    situation = await use.situation(query)
    check_group(group, situation)
    return {
        "query": query,
        "epoch": situation.epoch.number,
        **partition_view(situation, await use.load(query), group),
    }
