"""The front page as one document: everything that a page or a terminal shows of a query at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from api.backend import Backend
from api.deltas import EVENTS_SHOWN
from api.progress import migration_view, rows_in_move
from api.views import query_view, workers_view
from balancing.load import Snapshot
from balancing.policies.policy import oversized_groups
from balancing.protocols.migration import Migration
from balancing.settings import Settings
from balancing.situation import Situation
from balancing.triggers import TriggerState, decide, largest_ratio
from manager.history import load_codes, load_values
from manager.requests import situation as situation_of
from manager.store import Json, StreamEvent, event_time, now_ms
from trimtab.reports import WorkerReport

ENDED_SHOWN_MS: Final = 60_000
"""How long a move that has ended stays on the front page with all its steps; its mark on the charts stays longer."""
_ENDED_READ: Final = 50


async def read_front(use: Backend, query: str, events: Sequence[StreamEvent]) -> Json:
    """The document, without its number. `events`: the newest ones, which the reader has already."""
    store, at_ms = use.store, now_ms()
    reports = await store.reports(query)
    situation = await situation_of(store, query, use.heartbeat_max_ms, reports)
    load = await use.load_now(situation)
    settings = await store.auto(query)
    definition = await store.definition(query)
    shown = query_view(
        situation,
        definition,
        await store.heartbeat(query),
        await store.leader(query),
        settings,
        await store.alarms(query),
    )
    history = await store.history(query, _ENDED_READ)
    why = why_now(situation, load, settings, await store.trigger_state(query), await store.decision(query), at_ms)
    return {
        "at_ms": at_ms,
        "query": shown,
        "imbalance": imbalance(load, settings),
        "why": why,
        "workers": [_worker(each) for each in workers_view(situation, reports, load)["workers"]],
        "owners": list(situation.epoch.owners),
        "loads": [] if load is None else load_values(load_codes(load.group_cpu)),
        "moves": await _moves(use, situation, reports, definition or {}, history, at_ms),
        "marks": await use.marks.of(store, query, history[0] if history else None),
        "batches": [list(row) for row in await store.batches(query)],
        "events": [asdict(event) for event in events[-EVENTS_SHOWN:]],
    }


def imbalance(load: Snapshot | None, settings: Settings) -> Json:
    """The ratio as the triggers see it; null where nothing is measured."""
    return {
        "ratio": None if load is None else round(largest_ratio(load, settings)[1], 4),
        "measure": settings.measure,
        "start_ratio": settings.start_ratio,
        "stop_ratio": settings.stop_ratio,
        "auto": settings.auto,
    }


def why_now(
    situation: Situation,
    load: Snapshot | None,
    settings: Settings,
    remembered: TriggerState,
    last: Json | None,
    at_ms: int,
) -> Json:
    """Why nothing moves now, in words. No policy is asked: that may take a second, and the leader has done so."""
    if situation.stopped:
        return {"text": "The query is not running: its driver gives no sign of life.", "code": "stopped", "act": False}
    if load is None:
        return {"text": "The load is not known yet: no batch was measured lately.", "code": "unmeasured", "act": False}
    decision = decide(load, settings, remembered, at_ms)
    text = decision.why
    if decision.code == "cooling-down" and last is not None and last.get("code") in ("no-moves", "too-little-gain"):
        text = f"{last.get('why', '')} {text}"
    if decision.act:
        text = f"{text} The balancer looks for moves."
    # A decision against a proposal has told its findings already.
    findings = [each.text for each in oversized_groups(load, settings.measure) if each.text not in text]
    return {"text": " ".join([text, *findings]), "code": decision.code, "act": decision.act}


def _worker(view: Json) -> Json:
    return {**view, "groups": len(view["groups"]), "moving": len(view["moving"])}


async def _moves(
    use: Backend,
    situation: Situation,
    reports: Mapping[int, WorkerReport],
    definition: Json,
    history: Sequence[tuple[str, int]],
    at_ms: int,
) -> list[Json]:
    """Those under way, oldest first, and those that ended a moment ago."""
    names = [
        member.partition(":")[2]
        for member, ended_ms in history
        if member.startswith("migration:") and ended_ms > at_ms - ENDED_SHOWN_MS
    ]
    ended = await use.store.migrations_named(situation.query, names)
    track_s = event_time(definition).track_s
    migrations: dict[str, Migration] = {**ended, **{each.id: each for each in situation.migrations}}
    return [
        migration_view(each, at_ms, track_s) | rows_in_move(each, reports.values())
        for each in sorted(migrations.values(), key=lambda each: (each.created_ms, each.id))
    ]
