"""Makes trimtab.json, the Grafana dashboard: `python deploy/grafana/make_dashboard.py`.

The dashboard is code: rows of panels, each with its expressions. A test compares trimtab.json with what this makes, and
every name with the table in manager/metrics.py; another runs every expression against a Prometheus that has scraped a
real query. Expressions use the exported metrics only, so the dashboard works without the recording rules.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

Json = dict[str, Any]
Kind = Literal["stat", "timeseries", "heatmap", "table", "state-timeline"]

PATH: Final = Path(__file__).with_name("trimtab.json")
SOURCE: Final[Json] = {"type": "prometheus", "uid": "${datasource}"}
WIDTH: Final = 24
Q: Final = '{query="$query"}'


@dataclass(frozen=True, kw_only=True)
class Target:
    expr: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    kind: Kind
    targets: tuple[Target, ...]
    unit: str = "short"
    width: int = 8
    height: int = 8
    about: str = ""
    steps: tuple[tuple[float | None, str], ...] = ()
    """Limits and colours of a stat."""
    stacked: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def one(expr: str, legend: str = "") -> tuple[Target, ...]:
    return (Target(expr=expr, legend=legend),)


def many(**expressions: str) -> tuple[Target, ...]:
    """By legend, with spaces for underscores."""
    return tuple(Target(expr=expr, legend=name.replace("_", " ")) for name, expr in expressions.items())


def per_worker(name: str) -> tuple[Target, ...]:
    return one(f"max by (worker) ({name}{Q})", "worker {{worker}}")


def rate_per_worker(name: str) -> tuple[Target, ...]:
    return one(f"sum by (worker) (rate({name}{Q}[$__rate_interval]))", "worker {{worker}}")


def rate_by(name: str, label: str) -> tuple[Target, ...]:
    return one(f"sum by ({label}) (rate({name}{Q}[$__rate_interval]))", "{{" + label + "}}")


GOOD_BELOW: Final = ((None, "green"), (1.2, "orange"), (1.5, "red"))
ZERO_IS_GOOD: Final = ((None, "green"), (1, "red"))

OVERVIEW: Final = Row(
    title="Overview",
    panels=(
        Panel(
            title="Imbalance",
            kind="stat",
            width=5,
            height=6,
            unit="none",
            steps=GOOD_BELOW,
            about="Largest load over the mean, as the balancer's triggers see it. 1.00 is level.",
            targets=one(f"max(trimtab_query_imbalance_ratio{Q})"),
        ),
        Panel(
            title="Workers up",
            kind="stat",
            width=3,
            height=6,
            unit="none",
            targets=many(up=f"sum(trimtab_worker_up{Q})", of=f"max(trimtab_query_workers{Q})"),
        ),
        Panel(
            title="Batch",
            kind="stat",
            width=3,
            height=6,
            unit="s",
            targets=one(f"max(trimtab_query_last_batch_duration_seconds{Q})"),
        ),
        Panel(
            title="Input",
            kind="stat",
            width=4,
            height=6,
            unit="rowsps",
            targets=one(f"max(trimtab_query_input_rows_per_second{Q})"),
        ),
        Panel(
            title="Backlog",
            kind="stat",
            width=3,
            height=6,
            about="Rows in the sources that are not read yet. Only sources like Kafka tell it.",
            targets=one(f"max(trimtab_query_source_backlog_rows{Q})"),
        ),
        Panel(
            title="Moves under way",
            kind="stat",
            width=3,
            height=6,
            unit="none",
            targets=one(f"sum(trimtab_migrations_open{Q})"),
        ),
        Panel(
            title="Found by audits (6 h)",
            kind="stat",
            width=3,
            height=6,
            unit="none",
            steps=ZERO_IS_GOOD,
            targets=one(f"sum(increase(trimtab_audit_problems_total{Q}[6h]))"),
        ),
    ),
)

LOAD: Final = Row(
    title="Load of partition groups",
    panels=(
        Panel(
            title="Groups by load",
            kind="heatmap",
            width=16,
            height=10,
            about="Colour: number of groups. Height: their load as a multiple of the mean group load. "
            "A level query is a narrow band at 1; a hot group is a lone cell far above it.",
            targets=one(f"sum by (le) (trimtab_query_group_load_ratio_bucket{Q})", "{{le}}"),
        ),
        Panel(
            title="Imbalance and its limits",
            kind="timeseries",
            height=10,
            unit="none",
            targets=many(
                imbalance=f"max(trimtab_query_imbalance_ratio{Q})",
                begins_at=f"max(trimtab_query_balance_start_ratio{Q})",
                ends_below=f"max(trimtab_query_balance_stop_ratio{Q})",
            ),
        ),
        Panel(
            title="The balancer's decision",
            kind="state-timeline",
            width=16,
            about="What it decided last: act, or why not.",
            targets=one(f"max by (code) (trimtab_balancer_decision{Q}) > 0", "{{code}}"),
        ),
        Panel(
            title="Decisions",
            kind="timeseries",
            unit="ops",
            stacked=True,
            targets=rate_by("trimtab_balancer_decisions_total", "code"),
        ),
    ),
)

WORKERS: Final = Row(
    title="Workers",
    panels=(
        Panel(
            title="Load over the mean",
            kind="timeseries",
            unit="none",
            targets=per_worker("trimtab_worker_load_ratio"),
        ),
        Panel(title="CPU", kind="timeseries", unit="s", targets=rate_per_worker("trimtab_worker_cpu_seconds_total")),
        Panel(
            title="Rows received",
            kind="timeseries",
            unit="rowsps",
            targets=rate_per_worker("trimtab_worker_rows_total"),
        ),
        Panel(
            title="Results",
            kind="timeseries",
            unit="rowsps",
            targets=rate_per_worker("trimtab_worker_results_total"),
        ),
        Panel(
            title="Late and bad rows",
            kind="timeseries",
            unit="rowsps",
            targets=many(
                late=f"sum(rate(trimtab_worker_late_rows_total{Q}[$__rate_interval]))",
                without_key_or_time=f"sum(rate(trimtab_worker_bad_rows_total{Q}[$__rate_interval]))",
            ),
        ),
        Panel(
            title="Watermark delay",
            kind="timeseries",
            unit="s",
            targets=per_worker("trimtab_worker_watermark_delay_seconds"),
        ),
        Panel(
            title="Groups owned",
            kind="timeseries",
            unit="none",
            stacked=True,
            targets=per_worker("trimtab_worker_groups"),
        ),
        Panel(
            title="Executors and groups",
            kind="table",
            width=16,
            targets=one(
                f"max by (worker, executor) (trimtab_worker_info{Q}) "
                f"* on (worker) group_left () max by (worker) (trimtab_worker_groups{Q})"
            ),
        ),
    ),
)

BATCHES: Final = Row(
    title="Batches",
    panels=(
        Panel(
            title="Batch time, with migrations",
            kind="timeseries",
            unit="s",
            width=12,
            targets=many(
                newest=f"max(trimtab_query_last_batch_duration_seconds{Q})",
                median="histogram_quantile(0.5, sum by (le) "
                f"(rate(trimtab_query_batch_duration_seconds_bucket{Q}[$__rate_interval])))",
                p95="histogram_quantile(0.95, sum by (le) "
                f"(rate(trimtab_query_batch_duration_seconds_bucket{Q}[$__rate_interval])))",
                mean=f"sum(rate(trimtab_query_batch_duration_seconds_sum{Q}[$__rate_interval])) "
                f"/ sum(rate(trimtab_query_batch_duration_seconds_count{Q}[$__rate_interval]))",
            ),
        ),
        Panel(
            title="Throughput",
            kind="timeseries",
            unit="rowsps",
            width=6,
            targets=many(
                input=f"max(trimtab_query_input_rows_per_second{Q})",
                at_workers=f"sum(rate(trimtab_worker_rows_total{Q}[$__rate_interval]))",
                results=f"sum(rate(trimtab_worker_results_total{Q}[$__rate_interval]))",
            ),
        ),
        Panel(
            title="Backlog of the sources",
            kind="timeseries",
            width=6,
            about="By stream. Only sources like Kafka tell it.",
            targets=one(f"max by (stream) (trimtab_query_stream_lag_rows{Q})", "{{stream}}"),
        ),
        Panel(
            title="Event time",
            kind="timeseries",
            unit="none",
            width=12,
            about="Seconds of event time that pass in a second; 0: a stream is idle, and state is not purged.",
            targets=one(
                f"max(deriv(trimtab_query_watermark_timestamp_seconds{Q}[$__rate_interval]))", "seconds per second"
            ),
        ),
        Panel(
            title="Committed batches",
            kind="timeseries",
            unit="ops",
            width=12,
            targets=one(f"max(deriv(trimtab_query_committed_batch{Q}[$__rate_interval]))", "batches per second"),
        ),
    ),
)

STATE: Final = Row(
    title="State",
    panels=(
        Panel(title="Rows", kind="timeseries", stacked=True, targets=per_worker("trimtab_worker_state_rows")),
        Panel(
            title="Resident bytes",
            kind="timeseries",
            unit="bytes",
            stacked=True,
            targets=per_worker("trimtab_worker_state_bytes"),
        ),
        Panel(
            title="Combined rows",
            kind="timeseries",
            stacked=True,
            targets=per_worker("trimtab_worker_combined_rows"),
        ),
        Panel(
            title="Resident state: found and rebuilt",
            kind="timeseries",
            unit="ops",
            width=12,
            targets=rate_by("trimtab_worker_batches_total", "resident"),
        ),
        Panel(
            title="Groups and window",
            kind="stat",
            width=12,
            unit="none",
            targets=many(
                partition_groups=f"max(trimtab_query_partitions{Q})",
                seconds_that_a_row_matters=f"max(trimtab_query_window_seconds{Q})",
            ),
        ),
    ),
)

STEPS: Final = Row(
    title="Moves, step by step",
    panels=(
        Panel(
            title="Migrations under way",
            kind="timeseries",
            unit="none",
            targets=one(f"sum by (strategy) (trimtab_migrations_open{Q})", "{{strategy}}"),
        ),
        Panel(
            title="Mean time in each step",
            kind="timeseries",
            unit="s",
            width=16,
            about="The number is the step of the protocol; see docs/protocols/.",
            targets=one(
                f"sum by (strategy, step) (trimtab_migration_step_seconds_sum{Q}) "
                f"/ (sum by (strategy, step) (trimtab_migration_step_seconds_count{Q}) > 0)",
                "{{strategy}} {{step}}",
            ),
        ),
        Panel(
            title="Ended (6 h)",
            kind="timeseries",
            unit="none",
            targets=one(
                f"sum by (strategy, outcome) (increase(trimtab_migrations_total{Q}[6h]))", "{{strategy}} {{outcome}}"
            ),
        ),
        Panel(
            title="Rebalances (6 h)",
            kind="timeseries",
            unit="none",
            targets=(
                Target(
                    expr=f"sum by (by, state) (increase(trimtab_rebalances_total{Q}[6h]))", legend="{{by}} {{state}}"
                ),
                Target(
                    expr=f"sum by (field) (increase(trimtab_rebalances_refused_total{Q}[6h]))",
                    legend="refused: {{field}}",
                ),
            ),
        ),
        Panel(
            title="Longest time in the present step",
            kind="timeseries",
            unit="s",
            targets=one(f"max by (strategy) (trimtab_migration_step_age_seconds{Q})", "{{strategy}}"),
        ),
        Panel(
            title="State shipped",
            kind="timeseries",
            unit="Bps",
            targets=rate_by("trimtab_migration_bytes_total", "side"),
        ),
        Panel(
            title="Rows held and duplicated",
            kind="timeseries",
            targets=(
                Target(expr=f"sum by (side) (trimtab_migration_held_rows{Q})", legend="held at the {{side}}"),
                Target(
                    expr=f"sum(rate(trimtab_migration_duplicated_rows_total{Q}[$__rate_interval]))",
                    legend="duplicated per second",
                ),
            ),
        ),
        Panel(
            title="Pause",
            kind="timeseries",
            unit="s",
            about="Seconds per second by which batches with open moves take longer than those without.",
            targets=one(f"sum(rate(trimtab_migration_pause_seconds_total{Q}[$__rate_interval]))", "pause"),
        ),
        Panel(
            title="Waiting, and failures of the transfer store (6 h)",
            kind="timeseries",
            unit="none",
            targets=(
                Target(expr=f"sum by (reason) (trimtab_migrations_stalled{Q})", legend="waits: {{reason}}"),
                Target(
                    expr=f"sum by (failure) (increase(trimtab_transfer_store_failures_total{Q}[6h]))",
                    legend="store: {{failure}}",
                ),
            ),
        ),
        Panel(
            title="Audit (6 h)",
            kind="timeseries",
            unit="none",
            targets=many(
                rows_checked=f"sum(increase(trimtab_audit_checked_rows_total{Q}[6h]))",
                batches_unchecked=f"sum(increase(trimtab_audit_unchecked_batches_total{Q}[6h]))",
                lost=f"sum(increase(trimtab_audit_lost_rows_total{Q}[6h]))",
                doubled=f"sum(increase(trimtab_audit_doubled_rows_total{Q}[6h]))",
            ),
        ),
    ),
)

FORECAST: Final = Row(
    title="Forecast against outcome, of the rebalance that was measured last",
    panels=tuple(
        Panel(
            title=title,
            kind="timeseries",
            width=6,
            height=6,
            unit=unit,
            targets=one(f"max by (of) ({name}{Q})", "{{of}}"),
        )
        for title, name, unit in (
            ("Imbalance after it", "trimtab_rebalance_last_imbalance_ratio", "none"),
            ("Duration", "trimtab_rebalance_last_seconds", "s"),
            ("Longest pause", "trimtab_rebalance_last_pause_seconds", "s"),
            ("State shipped", "trimtab_rebalance_last_bytes", "bytes"),
        )
    ),
)

PLANS: Final = Row(
    title="Plans",
    panels=(
        Panel(
            title="Plan of each worker",
            kind="table",
            width=16,
            targets=one(f"max by (worker, plan) (trimtab_worker_plan_info{Q})"),
        ),
        Panel(
            title="Plan changes (6 h)",
            kind="timeseries",
            unit="none",
            targets=one(f"sum by (worker) (increase(trimtab_worker_plan_changes_total{Q}[6h]))", "worker {{worker}}"),
        ),
        Panel(
            title="Changes of plans under way",
            kind="timeseries",
            width=8,
            unit="none",
            targets=one(f"sum by (strategy) (trimtab_replans_open{Q})", "{{strategy}}"),
        ),
        Panel(
            title="Changes of plans by outcome (6 h)",
            kind="timeseries",
            width=8,
            unit="none",
            targets=one(
                f"sum by (strategy, outcome) (increase(trimtab_replans_total{Q}[6h])) > 0", "{{strategy}} {{outcome}}"
            ),
        ),
        Panel(
            title="Mean time of a change of plans (6 h)",
            kind="timeseries",
            width=8,
            unit="s",
            targets=one(
                f"sum by (strategy) (increase(trimtab_replans_seconds_total{Q}[6h]))"
                f" / sum by (strategy) (increase(trimtab_replans_total{Q}[6h]))",
                "{{strategy}}",
            ),
        ),
    ),
)

MANAGER: Final = Row(
    title="Manager",
    panels=(
        Panel(
            title="Leader",
            kind="state-timeline",
            targets=one(f"max by (instance) (trimtab_manager_leading{Q})", "{{instance}}"),
        ),
        Panel(
            title="Leader changes (6 h)",
            kind="stat",
            width=4,
            unit="none",
            targets=one(f"sum(increase(trimtab_manager_leader_changes_total{Q}[6h]))"),
        ),
        Panel(
            title="Instances: ready, failing",
            kind="stat",
            width=4,
            unit="none",
            targets=many(ready="sum(trimtab_manager_ready)", failing=f"sum(trimtab_manager_failing{Q})"),
        ),
        Panel(
            title="Epoch and fencing token",
            kind="timeseries",
            unit="none",
            targets=many(epoch=f"max(trimtab_query_epoch{Q})", token=f"max(trimtab_query_fence{Q})"),
        ),
        Panel(
            title="Alarms of the last 15 minutes",
            kind="timeseries",
            unit="none",
            targets=one(f"max by (kind) (trimtab_alarms_recent{Q})", "{{kind}}"),
        ),
        Panel(title="Events", kind="timeseries", unit="ops", targets=rate_by("trimtab_events_total", "kind")),
        Panel(
            title="Automatic balancing, query up",
            kind="state-timeline",
            targets=many(automatic=f"max(trimtab_query_auto{Q})", query_up=f"max(trimtab_query_up{Q})"),
        ),
    ),
)

API: Final = Row(
    title="API",
    panels=(
        Panel(
            title="Requests",
            kind="timeseries",
            unit="reqps",
            targets=one(
                "sum by (kind, status) (rate(trimtab_api_requests_total[$__rate_interval]))", "{{kind}} {{status}}"
            ),
        ),
        Panel(
            title="Latency (99 %)",
            kind="timeseries",
            unit="s",
            targets=one(
                "histogram_quantile(0.99, sum by (kind, le) "
                '(rate(trimtab_api_request_duration_seconds_bucket{kind!="stream"}[$__rate_interval])))',
                "{{kind}}",
            ),
        ),
        Panel(
            title="Refused and failed",
            kind="timeseries",
            unit="reqps",
            targets=one("sum by (status) (rate(trimtab_api_refusals_total[$__rate_interval]))", "{{status}}"),
        ),
        Panel(
            title="Memory of the instances",
            kind="timeseries",
            unit="bytes",
            targets=one("process_resident_memory_bytes and on (instance) trimtab_build_info", "{{instance}}"),
        ),
        Panel(
            title="CPU of the instances",
            kind="timeseries",
            unit="percentunit",
            targets=one(
                "rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) trimtab_build_info",
                "{{instance}}",
            ),
        ),
        Panel(
            title="Versions",
            kind="table",
            targets=one("count by (version) (trimtab_build_info)"),
        ),
    ),
)

ROWS: Final = (OVERVIEW, LOAD, WORKERS, BATCHES, STATE, STEPS, FORECAST, PLANS, MANAGER, API)
MIGRATIONS_SHOWN: Final = f"sum by (strategy) (trimtab_migrations_open{Q}) > 0"
"""Marked in every graph while they are under way."""


def dashboard() -> Json:
    panels: list[Json] = []
    top = 0
    for row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            }
        )
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left, height = top + height, 0, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return {
        "uid": "trimtab",
        "title": "Trimtab",
        "description": "A windowed stream join whose load is balanced while it runs. Made by make_dashboard.py.",
        "tags": ["trimtab", "spark"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": _annotations()},
        "panels": panels,
    }


def _variables() -> list[Json]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "query",
            "label": "Query",
            "type": "query",
            "datasource": SOURCE,
            "definition": "label_values(trimtab_query_up, query)",
            "query": {"query": "label_values(trimtab_query_up, query)", "refId": "query"},
            "refresh": 2,
            "sort": 1,
        },
    ]


def _annotations() -> list[Json]:
    return [
        {
            "name": "Migrations",
            "datasource": SOURCE,
            "enable": True,
            "iconColor": "purple",
            "expr": MIGRATIONS_SHOWN,
            "step": "15s",
            "titleFormat": "Migration",
            "textFormat": "{{strategy}}",
        }
    ]


def _panel(panel: Panel) -> Json:
    body: Json = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": target.expr,
                "legendFormat": target.legend or "__auto",
                "instant": panel.kind == "table",
                "range": panel.kind != "table",
                "format": {"heatmap": "heatmap", "table": "table"}.get(panel.kind, "time_series"),
            }
            for number, target in enumerate(panel.targets)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }
    return body


def _defaults(panel: Panel) -> Json:
    defaults: Json = {"unit": panel.unit}
    if panel.steps:
        steps = [{"value": value, "color": color} for value, color in panel.steps]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.unit == "none" and panel.title.startswith("Imbalance"):
        defaults["decimals"] = 2
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 0,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
        defaults["min"] = 0
    return defaults


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        return {"colorMode": "value", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"]}}
    if panel.kind == "heatmap":
        # The buckets are levels, not rates: Grafana takes them as they are.
        return {
            "calculate": False,
            "color": {"mode": "scheme", "scheme": "Spectral", "steps": 64, "reverse": True},
            "yAxis": {"unit": "none", "axisLabel": "times the mean"},
            "tooltip": {"mode": "single", "yHistogram": False},
        }
    if panel.kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {}


def text() -> str:
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{PATH.name}: {sum(len(row.panels) for row in ROWS)} panels\n")
