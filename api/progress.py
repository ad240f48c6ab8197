"""How far a migration has come: its steps with their times, a fraction, and when it may be done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

from balancing.protocols.migration import Migration
from balancing.requests import Rebalance
from manager.store import Json
from trimtab.moves import Side, parse_move_id
from trimtab.reports import WorkerReport

CHOOSING_SHARE: Final = 0.1
"""The part of the bar for steps 1 and 2, which run once; the rest goes to the waves, by their groups."""


def fraction(migration: Migration) -> float:
    """0.0 to 1.0; 1.0 only for one that has ended."""
    if migration.done:
        return 1.0
    groups = len(migration.chosen)
    if not groups:
        return CHOOSING_SHARE / 2 * migration.step
    first, steps = 2, migration.table.steps
    reached = 0.0
    for number, wave in enumerate(migration.waves, 1):
        step = max((entry.step for entry in migration.story if entry.wave == number), default=first)
        reached += len(wave.groups) * (1.0 if wave.final else (step - first) / (steps - first + 1))
    return min(0.99, CHOOSING_SHARE + (1 - CHOOSING_SHARE) * reached / groups)


def eta_s(migration: Migration, now_ms: int, track_s: float) -> float | None:
    """Seconds to go, or None where there is nothing to judge by.

    A protocol that waits for old rows to expire takes `track_s` (window and lateness) from step 3 on. Waves take about
    as long as those before them did.
    """
    if migration.done:
        return 0.0
    opened = next((entry.at_ms for entry in migration.story if entry.step == 3), None)
    if opened is None:
        return None
    spent_s = max(0.0, (now_ms - opened) / 1000)
    if migration.table.waits_for_expiry:
        # Event time advances with the streams. After `track_s` nobody knows: a stream may be idle.
        return track_s - spent_s if _waits_for_event_time(migration) and spent_s < track_s else None
    reached = fraction(migration) - CHOOSING_SHARE
    return spent_s * (1 - CHOOSING_SHARE - reached) / reached if reached > 0 else None


def _waits_for_event_time(migration: Migration) -> bool:
    return migration.table.waits_for_expiry and migration.state == migration.table.opening


def migration_view(migration: Migration, now_ms: int, track_s: float) -> Json:
    left_s = eta_s(migration, now_ms, track_s)
    verdict = migration.verdict()
    return {
        "id": migration.id,
        "query": migration.query,
        "rebalance": migration.rebalance or None,
        "strategy": migration.strategy,
        "from": migration.sender,
        "to": migration.receiver,
        "groups": list(migration.chosen or migration.request.groups),
        "amount": migration.request.share or None,
        "moved": list(migration.moved_groups),
        "state": migration.state.value,
        "outcome": migration.outcome or None,
        "problem": migration.problem or None,
        "reason": migration.reason,
        "by": migration.requested_by,
        "created_ms": migration.created_ms,
        "ended_ms": migration.story[-1].at_ms if migration.done and migration.story else None,
        "step": migration.step,
        "steps": migration.table.steps,
        "message": migration.story[-1].message if migration.story else None,
        "progress": round(fraction(migration), 3),
        "eta_s": None if left_s is None else round(left_s, 1),
        "waits_for_event_time": _waits_for_event_time(migration),
        "can_be_cancelled": not migration.done
        and (migration.state not in migration.table.refusing or bool(migration.remaining)),
        "waves": [
            {"groups": list(wave.groups), "state": wave.state.value, "rows": wave.rows, "bytes": wave.bytes}
            for wave in migration.waves
        ],
        "story": [asdict(entry) for entry in migration.story],
        "audit": {**asdict(verdict), "problems": list(verdict.problems), "clean": verdict.clean},
    }


def rows_in_move(migration: Migration, reports: Iterable[WorkerReport]) -> Json:
    """Rows that wait for the state at the moment, and rows of the newest batch that went to both workers (PTLB)."""
    held = copied = 0
    for move in (move for report in reports for move in report.moves if move.side is Side.RECEIVER):
        name = parse_move_id(move.move)
        if name is not None and name[0] == migration.id:
            held += move.held_rows
            copied += sum(move.arrived.values()) if migration.table.waits_for_expiry else 0
    return {"held_rows": held, "copied_rows": copied}


def rebalance_view(record: Rebalance, migrations: Sequence[Json], outcome: Json | None = None) -> Json:
    """A rebalance with its migrations, as `migration_view` shows them, and its forecast against what was measured."""
    body = record.to_json()
    request = body.pop("request")
    return {
        **body,
        "proposal": request.get("proposal"),
        "strategy": request.get("strategy"),
        "moves": request.get("moves"),
        "open": record.open,
        "progress": _progress(record, [float(each["progress"]) for each in migrations]),
        "eta_s": _eta(record, [each["eta_s"] for each in migrations]),
        "migrations": list(migrations),
        "audit": _verdict(migrations),
        "forecast": (outcome or {}).get("forecast"),
        "measured": (outcome or {}).get("measured"),
    }


def _progress(record: Rebalance, parts: Sequence[float]) -> float:
    if not record.open:
        return 1.0
    return round(sum(parts) / len(parts), 3) if parts else 0.0


def _eta(record: Rebalance, parts: Sequence[float | None]) -> float | None:
    if not record.open:
        return 0.0
    known = [each for each in parts if each is not None]
    return max(known) if known and len(known) == len(parts) else None


def _verdict(migrations: Iterable[Json]) -> Json:
    audits = [each["audit"] for each in migrations]
    return {
        "lost": sum(each["lost"] for each in audits),
        "doubled": sum(each["doubled"] for each in audits),
        "checked_rows": sum(each["checked_rows"] for each in audits),
        "unchecked_batches": sum(each["unchecked_batches"] for each in audits),
        "problems": [problem for each in audits for problem in each["problems"]],
        "finished": all(each["finished"] for each in audits),
        "clean": all(each["clean"] for each in audits),
    }
