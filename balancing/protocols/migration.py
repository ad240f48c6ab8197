"""A migration: groups on their way from one worker to another, as a machine without I/O, clock or chance.

`handle(event)` answers with instructions and changes nothing: the migration that follows is *in* the JournalStep, and
whoever executes it writes that one durably first and holds it only then. So a step is journaled before anything follows
from it by construction, and a crash between two steps leaves a migration that any manager can go on with.

Which transitions there are is in the tables (mslb.py, ptlb.py). A migration has *waves*: groups that move together.
Steps 1 and 2 run once, step 3 and those after it once per wave; PTLB has a single wave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from balancing.audit import AuditVerdict, MigrationAudit, parse_audit
from balancing.protocols.events import (
    CancelRequested,
    Event,
    ExportFailed,
    HeldTooLong,
    Holding,
    NothingToMove,
    PackageReady,
    PartitionsToMove,
    RecallAnswered,
    StoreRefused,
    WaveAllowed,
)
from balancing.protocols.mslb import MSLB
from balancing.protocols.ptlb import PTLB
from balancing.protocols.table import BACK, FINAL, Row, State, Table
from balancing.words import PROTOCOLS, Order, ShareMeasure, Strategy
from trimtab.errors import TrimtabError
from trimtab.moves import Kind, Way, move_id
from trimtab.records import Json, in_format, known_fields

TABLES: Final[dict[str, Table]] = {"mslb": MSLB, "ptlb": PTLB}

COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled-back"
IN_PART: Final = "committed-in-part"

FORMAT: Final = 4
OLDEST_READER: Final = 4
"""The oldest format whose managers may go on with a record of this one: raise it when a field must not be ignored."""
UPGRADES: Final[Mapping[int, Callable[[Json], Json]]] = {3: lambda body: body}
"""Format -> its records in the next one. Format 3 has all that format 4 has, but does not name its oldest reader."""

STORY_KEPT: Final = 300
STORY_BEGINNING: Final = 20
"""Of a migration of very many waves the story's beginning and end are kept: it is written with every step."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to move: these groups, or those whose load comes nearest to a share of the sender's."""

    share: float = 0.0
    measure: ShareMeasure = "cpu"
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How much may move at a time."""

    max_pause_ms: float | None = None
    """A batch may take so much longer; None: the default factor (balancing/pacing.py). How many bytes that makes is
    reckoned for each wave, from what those before it cost."""
    order: Order = "hot-first"


@dataclass(frozen=True, kw_only=True)
class Wave:
    """Groups that move together."""

    groups: tuple[int, ...]
    state: State
    seen: int
    """Newest epoch that is known to have been bound before what this wave waits for: older ones prove nothing."""
    was_open: bool = False
    """Whether a committed batch was bound to an epoch with this wave's move."""
    rows: int = 0
    bytes: int = 0
    packed_digest: str = ""
    """Of the sender's package, as its durable record has it."""
    digest: str = ""
    """Published with the move, once the receiver could not tell which package to take."""
    way: Way = Way.THERE
    """JOINED or HELD: what the receiver answered to the recall."""
    held_since: int = -1
    """Batch in which rows were first seen waiting; -1: none do."""

    @property
    def final(self) -> bool:
        return self.state in FINAL


