"""A replan: one worker on its way to another plan, as a machine without I/O, clock or chance.

`handle(event)` answers with instructions and changes nothing: the replan that follows is *in* the JournalStep, and is
held only once that is durable. Which transitions there are is in table.py. A request that was refused, and one that
waits to be taken up, are records of the same kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from balancing.replans.events import CancelRequested, Event, StoodStill
from balancing.replans.table import FINAL, TABLE, Row, State
from trimtab.errors import TrimtabError
from trimtab.plan_orders import PlanStrategy
from trimtab.records import Json, in_format, known_fields

FORMAT: Final = 1
OLDEST_READER: Final = 1
"""The oldest format whose managers may go on with a record of this one."""
UPGRADES: Final[Mapping[int, Callable[[Json], Json]]] = {}

_ORDER: Final = re.compile(r"(?P<replan>.+)\.p(?P<number>[12])")


@dataclass(frozen=True, kw_only=True)
class StoryLine:
    at_ms: int
    message: str
    state: str
    note: str = ""

    def render(self) -> str:
        return f"{self.message} -> {self.state}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, kw_only=True)
class Replan:
    """One change of one worker's plan. Immutable: each durable write has the next one."""

    id: str
    query: str
    worker: int
    plan: str
    """The tree that it shall have, as `str(parse_plan(...))` writes it."""
    former: str = ""
    """The tree that it had, or was ordered to have, when this was accepted: what a cancel puts back."""
    strategy: PlanStrategy = PlanStrategy.MS
    budget_ms: int = 0
    incarnation: str = ""
    state: State = State.REQUESTED
    since: int = 0
    """Epoch that was the newest when this was accepted: an order that is younger and not ours has overtaken it."""
    seen: int = 0
    """Newest epoch with an order of ours that is known to have been bound."""
    settled_batch: int = -1
    """The committed batch whose report said that it had settled."""
    problem: str = ""
    """Why it did not end as asked, in words."""
    refusal: Json | None = None
    """Why it was refused: field, value, problem, remedy, status."""
    reason: str = ""
    by: str = ""
    automatic: bool = False
    adopted: bool = False
    """Made again from the order in a bound epoch, because the journal was gone."""
    note: str = ""
    """How plan and strategy were chosen."""
    forecast: Json | None = None
    """What it was to cost and to save."""
    created_ms: int = 0
    closed_ms: int | None = None
    story: tuple[StoryLine, ...] = ()

    @property
    def done(self) -> bool:
        return self.state in FINAL

    @property
    def goes_back(self) -> bool:
        return self.state == State.RETURNING

    @property
    def order_id(self) -> str:
        """The order that is, or is to be, in the epoch."""
        return order_id(self.id, back=self.goes_back)

    @property
    def wanted_plan(self) -> str:
        """The plan that the worker is to have in the end, as things stand."""
        return self.former if self.state in (State.RETURNING, State.CANCELLED) else self.plan

    def render_story(self) -> str:
        head = f"replan {self.id} (worker {self.worker}, {self.strategy}, {self.query}): {self.former} -> {self.plan}"
        return "\n".join([head, *(f"  {line.at_ms} {line.render()}" for line in self.story)])

    def handle(self, event: Event) -> list[Instruction]:
        """What is to be done about an event: nothing if it is a duplicate; ReplanError if it cannot happen."""
        if event.replan != self.id:
            raise ReplanError(self, event, f"is for replan {event.replan}")
        if isinstance(event, CancelRequested) and (self.done or self.state in TABLE.refusing):
            text = f"{self.id} cannot be cancelled any more: it is {self.state}"
            return [Tell("refused", text, self.id)]
        row = TABLE.find(self.state, type(event))
        if isinstance(event, StoodStill) and self.strategy == PlanStrategy.MS:
            row = None  # it goes on by moving state already
        if row is None:
            if type(event) in TABLE.repeated or (isinstance(event, CancelRequested) and self.goes_back):
                return []
            raise ReplanError(self, event, f"cannot happen in state {self.state}")
        return self._stepped(event, row)

    def _stepped(self, event: Event, row: Row) -> list[Instruction]:
        changed = replace(self, state=row.next, seen=max(self.seen, event.epoch))
        note = event.cause
        if isinstance(event, StoodStill):
            changed = replace(changed, strategy=PlanStrategy.MS)
            note = f"stream {event.stream} stands still: it goes on by moving state"
        if isinstance(event, CancelRequested):
            note = f"cancelled by {event.by or 'somebody'}" + (f": {event.cause}" if event.cause else "")
            changed = replace(changed, problem=note)
        if row.next == State.SETTLED:
            changed = replace(changed, settled_batch=event.batch)
        return changed.noted(row.message, event.now_ms, note)

    def noted(self, message: str, now_ms: int, note: str = "") -> list[Instruction]:
        """Journal this replan with a line more in its story."""
        line = StoryLine(at_ms=now_ms, message=message, state=self.state, note=note)
        changed = replace(self, story=(*self.story, line), closed_ms=now_ms if self.done else None)
        instructions: list[Instruction] = [JournalStep(changed, f"replan:{message.lower()}")]
        if changed.done:
            because = f": {changed.problem}" if changed.problem else ""
            instructions.append(Tell("finished", f"{self.id} {changed.state}{because}", self.id))
        return instructions

    def to_json(self) -> Json:
        return {"format": FORMAT, "oldest_reader": OLDEST_READER, **asdict(self)}


@dataclass(frozen=True)
class JournalStep:
    """Write this replan durably, and hold it from then on."""

    replan: Replan
    point: str
    """ "replan:orderplan": names the write, for tests that stop a manager before or after it."""


@dataclass(frozen=True)
class Tell:
    """Let people know."""

    kind: str
    text: str
    replan: str


Instruction = JournalStep | Tell


class ReplanError(TrimtabError):
    """An event that cannot happen in the state a replan is in: a bug, here or in what told it."""

    def __init__(self, replan: Replan, event: Event, problem: str) -> None:
        super().__init__(f"{type(event).__name__} {problem}: {event}\n{replan.render_story()}")


def order_id(replan: str, *, back: bool) -> str:
    return f"{replan}.p{2 if back else 1}"


def parse_order_id(order: str) -> tuple[str, bool] | None:
    """Replan, and whether it puts the old plan back; None for a name that `order_id` did not make."""
    match = _ORDER.fullmatch(order)
    return (match["replan"], match["number"] == "2") if match else None


def parse_replan(body: Mapping[str, Any]) -> Replan:
    """The replan that `to_json` wrote, in this version of Trimtab or another one that agrees with it."""
    record = in_format(body, FORMAT, UPGRADES, "replan")
    fields = known_fields(Replan, record)
    fields["strategy"] = PlanStrategy(record["strategy"])
    fields["state"] = State(record["state"])
    fields["story"] = tuple(StoryLine(**known_fields(StoryLine, line)) for line in record["story"])
    return Replan(**fields)


def replan_at(replans: Iterable[Replan], worker: int) -> Replan | None:
    """The one that is under way at a worker; of several (one is adopted) the one that has been ordered."""
    mine = [each for each in replans if each.worker == worker and not each.done]
    return min(mine, key=lambda each: (each.state == State.WAITING, each.created_ms, each.id), default=None)
