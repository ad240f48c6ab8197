"""Every metric: its name, type, unit, help text and labels, spelled here and nowhere else (docs/metrics.md).

Series of a query come from its leader alone, so that a sum over all instances counts nothing twice. Series of an
instance come from every instance. Each label but `query`, `worker` and the texts of info metrics has a fixed set of
values, which are all exported from the beginning: a rate has a zero to begin with, and the number of series is known
beforehand (`series_budget`), however many groups a query has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Literal, get_args

from balancing.protocols.migration import COMMITTED, IN_PART, ROLLED_BACK, TABLES
from balancing.protocols.table import BACK
from balancing.replans.table import FINAL as ENDS_OF_PLANS
from balancing.stalls import Reason
from balancing.triggers import Code
from trimtab.driver_progress import LAGS_MAX
from trimtab.plan_orders import PlanStrategy

Kind = Literal["counter", "gauge", "histogram", "summary"]
Scope = Literal["worker", "query", "instance"]
"""One for each worker of a query, for each query, or for the process. The first two come from the leader only."""

OTHER: Final = "other"
"""Stands for label values that are not known here: another version's, or whatever somebody wrote into Redis."""
TEXT_MAX: Final = 200
"""Of label values that are text: longer ones are cut."""

STRATEGIES: Final = tuple(TABLES)
OUTCOMES: Final = (COMMITTED, IN_PART, ROLLED_BACK)
PLAN_STRATEGIES: Final = tuple(str(each) for each in PlanStrategy)
REPLAN_OUTCOMES: Final = tuple(sorted(str(each) for each in ENDS_OF_PLANS))
REBALANCE_ENDS: Final = ("committed", "partly-committed", "rolled-back", "refused")
ASKED_BY: Final = ("balancer", "operator")
CODES: Final[tuple[str, ...]] = get_args(Code)
STALL_REASONS: Final = tuple(reason.value.replace(" ", "-") for reason in Reason)
REFUSED_FIELDS: Final = (
    "query",
    "expected_epoch",
    "sender",
    "receiver",
    "groups",
    "share",
    "moves",
    "strategy",
    "proposal",
    "request",
    OTHER,
)
"""What a rebalance was refused for: the field of the request that could not be granted."""
ALARM_KINDS: Final = (
    "audit",
    "journal",
    "journal-lost",
    "manager",
    "protocol",
    "redis-away",
    "redis-went-back",
    "request",
    "stray-epoch",
    OTHER,
)
ALARMS_RECENT_MS: Final = 15 * 60_000
"""How long an alarm counts. A level, not a counter: those that were raised while nobody led count under the next
leader, and none of them counts anew under another one."""
EVENT_KINDS: Final = (
    "alarm",
    "epoch",
    "finished",
    "goes-on",
    "leader",
    "parked",
    "rebalance",
    "refused",
    "replan",
    "resumed",
    "returning",
    "stalled",
    "step",
    OTHER,
)
STORE_FAILURES: Final[Mapping[str, str]] = {
    "StoreRefused": "refused",
    "ExportFailed": "not-packed",
    "HeldTooLong": "not-taken-in",
}
"""Message of a migration's story -> what the transfer store failed to do."""
PACKAGE_SIDES: Final = ("packed", "taken-in")
HOLDING_SIDES: Final = ("sender", "receiver")
EXPECTATIONS: Final = ("forecast", "outcome")
RESIDENT: Final = ("hit", "rebuild")
REQUEST_KINDS: Final = ("open", "read", "change", "stream")
STATUS_CLASSES: Final = ("2xx", "3xx", "4xx", "5xx")
REFUSED_STATUSES: Final = (*["400", "401", "403", "404", "405", "409", "413", "415", "422", "429", "500", "503"], OTHER)

GROUP_LOAD_BUCKETS: Final = tuple(float(f"{2 ** (half / 2):.3g}") for half in range(-8, 11))
"""Shares of the mean group load, on a logarithmic scale: from a sixteenth to thirty-two times."""
BATCH_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds."""
API_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Seconds."""


