"""What the API answers about a query: pure functions from the situation and the load to JSON.

Loads come from the leader's snapshot where there is one (smoothed, without fixed costs); else they are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from balancing.load import Snapshot
from balancing.settings import Settings
from balancing.situation import Situation
from manager.store import Heartbeat, Json, Leader
from trimtab.reports import WorkerReport


def query_view(
    situation: Situation,
    definition: Json | None,
    heartbeat: Heartbeat | None,
    leader: Leader | None,
    auto: Settings,
    alarms: list[Json],
) -> Json:
    definition = definition or {}
    return {
        "name": situation.query,
        "running": not situation.stopped,
        "epoch": situation.epoch.number,
        "workers": situation.workers,
        "workers_up": len(situation.up),
        "partitions": situation.partitions,
        "window_us": definition.get("window"),
        "lateness_us": definition.get("lateness"),
        "streams": sorted(stream["name"] for stream in definition.get("streams", ())),
        "committed_batch": None if heartbeat is None else heartbeat.committed,
        "heartbeat_ms": None if heartbeat is None else heartbeat.at_ms,
        "batch_ms": None if heartbeat is None else heartbeat.batch_ms,
        "rows_per_s": None if heartbeat is None else heartbeat.rows_per_s,
        "backlog": None if heartbeat is None else heartbeat.backlog,
        "lags": {} if heartbeat is None else dict(heartbeat.lags),
        "manager": None if leader is None else {"leader": leader.holder, "fence": leader.fence},
        "auto": auto.auto,
        "open_migrations": sorted(each.id for each in situation.migrations),
        "alarms": alarms,
    }


def workers_view(situation: Situation, reports: Mapping[int, WorkerReport], load: Snapshot | None) -> Json:
    total_cpu = sum(load.group_cpu) if load is not None else 0.0
    owned: dict[int, list[int]] = {worker: [] for worker in range(situation.workers)}
    for group, owner in enumerate(situation.epoch.owners):
        owned.setdefault(owner, []).append(group)
    workers = []
    for worker in range(situation.workers):
        report = reports.get(worker)
        measured = load.workers[worker] if load is not None and worker < len(load.workers) else None
        share = None
        if load is not None and total_cpu > 0:
            share = sum(load.group_cpu[group] for group in owned[worker] if group < len(load.group_cpu)) / total_cpu
        workers.append(
            {
                "worker": worker,
                "executor": None if report is None else report.executor,
                "up": worker in situation.up,
                "excluded": worker in situation.rules.excluded,
                "groups": owned[worker],
                "moving": sorted(group for group in owned[worker] if group in situation.moving),
                "share": _rounded(share, 4),
                "cpu_ms_per_s": None if measured is None else _rounded(measured.cpu_ns_per_s / 1e6, 3),
                "rows_per_s": None if measured is None else _rounded(measured.rows_per_s, 1),
                "results_per_s": None if measured is None else _rounded(measured.results_per_s, 1),
                "state_rows": None if report is None else report.state_rows,
                "state_bytes": None if report is None else report.state_bytes,
                "combined_rows": None if report is None else report.combined_rows,
                "late_rows": None if report is None else sum(report.late_rows.values()),
                "plan": None if report is None else report.plan,
                "plan_states": [] if report is None else plan_states_view(report),
                "batch": None if report is None else report.batch,
                "resident": None if report is None else report.resident,
            }
        )
    return {"query": situation.query, "epoch": situation.epoch.number, "workers": workers}


def plan_states_view(report: WorkerReport) -> list[Json]:
    """The states of the worker's plan with their live tuples, leaves first."""
    return [{"state": name, "rows": rows} for name, rows in report.plan_states.items()]


def partitions_view(situation: Situation, load: Snapshot | None) -> Json:
    return {
        "query": situation.query,
        "epoch": situation.epoch.number,
        "partitions": [partition_view(situation, load, group) for group in range(situation.partitions)],
    }


def partition_view(situation: Situation, load: Snapshot | None, group: int) -> Json:
    known = load is not None and group < len(load.group_cpu)
    total_cpu = sum(load.group_cpu) if load is not None else 0.0
    body: dict[str, Any] = {
        "partition": group,
        "owner": situation.epoch.owners[group],
        "migration": situation.moving.get(group),
        "pinned": group in situation.rules.pinned,
        "share": None,
        "cpu_ms_per_s": None,
        "rows_per_s": None,
        "state_rows": None,
        "state_bytes": None,
    }
    if known and load is not None:
        body["share"] = _rounded(load.group_cpu[group] / total_cpu, 5) if total_cpu > 0 else None
        body["cpu_ms_per_s"] = _rounded(load.group_cpu[group] / 1e6, 3)
        body["rows_per_s"] = _rounded(load.group_rows[group], 1)
        body["state_rows"] = round(load.group_state_rows[group])
        body["state_bytes"] = round(load.group_bytes[group])
    return body


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