@dataclass(frozen=True, kw_only=True)
class StoryLine:
    """A line of the migration's story."""

    at_ms: int
    wave: int
    step: int
    message: str
    state: str
    note: str = ""

    def render(self) -> str:
        where = f"wave {self.wave} " if self.wave else ""
        step = f"step {self.step} " if self.step else ""
        return f"{self.at_ms} {where}{step}{self.message} -> {self.state}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One migration. Immutable: each durable write has the next one."""

    id: str
    query: str
    incarnation: str
    strategy: Strategy
    sender: int
    receiver: int
    request: Request
    excluded: tuple[int, ...] = ()
    """Groups that the sender must not choose: pinned ones, for example."""
    reason: str = ""
    requested_by: str = ""
    rebalance: str = ""
    created_ms: int = 0
    pace: Pace = field(default_factory=Pace)
    first_state: State = State.NEW
    """Of the migration as a whole, before its first wave."""
    since: int = 0
    """Epoch of the batch in which the sender named the groups."""
    chosen: tuple[int, ...] = ()
    remaining: tuple[int, ...] = ()
    """Chosen groups that are in no wave yet."""
    waves: tuple[Wave, ...] = ()
    outcome: str = ""
    problem: str = ""
    """Why it did not end as asked, in words."""
    adopted: bool = False
    """Made again from the open moves of a bound epoch, because the journal was gone."""
    story: tuple[StoryLine, ...] = ()
    audit: MigrationAudit = field(default_factory=MigrationAudit)

    @property
    def table(self) -> Table:
        return TABLES[self.strategy]

    @property
    def state(self) -> State:
        """Of the wave under way, else of the newest one, or of the migration while it has none."""
        return self.waves[self._current_wave - 1].state if self.waves else self.first_state

    @property
    def _current_wave(self) -> int:
        """The newest that is under way. A later one may have been given up meanwhile (reconcile.py)."""
        under_way = [number for number, wave in enumerate(self.waves, 1) if not wave.final]
        return under_way[-1] if under_way else len(self.waves)

    @property
    def step(self) -> int:
        """The newest step of the paper that was journaled."""
        return next((line.step for line in reversed(self.story) if line.step), 0)

    @property
    def done(self) -> bool:
        return bool(self.outcome)

    def verdict(self) -> AuditVerdict:
        """What its audit says. While it is under way another move may open, whatever has been checked so far."""
        verdict = self.audit.verdict()
        return replace(verdict, finished=verdict.finished and self.done)

    @property
    def wants_wave(self) -> bool:
        """Whether WaveAllowed would be welcome: some groups remain and no earlier wave is under way."""
        return bool(self.remaining) and self.table.find(self.state, WaveAllowed) is not None

    @property
    def busy_groups(self) -> frozenset[int]:
        """Groups that no other migration may touch."""
        return frozenset() if self.done else frozenset(self.chosen) | frozenset(self.request.groups)

    @property
    def moved_groups(self) -> tuple[int, ...]:
        return tuple(group for wave in self.waves if wave.state == State.COMMITTED for group in wave.groups)

    def awaited_owner(self, wave: Wave) -> int | None:
        """Who is to own the wave's groups in an epoch without its move; None where the move is not to be closed yet."""
        if wave.state == self.table.closing:
            return self.receiver
        return self.sender if wave.state == State.CLEARING else None

    def move_id(self, wave: int) -> str:
        return move_id(self.id, wave)

    def render_story(self) -> str:
        head = f"migration {self.id} ({self.strategy}, {self.query}): worker {self.sender} -> worker {self.receiver}"
        return "\n".join([head, *(f"  {line.render()}" for line in self.story)])

    def handle(self, event: Event) -> list[Instruction]:
        """What is to be done about an event: nothing if it is a duplicate; ProtocolError if it cannot happen."""
        if event.migration != self.id:
            raise ProtocolError(self, event, f"is for migration {event.migration}")
        if isinstance(event, CancelRequested):
            return self._cancel(event)
        if self.done:
            return [] if type(event) in self.table.repeated else self._impossible(event)
        if isinstance(event, WaveAllowed):
            return self._next_wave(event)
        state = self._state_of(event)
        row = self.table.find(state, type(event))
        if row is None:
            return [] if self.table.ignores(state, type(event)) else self._impossible(event)
        if event.wave == 0:
            return self._as_a_whole(event, row)
        return self._in_wave(event, row)

    def _impossible(self, event: Event) -> list[Instruction]:
        raise ProtocolError(self, event, f"cannot happen in state {self.outcome or self._state_of(event)}")

    def _state_of(self, event: Event) -> State:
        if event.wave == 0:
            return self.first_state
        if not 1 <= event.wave <= len(self.waves):
            raise ProtocolError(self, event, f"is for wave {event.wave}, and there are {len(self.waves)}")
        return self.waves[event.wave - 1].state

    def _as_a_whole(self, event: Event, row: Row) -> list[Instruction]:
        """Steps 1 and 2, and an end before anything moved."""
        changed = replace(self, first_state=row.next)
        if isinstance(event, PartitionsToMove):
            changed = replace(changed, chosen=event.groups, remaining=event.groups, since=event.epoch)
        if isinstance(event, NothingToMove | StoreRefused):
            changed = replace(changed, problem=event.problem)
        if row.next in FINAL:
            changed = replace(changed, outcome=ROLLED_BACK)
        return changed._stepped(event, row, 0)

    def _next_wave(self, event: WaveAllowed) -> list[Instruction]:
        row = self.table.find(self.state, WaveAllowed)
        if row is None or not event.groups or not set(event.groups) <= set(self.remaining):
            return self._impossible(event)
        if not self.table.paced and set(event.groups) != set(self.remaining):
            raise ProtocolError(
                self, event, f"splits {self.table.name} into waves: it pauses nothing, so it needs none"
            )
        wave = Wave(groups=tuple(sorted(event.groups)), state=row.next, seen=max(self.since, event.epoch))
        remaining = tuple(group for group in self.remaining if group not in event.groups)
        changed = replace(self, waves=(*self.waves, wave), remaining=remaining)
        return changed._stepped(event, row, len(changed.waves))

    def _in_wave(self, event: Event, row: Row) -> list[Instruction]:
        before = self.waves[event.wave - 1]
        wave = replace(before, state=row.next)
        problem = self.problem
        if row.next != before.state:
            wave = replace(wave, held_since=-1)
        if event.epoch:
            wave = replace(wave, seen=max(wave.seen, event.epoch), was_open=True)
        match event:
            case PackageReady():
                wave = replace(wave, rows=event.rows, bytes=event.bytes, packed_digest=event.digest)
            case ExportFailed() | HeldTooLong():
                problem = problem or event.problem
            case RecallAnswered():
                wave = replace(wave, way=Way.JOINED if event.joined else Way.HELD)
            case Holding():
                wave = self._holding(before, event)
                if wave == before:
                    return []
            case _:
                pass
        return self.with_wave(event.wave, wave, problem=problem)._stepped(event, row, event.wave)

    def _holding(self, wave: Wave, event: Holding) -> Wave:
        """Note since when rows wait, and which package is the one."""
        since = event.batch if wave.held_since < 0 else wave.held_since
        return replace(wave, held_since=since, digest=event.digest or wave.digest)

    def _cancel(self, event: CancelRequested) -> list[Instruction]:
        """Back, as far as the point of no return allows: waves beyond it stay where they went, the rest does not go."""
        state = self.state
        cause = f"cancelled by {event.by or 'somebody'}" + (f": {event.cause}" if event.cause else "")
        if self.done or (state in self.table.refusing and not self.remaining):
            text = f"{self.id} cannot be cancelled any more: it is {self.outcome or state}"
            return [Tell("refused", text, self.id)]
        if state in self.table.refusing:
            changed = replace(self, remaining=(), problem=self.problem or cause)
            return changed._ended()._stepped(event, Row(state, CancelRequested, state, 0, "Cancel"), self._current_wave)
        row = self.table.find(state, CancelRequested)
        if row is None:
            return [] if self.table.ignores(state, CancelRequested) else self._impossible(event)
        changed = replace(self, remaining=(), problem=self.problem or cause)
        if not self.waves:
            return changed._as_a_whole(event, row)
        return changed._in_wave(replace(event, wave=self._current_wave), row)

    def with_wave(self, number: int, wave: Wave, *, problem: str = "") -> Migration:
        """With another wave `number`. One that goes back takes those not yet begun with it."""
        waves = (*self.waves[: number - 1], wave, *self.waves[number:])
        back = wave.state in BACK or wave.state == State.ROLLED_BACK
        remaining = () if back else self.remaining
        return replace(self, waves=waves, remaining=remaining, problem=problem or self.problem)._ended()

    def _ended(self) -> Migration:
        """With its outcome, once every wave is where it stays."""
        if self.remaining or not all(wave.final for wave in self.waves):
            return self
        moved = set(self.moved_groups)
        if moved == set(self.chosen):
            return replace(self, outcome=COMMITTED)
        return replace(self, outcome=IN_PART if moved else ROLLED_BACK)

    def noted(self, message: str, now_ms: int, note: str, wave: int = 0) -> list[Instruction]:
        """Journal this migration with a line of its story that is not a transition of the table (reconcile.py)."""
        state = self.outcome or self.state
        changed = self._with_line(StoryLine(at_ms=now_ms, wave=wave, step=0, message=message, state=state, note=note))
        instructions: list[Instruction] = [JournalStep(changed, 0, f"{self.strategy}:{message.lower()}")]
        if changed.done:
            instructions.append(Tell("finished", f"{self.id} {changed.outcome}" + _because(changed.problem), self.id))
        return instructions

    def _with_line(self, line: StoryLine) -> Migration:
        story = (*self.story, line)
        if len(story) > STORY_KEPT:
            story = (*story[:STORY_BEGINNING], *story[STORY_BEGINNING + 1 :])
        return replace(self, story=story)

    def _stepped(self, event: Event, row: Row, wave: int) -> list[Instruction]:
        note = self.problem if row.next in (State.RETURNING, State.ROLLED_BACK) else event.cause
        changed = self._with_line(
            StoryLine(at_ms=event.now_ms, wave=wave, step=row.step, message=row.message, state=row.next, note=note)
        )
        point = f"{self.strategy}:{row.step or row.next}"
        instructions: list[Instruction] = [JournalStep(changed, row.step, point)]
        if isinstance(event, StoreRefused):
            instructions.append(Tell("refused", f"{self.id} is refused: {event.problem}", self.id))
        if changed.done:
            instructions.append(Tell("finished", f"{self.id} {changed.outcome}" + _because(changed.problem), self.id))
        elif row.next == State.RETURNING:
            text = f"{self.id}, wave {wave} goes back" + _because(changed.problem)
            instructions.append(Tell("returning", text, self.id))
        return instructions

    def to_json(self) -> dict[str, Any]:
        head = {"format": FORMAT, "oldest_reader": OLDEST_READER}
        return {**head, **asdict(self), "audit": self.audit.to_json()}