def step_names(strategy: str) -> dict[str, str]:
    """State of a protocol -> label of the step that entered it: "3 deactivating", "back returning"."""
    steps = {row.next: row.step for row in TABLES[strategy].rows if row.step}
    names = {state.value: f"{step} {state}" for state, step in sorted(steps.items(), key=lambda each: each[1])}
    reached = {row.next for row in TABLES[strategy].rows}
    return names | {state.value: f"back {state}" for state in sorted(BACK & reached)}


STEPS: Final = {strategy: step_names(strategy) for strategy in STRATEGIES}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One metric."""

    name: str
    """As scraped; that of a counter ends in _total."""
    kind: Kind
    help: str
    unit: str = ""
    """Of its value; empty for counts and numbers without a unit."""
    scope: Scope = "query"
    labels: tuple[str, ...] = ()
    """Beside those that the scope gives it."""
    choices: tuple[tuple[str, ...], ...] = ()
    """All combinations of values that its own labels may have; none where a label is text, of which there is one."""
    text_series: int = 1
    """How many values a label that is text may have at a time."""
    buckets: tuple[float, ...] = ()
    """Upper limits of a histogram; +Inf is added."""
    per_query: bool = False
    """Scope instance only: every instance says it about every query that it knows."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        given = {"worker": ("query", "worker"), "query": ("query",), "instance": ()}[self.scope]
        return (*given, *(("query",) if self.per_query else ()), *self.labels)

    @property
    def series(self) -> int:
        """For each worker, query or instance."""
        combinations = len(self.choices) or self.text_series
        if self.kind == "histogram":
            return combinations * (len(self.buckets) + 3)
        return combinations * (2 if self.kind == "summary" else 1)

    @property
    def sample_names(self) -> tuple[str, ...]:
        """As they are written in rules and dashboards."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (f"{self.name}_count", f"{self.name}_sum") if self.kind == "summary" else (self.name,)


FAMILIES: Final[dict[str, Family]] = {}
"""By name."""


def _family(name: str, kind: Kind, help: str, **more: object) -> Family:
    family = FAMILIES[name] = Family(name=name, kind=kind, help=help, **more)  # type: ignore[arg-type]
    return family


def _each(values: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple((value,) for value in values)


# -- each worker of a query: counters from reports of attempts that Spark has committed, levels from the newest report

WORKER_ROWS = _family(
    "trimtab_worker_rows_total", "counter", "Rows that the worker received, late ones included.", scope="worker"
)
WORKER_RESULTS = _family("trimtab_worker_results_total", "counter", "Results that the join made.", scope="worker")
WORKER_LATE = _family(
    "trimtab_worker_late_rows_total", "counter", "Rows that came after the watermark and were dropped.", scope="worker"
)
WORKER_BAD = _family(
    "trimtab_worker_bad_rows_total",
    "counter",
    "Rows without key or time that split tasks dropped; each task tells one worker.",
    scope="worker",
)
WORKER_CPU = _family(
    "trimtab_worker_cpu_seconds_total", "counter", "CPU time of the worker.", unit="seconds", scope="worker"
)
WORKER_BATCHES = _family(
    "trimtab_worker_batches_total",
    "counter",
    "Batches of the worker, by whether its resident state was found or had to be rebuilt.",
    scope="worker",
    labels=("resident",),
    choices=_each(RESIDENT),
)
WORKER_PLAN_CHANGES = _family(
    "trimtab_worker_plan_changes_total", "counter", "Times that the worker's join plan became another.", scope="worker"
)
WORKER_STATE_ROWS = _family("trimtab_worker_state_rows", "gauge", "Live rows of the streams.", scope="worker")
WORKER_STATE_BYTES = _family(
    "trimtab_worker_state_bytes", "gauge", "Resident state: columns, indexes, payload.", unit="bytes", scope="worker"
)
WORKER_COMBINED = _family(
    "trimtab_worker_combined_rows", "gauge", "Live tuples of the plan's intermediate states.", scope="worker"
)
WORKER_DELAY = _family(
    "trimtab_worker_watermark_delay_seconds",
    "gauge",
    "Clock of the worker minus the watermark of its newest batch.",
    unit="seconds",
    scope="worker",
)
WORKER_GROUPS = _family("trimtab_worker_groups", "gauge", "Partition groups that the worker owns.", scope="worker")
WORKER_LOAD = _family(
    "trimtab_worker_load_ratio",
    "gauge",
    "Load of the worker over the mean of all workers, in the measure that the balancer uses, smoothed.",
    unit="ratio",
    scope="worker",
)
WORKER_UP = _family("trimtab_worker_up", "gauge", "1 if the worker reports, else 0.", scope="worker")
WORKER_INFO = _family(
    "trimtab_worker_info", "gauge", "1; the executor that the worker runs on.", scope="worker", labels=("executor",)
)
WORKER_PLAN_INFO = _family(
    "trimtab_worker_plan_info", "gauge", "1; the worker's join plan.", scope="worker", labels=("plan",)
)

# -- each query

QUERY_UP = _family("trimtab_query_up", "gauge", "1 while the driver gives signs of life; vanishes when it does not.")
QUERY_WORKERS = _family("trimtab_query_workers", "gauge", "Workers of the query.")
QUERY_PARTITIONS = _family("trimtab_query_partitions", "gauge", "Partition groups of the query.")
QUERY_WINDOW = _family(
    "trimtab_query_window_seconds", "gauge", "Window and lateness together: how long a row matters.", unit="seconds"
)
QUERY_BATCH = _family("trimtab_query_committed_batch", "gauge", "Number of the newest committed batch.")
QUERY_EPOCH = _family("trimtab_query_epoch", "gauge", "Number of the newest published epoch.")
QUERY_FENCE = _family("trimtab_query_fence", "gauge", "Fencing token of the leader.")
QUERY_WATERMARK = _family(
    "trimtab_query_watermark_timestamp_seconds", "gauge", "The watermark, in event time since 1970.", unit="seconds"
)
QUERY_BATCH_SECONDS = _family(
    "trimtab_query_batch_duration_seconds",
    "histogram",
    "Durations of batches, as the driver says.",
    unit="seconds",
    buckets=BATCH_BUCKETS,
)
QUERY_LAST_BATCH = _family(
    "trimtab_query_last_batch_duration_seconds", "gauge", "Duration of the newest batch.", unit="seconds"
)
QUERY_INPUT_RATE = _family(
    "trimtab_query_input_rows_per_second", "gauge", "Rows per second that the newest batch read, as the driver says."
)
QUERY_BACKLOG = _family(
    "trimtab_query_source_backlog_rows",
    "gauge",
    "Rows in the sources that are not read yet (Kafka: lag). Absent where no source tells.",
)
QUERY_LAG = _family(
    "trimtab_query_stream_lag_rows",
    "gauge",
    "Rows in a stream's source that are not read yet. Absent for streams whose source does not tell.",
    labels=("stream",),
    text_series=LAGS_MAX,
)
QUERY_RATIO = _family(
    "trimtab_query_imbalance_ratio",
    "gauge",
    "Largest load over the mean, as the balancer's triggers see it.",
    unit="ratio",
)
QUERY_START_RATIO = _family(
    "trimtab_query_balance_start_ratio", "gauge", "The balancer begins at this imbalance.", unit="ratio"
)
QUERY_STOP_RATIO = _family(
    "trimtab_query_balance_stop_ratio", "gauge", "Once begun, it goes on until below this.", unit="ratio"
)
QUERY_AUTO = _family("trimtab_query_auto", "gauge", "1 if automatic balancing is on, else 0.")
GROUP_LOAD = _family(
    "trimtab_query_group_load_ratio",
    "histogram",
    "Partition groups by their load now, as a multiple of the mean group load. Not a sum over time: no rate of it.",
    unit="ratio",
    buckets=GROUP_LOAD_BUCKETS,
)
DECISIONS = _family(
    "trimtab_balancer_decisions_total",
    "counter",
    "Looks of the balancer at the load, by what it decided: act, or the reason not to.",
    labels=("code",),
    choices=_each(CODES),
)
DECISION = _family(
    "trimtab_balancer_decision",
    "gauge",
    "1 for the balancer's newest decision, 0 for the others.",
    labels=("code",),
    choices=_each(CODES),
)
REBALANCES = _family(
    "trimtab_rebalances_total",
    "counter",
    "Rebalances that have ended, by who asked and how they ended.",
    labels=("by", "state"),
    choices=tuple(product(ASKED_BY, REBALANCE_ENDS)),
)
REFUSALS = _family(
    "trimtab_rebalances_refused_total",
    "counter",
    "Requests for a rebalance that the leader refused, by the field that could not be granted.",
    labels=("field",),
    choices=_each(REFUSED_FIELDS),
)
MIGRATIONS_OPEN = _family(
    "trimtab_migrations_open", "gauge", "Migrations under way.", labels=("strategy",), choices=_each(STRATEGIES)
)
MIGRATIONS = _family(
    "trimtab_migrations_total",
    "counter",
    "Migrations that have ended.",
    labels=("strategy", "outcome"),
    choices=tuple(product(STRATEGIES, OUTCOMES)),
)
REPLANS_OPEN = _family(
    "trimtab_replans_open",
    "gauge",
    "Changes of plans under way.",
    labels=("strategy",),
    choices=_each(PLAN_STRATEGIES),
)
REPLANS = _family(
    "trimtab_replans_total",
    "counter",
    "Changes of plans that have ended, by strategy and by how they ended.",
    labels=("strategy", "outcome"),
    choices=tuple(product(PLAN_STRATEGIES, REPLAN_OUTCOMES)),
)
REPLAN_SECONDS = _family(
    "trimtab_replans_seconds_total",
    "counter",
    "Time from the request to the end of changes of plans.",
    unit="seconds",
    labels=("strategy", "outcome"),
    choices=tuple(product(PLAN_STRATEGIES, REPLAN_OUTCOMES)),
)
STEP_SECONDS = _family(
    "trimtab_migration_step_seconds",
    "summary",
    "Time that migrations spent in a step of their protocol.",
    unit="seconds",
    labels=("strategy", "step"),
    choices=tuple((strategy, step) for strategy, steps in STEPS.items() for step in steps.values()),
)
STEP_AGE = _family(
    "trimtab_migration_step_age_seconds",
    "gauge",
    "The longest time that a migration under way has been in its present step; 0 without one.",
    unit="seconds",
    labels=("strategy",),
    choices=_each(STRATEGIES),
)
STALLED = _family(
    "trimtab_migrations_stalled",
    "gauge",
    "Migrations under way that cannot go on, by what they wait for.",
    labels=("reason",),
    choices=_each(STALL_REASONS),
)
PACKAGE_BYTES = _family(
    "trimtab_migration_bytes_total",
    "counter",
    "Bytes of state that were packed and taken in.",
    unit="bytes",
    labels=("side",),
    choices=_each(PACKAGE_SIDES),
)
DUPLICATED = _family(
    "trimtab_migration_duplicated_rows_total", "counter", "Rows that PTLB sent to a second worker as well."
)
HELD = _family(
    "trimtab_migration_held_rows",
    "gauge",
    "Rows that wait now: at the receiver for the package, at the sender for a way back.",
    labels=("side",),
    choices=_each(HOLDING_SIDES),
)
PAUSE = _family(
    "trimtab_migration_pause_seconds_total",
    "counter",
    "Seconds by which batches with open moves took longer than the median batch without.",
    unit="seconds",
)
STORE_FAILED = _family(
    "trimtab_transfer_store_failures_total",
    "counter",
    "Migrations that the transfer store refused or sent back.",
    labels=("failure",),
    choices=_each(tuple(STORE_FAILURES.values())),
)
LAST_SECONDS = _family(
    "trimtab_rebalance_last_seconds",
    "gauge",
    "Duration of the rebalance that was measured last.",
    unit="seconds",
    labels=("of",),
    choices=_each(EXPECTATIONS),
)
LAST_PAUSE = _family(
    "trimtab_rebalance_last_pause_seconds",
    "gauge",
    "How much longer its longest batch took.",
    unit="seconds",
    labels=("of",),
    choices=_each(EXPECTATIONS),
)
LAST_BYTES = _family(
    "trimtab_rebalance_last_bytes",
    "gauge",
    "Bytes of state that it shipped.",
    unit="bytes",
    labels=("of",),
    choices=_each(EXPECTATIONS),
)
LAST_RATIO = _family(
    "trimtab_rebalance_last_imbalance_ratio",
    "gauge",
    "Imbalance after it.",
    unit="ratio",
    labels=("of",),
    choices=_each(EXPECTATIONS),
)
AUDIT_LOST = _family("trimtab_audit_lost_rows_total", "counter", "Rows and results that the audit found missing.")
AUDIT_DOUBLED = _family("trimtab_audit_doubled_rows_total", "counter", "Rows and results that it found twice.")
AUDIT_PROBLEMS = _family("trimtab_audit_problems_total", "counter", "Discrepancies that it found.")
AUDIT_CHECKED = _family("trimtab_audit_checked_rows_total", "counter", "Rows of moving groups that it has checked.")
AUDIT_UNCHECKED = _family(
    "trimtab_audit_unchecked_batches_total", "counter", "Batches with open moves that it could not check."
)
ALARMS = _family(
    "trimtab_alarms_recent",
    "gauge",
    "Alarms that were raised in the last 15 minutes, whoever led then, or nobody.",
    labels=("kind",),
    choices=_each(ALARM_KINDS),
)
EVENTS = _family(
    "trimtab_events_total",
    "counter",
    "Events that the leader wrote.",
    labels=("kind",),
    choices=_each(EVENT_KINDS),
)

# -- every instance

BUILD = _family("trimtab_build_info", "gauge", "1; the version of Trimtab.", scope="instance", labels=("version",))
READY = _family("trimtab_manager_ready", "gauge", "1 if the manager can work, else 0.", scope="instance")
LEADING = _family(
    "trimtab_manager_leading",
    "gauge",
    "1 if this instance leads the query, else 0.",
    scope="instance",
    per_query=True,
)
LEADER_CHANGES = _family(
    "trimtab_manager_leader_changes_total",
    "counter",
    "Times that this instance began to lead the query.",
    scope="instance",
    per_query=True,
)
FAILING = _family(
    "trimtab_manager_failing",
    "gauge",
    "1 if this instance cannot manage the query at the moment, else 0; its log says why.",
    scope="instance",
    per_query=True,
)
API_SECONDS = _family(
    "trimtab_api_request_duration_seconds",
    "histogram",
    "Time that requests took; of event streams, until they were closed.",
    unit="seconds",
    scope="instance",
    labels=("kind",),
    choices=_each(REQUEST_KINDS),
    buckets=API_BUCKETS,
)
API_REQUESTS = _family(
    "trimtab_api_requests_total",
    "counter",
    "Requests by kind and status.",
    scope="instance",
    labels=("kind", "status"),
    choices=tuple(product(REQUEST_KINDS, STATUS_CLASSES)),
)
API_REFUSED = _family(
    "trimtab_api_refusals_total",
    "counter",
    "Requests that were refused or failed, by their status.",
    scope="instance",
    labels=("status",),
    choices=_each(REFUSED_STATUSES),
)


@dataclass(frozen=True)
class SeriesBudget:
    """The largest number of series: per_worker * W + per_query for a query, and what an instance adds."""

    per_worker: int
    per_query: int
    instance: int
    instance_per_query: int
    families: Mapping[str, int] = field(default_factory=dict)

    def of_query(self, workers: int) -> int:
        """From the leader. The number of partition groups does not matter."""
        return self.per_worker * workers + self.per_query


def series_budget() -> SeriesBudget:
    def total(scope: Scope, per_query: bool = False) -> int:
        chosen = (each for each in FAMILIES.values() if each.scope == scope and each.per_query == per_query)
        return sum(each.series for each in chosen)

    return SeriesBudget(
        per_worker=total("worker"),
        per_query=total("query"),
        instance=total("instance"),
        instance_per_query=total("instance", per_query=True),
        families={name: family.series for name, family in FAMILIES.items()},
    )
