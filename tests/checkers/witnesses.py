"""Compares what the workers of a `Cluster` counted around open moves: the audit's rules, as short as they can be said.

The audit that ships reads reports of committed batches and knows states only as they were a batch ago. Here everything
is at hand, so a damage that the evidence shows is found in the batch that did it.
"""

from __future__ import annotations

from collections.abc import Iterator

from split_union.routing import routes_of
from tests.checkers.cluster import Cluster
from trimtab.evidence import NOTHING, Evidence, Seen, Tally
from trimtab.moves import Move, RoleState, Way
from trimtab.reports import MoveReport


class Witnesses:
    """Looks at every batch; keeps what it found wrong."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.problems: list[str] = []
        self.sampled = 0
        self._before: dict[tuple[str, int], Evidence] = {}
        self._states: dict[tuple[str, int], RoleState] = {}

    def look(self) -> None:
        """Called after each batch."""
        now = {(report.move, worker): report for worker, out in enumerate(self.cluster.last) for report in out.moves}
        for worker, outcome in enumerate(self.cluster.last):
            emitted = sum(piece.num_rows for piece in outcome.pieces)
            if emitted != outcome.results:
                self.problems.append(f"worker {worker} made {outcome.results} results and emitted {emitted}")
        for (name, worker), report in now.items():
            self.sampled += report.evidence.sampled_keys
            self.problems += [f"{name}, worker {worker}: {each}" for each in self._wrong(name, worker, report, now)]
        self._before = {key: report.evidence for key, report in now.items()}
        self._states = {key: self.cluster.told(*key).state for key in now}

    def _wrong(
        self, name: str, worker: int, report: MoveReport, now: dict[tuple[str, int], MoveReport]
    ) -> Iterator[str]:
        found, move = report.evidence, self.cluster.epoch.move(name)
        state = self.cluster.told(name, worker).state
        entered = state != self._states.get((name, worker))
        known = self._before.get((name, worker))
        if found.sampled_made != found.sampled_expected:
            yield f"{found.sampled_made} results instead of {found.sampled_expected}"
        if sum(found.joined_by_group.values()) != found.joined.rows:
            yield "rows by group do not add up"
        if known is not None and found.waiting_before != known.waiting_after:
            yield f"{known.waiting_after} waited, and {found.waiting_before} are left"
        if entered and state == RoleState.RECEIVED and move is not None:
            sent = self._before.get((name, move.sender)) or now[name, move.sender].evidence
            if found.stored_before != sent.stored_after:
                yield f"took in {found.stored_before}, the sender had {sent.stored_after}"
        elif known is not None and not (state == RoleState.CLOSED and self._moves_again(name, worker)):
            keeps = state != RoleState.DROPPED and (state != RoleState.CLOSED or self._owns(name, worker))
            yield from self._chain(known, found, state, entered, move, keeps=keeps)
        if move is not None:
            yield from self._rows(move, worker, report, state, entered)
        if move is not None and worker == move.sender:
            made = now[name, move.receiver].results
            if report.suppressed and report.suppressed != made:
                yield f"left out {report.suppressed}, the receiver made {made}"
            if report.suppressed != made and report.state in (RoleState.OLD_REMAINS, RoleState.ALL_OLD_PURGED):
                yield f"left out {report.suppressed}, the receiver made {made}"

    def _owns(self, name: str, worker: int) -> bool:
        record = self.cluster.durable[worker].record()
        assert record is not None
        return all(set(role.groups) <= set(record.owned) for role in record.roles if role.move == name)

    def _moves_again(self, name: str, worker: int) -> bool:
        """Whether the worker has a part in another move of the same groups: that one says what it must have."""
        record = self.cluster.durable[worker].record()
        assert record is not None
        groups = {group for role in record.roles if role.move == name for group in role.groups}
        return any(role.move != name and not groups.isdisjoint(role.groups) for role in record.roles)

    def _chain(
        self, known: Evidence, found: Evidence, state: RoleState, entered: bool, move: Move | None, *, keeps: bool
    ) -> Iterator[str]:
        """What was to be kept is here, unless the groups left; what was put back silently is here, too."""
        if entered and state == RoleState.RESTORED and move is not None and move.way == Way.JOINED:
            rows = known.stored_after.rows + found.waiting_before.rows
            if found.stored_before.rows != rows:
                yield f"has {found.stored_before.rows} rows after the restore instead of {rows}"
            return
        wanted = NOTHING if entered and not keeps else known.stored_after
        if found.stored_before != wanted:
            yield f"stored {found.stored_before} instead of {wanted}"

    def _rows(self, move: Move, worker: int, report: MoveReport, state: RoleState, entered: bool) -> Iterator[str]:
        """Rows that split tasks saw came here if they had to, and the on-time ones were joined or put aside."""
        found = report.evidence
        routes = routes_of(self.cluster.epoch, self.cluster.epoch_bound_before)
        gets = worker in (routes.owner[move.groups[0]], routes.also[move.groups[0]])
        seen = {group: self.cluster.seen.get(group, Seen()) for group in move.groups} if gets else {}
        arrived = {group: each.rows for group, each in seen.items() if each.rows}
        if arrived != report.arrived:
            yield f"{report.arrived} arrived instead of {arrived}"
        on_time: Tally = sum((each.on_time for each in seen.values()), NOTHING)
        left = found.waiting_before - (found.waiting_after - found.put_aside)
        gone = entered and (state == RoleState.DROPPED or (state == RoleState.RESTORED and move.way == Way.JOINED))
        if found.joined + found.put_aside != on_time + (NOTHING if gone else left):
            yield f"joined {found.joined}, put aside {found.put_aside}, of {on_time} and {left} that had waited"