@dataclass(frozen=True)
class JournalStep:
    """Write this migration durably, and hold it from then on. Always comes before what it allows."""

    migration: Migration
    step: int
    """Of the paper; 0 for the way back, the end and notes."""
    point: str
    """ "mslb:3", "ptlb:5", "mslb:returning": names the write, for tests that stop a manager before or after it."""


@dataclass(frozen=True)
class Tell:
    """Let people know."""

    kind: Literal["refused", "returning", "finished"]
    text: str
    migration: str


Instruction = JournalStep | Tell


class ProtocolError(TrimtabError):
    """An event that cannot happen in the state a migration is in: a bug, here or in what told it. Carries the story."""

    def __init__(self, migration: Migration, event: Event, problem: str) -> None:
        self.migration = migration
        self.event = event
        super().__init__(f"{type(event).__name__} {problem}: {event}\n{migration.render_story()}")


def parse_migration(body: Mapping[str, Any]) -> Migration:
    """The migration that `to_json` wrote, in this version of Trimtab or another one that agrees with it."""
    record = in_format(body, FORMAT, UPGRADES, "migration")
    fields = known_fields(Migration, record)
    for name in ("excluded", "chosen", "remaining"):
        fields[name] = tuple(fields[name])
    request = known_fields(Request, record["request"])
    fields["request"] = Request(**{**request, "groups": tuple(request["groups"])})
    fields["pace"] = Pace(**known_fields(Pace, record["pace"]))
    fields["first_state"] = State(record["first_state"])
    fields["waves"] = tuple(map(_parse_wave, record["waves"]))
    fields["story"] = tuple(StoryLine(**known_fields(StoryLine, line)) for line in record["story"])
    fields["audit"] = parse_audit(record["audit"])
    return Migration(**fields)


def _parse_wave(body: Mapping[str, Any]) -> Wave:
    fields = known_fields(Wave, body)
    return Wave(**{**fields, "groups": tuple(body["groups"]), "state": State(body["state"]), "way": Way(body["way"])})


def strategy_of(kind: Kind) -> Strategy:
    """The protocol that opens moves of a kind."""
    return next(each for each in PROTOCOLS if TABLES[each].kind == kind)


def taken_groups(migrations: Iterable[Migration], but: str = "") -> frozenset[int]:
    """Groups that migrations under way (but one) have: one migration per group at a time."""
    groups: set[int] = set()
    for migration in migrations:
        if migration.id != but:
            groups |= migration.busy_groups
    return frozenset(groups)


def _because(problem: str) -> str:
    return f": {problem}" if problem else ""
