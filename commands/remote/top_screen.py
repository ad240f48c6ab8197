"""What `trimtab top` shows: pure functions from the front page's document to lines of styled text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from rich.cells import cell_len, set_cell_size

from commands.remote.follow import step_words
from commands.remote.tables import clock, number, numbers, percent
from commands.remote.watching import Sight
from plans.tree import Join, Node, parse_plan
from trimtab.errors import InvalidInput
from trimtab.plain_text import plain_text

Json = dict[str, Any]
Style = Literal["", "bold", "dim", "bad", "good", "moving", "chosen"]
Span = tuple[str, Style]
Line = tuple[Span, ...]

SORTS: Final[dict[str, Callable[[Json], Any]]] = {
    "worker": lambda each: each["worker"],
    "load": lambda each: -(each["share"] or 0.0),
    "rows": lambda each: -(each["rows_per_s"] or 0.0),
    "state": lambda each: -(each["state_bytes"] or 0),
    "executor": lambda each: (str(each["executor"]), each["worker"]),
}
BAR: Final = 24
WHY_LINES: Final = 3
MOVES_MAX: Final = 8
GROUPS_MAX: Final = 12
HELP: Final = "s sort  ↑↓ choose  ⏎ open  Esc back  n next query  q quit"
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_STEPS: Final = ("■", "□")


@dataclass(frozen=True, kw_only=True)
class View:
    """What the user has chosen."""

    sort: str = "worker"
    chosen: int = 0
    """A line of the list of workers."""
    opened: int | None = None
    """A worker whose details are shown."""

    def key(self, name: str, document: Json | None) -> View:
        """After a key was pressed."""
        workers = [] if document is None else ordered(document, self.sort)
        if name == "sort":
            order = list(SORTS)
            return replace(self, sort=order[(order.index(self.sort) + 1) % len(order)])
        if name in ("up", "down"):
            step = 1 if name == "down" else -1
            return replace(self, chosen=max(0, min(len(workers) - 1, self.chosen + step)))
        if name == "open" and self.chosen < len(workers):
            return replace(self, opened=workers[self.chosen]["worker"])
        return replace(self, opened=None) if name == "back" else self


def ordered(document: Json, sort: str) -> list[Json]:
    return sorted(document["workers"], key=SORTS[sort])


def screen(sight: Sight, view: View, width: int, height: int, now_ms: int) -> list[Line]:
    """As many lines as fit, each as wide as the terminal at most."""
    if sight.document is None:
        lines: list[Line] = [((plain_text(sight.problem) or "connecting", "bad"),)]
    else:
        document = sight.document
        lines = [*_head(document, sight.problem, width, now_ms), *_why(document, width), ()]
        worker = next((each for each in document["workers"] if each["worker"] == view.opened), None)
        lines += _workers(document, view, width) if worker is None else _worker(document, worker, width)
        lines += [(), *_moves(document, width)]
        room = height - len(lines) - 2
        if room > 1:
            lines += [(), *_events(document, room - 1)]
    foot: Line = ((f"{HELP}   sorted by {view.sort}", "dim"),)
    return [*(cut(line, width) for line in lines[: max(0, height - 1)]), cut(foot, width)]


def cut(line: Line, width: int) -> Line:
    """No wider than the terminal, whose cells are not characters."""
    spans: list[Span] = []
    left = width
    for text, style in line:
        if left <= 0:
            break
        text = text if cell_len(text) <= left else set_cell_size(text, left)
        spans.append((text, style))
        left -= cell_len(text)
    return tuple(spans)


def text_of(lines: Sequence[Line]) -> str:
    """Without styles, for a pipe."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def _head(document: Json, problem: str, width: int, now_ms: int) -> list[Line]:
    query, balance = document["query"], document["imbalance"]
    state: Span = ("running", "good") if query["running"] else ("STOPPED", "bad")
    leader = plain_text(query["manager"]["leader"]) if query["manager"] else "none"
    age_s = max(0.0, (now_ms - document["at_ms"]) / 1000)
    live: Span = (f"NOT LIVE for {age_s:.0f} s: {plain_text(problem)}", "bad") if problem else ("live", "good")
    alarms: tuple[Span, ...] = ((f"  alarms: {len(query['alarms'])}", "bad"),) if query["alarms"] else ()
    ratio = balance["ratio"]
    skewed = ratio is not None and ratio >= balance["start_ratio"]
    newest = document["batches"][-1] if document["batches"] else None
    speed = "" if newest is None else f"  {number(newest[3])} rows/s  {number(newest[4])} results/s"
    history = [row[2] for row in document["batches"]]
    room = max(10, width - 40)
    return [
        (
            (plain_text(query["name"]), "bold"),
            ("  ", ""),
            state,
            (f"  epoch {query['epoch']}  batch {query['committed_batch']}", ""),
            (f"  workers {query['workers_up']}/{query['workers']}  leader {leader}  ", ""),
            live,
            *alarms,
        ),
        (
            ("imbalance ", ""),
            (f"{ratio:.2f}" if ratio is not None else "-", "bad" if skewed else "good"),
            (f" of {balance['measure']} (acts from {balance['start_ratio']:g}, until {balance['stop_ratio']:g})", ""),
            (f"  auto {'on' if balance['auto'] else 'off'}{speed}", ""),
        ),
        (
            ("batch ", ""),
            (f"{number(newest[2]) if newest else '-'} ms ", "bold"),
            (sparkline(history[-room:]), "dim"),
        ),
    ]


def _why(document: Json, width: int) -> list[Line]:
    why = document["why"]
    lines = textwrap.wrap(plain_text(why["text"]), max(20, width - 5))
    if len(lines) > WHY_LINES:
        lines = [*lines[: WHY_LINES - 1], lines[WHY_LINES - 1][: max(1, width - 9)] + " ..."]
    head = "now: " if why["act"] else "why: "
    return [((head if index == 0 else "     ", "dim"), (text, "")) for index, text in enumerate(lines)]


def _workers(document: Json, view: View, width: int) -> list[Line]:
    head = f"{'worker':>6} {'executor':<10} {'groups':>6} {'share':>6} {'':<{BAR}} {'CPU ms/s':>9} {'rows/s':>9}"
    lines: list[Line] = [((f"{head} {'state MB':>9}", "bold"),)]
    mean = 1 / max(1, len(document["workers"]))
    for index, each in enumerate(ordered(document, view.sort)):
        share = each["share"] or 0.0
        start = document["imbalance"]["start_ratio"]
        style: Style = "bad" if share > mean * start else "good"
        executor = set_cell_size(plain_text(each["executor"] or "-"), 10)
        state_mb = None if each["state_bytes"] is None else each["state_bytes"] / 1e6
        chosen: Style = "chosen" if index == view.chosen else ""
        lines.append(
            (
                (f"{each['worker']:>6} {executor} {each['groups']:>6} {percent(each['share']):>6} ", chosen),
                (bar(share), style),
                (f" {number(each['cpu_ms_per_s'], 1):>9} {number(each['rows_per_s']):>9} {number(state_mb, 1):>9}", ""),
                (_notes(each), "moving"),
            )
        )
    return lines


def _notes(worker: Json) -> str:
    notes = [] if worker["up"] else ["down"]
    notes += ["excluded"] if worker["excluded"] else []
    notes += [f"{worker['moving']} moving"] if worker["moving"] else []
    return f"  {', '.join(notes)}" if notes else ""


def _worker(document: Json, worker: Json, width: int) -> list[Line]:
    mine = [group for group, owner in enumerate(document["owners"]) if owner == worker["worker"]]
    loads = document["loads"]
    hot = sorted(mine, key=lambda group: -loads[group] if loads else group)[:GROUPS_MAX]
    largest = max((loads[group] for group in hot), default=0.0) if loads else 0.0
    lines: list[Line] = [
        (
            (f"worker {worker['worker']}", "bold"),
            (f" on executor {plain_text(worker['executor'] or '-')}", ""),
            (_notes(worker), "moving"),
            (f"  {percent(worker['share'])} of the load  {number(worker['rows_per_s'])} rows/s", ""),
            (f"  {number(worker['results_per_s'])} results/s", ""),
        ),
        (
            (f"state {number(worker['state_rows'])} rows, {number((worker['state_bytes'] or 0) / 1e6, 1)} MB", ""),
            (f"  combined {number(worker['combined_rows'])}  late {number(worker['late_rows'])}", ""),
            (f"  resident {plain_text(worker['resident'] or '-')}  batch {worker['batch']}", ""),
        ),
        (),
        (("plan", "bold"),),
        *(((line, ""),) for line in plan_lines(worker["plan"] or "", worker["plan_states"])),
        (),
        ((f"groups: {len(mine)}, hottest first" if loads else f"groups: {numbers(mine)}", "bold"),),
    ]
    for group in hot if loads else []:
        part = loads[group] / largest if largest else 0.0
        lines.append(((f"{group:>6} {loads[group] / 10_000:>7.2%} ", ""), (bar(part), "good")))
    return lines


def plan_lines(plan: str, states: Sequence[Json]) -> list[str]:
    """The plan as a tree, each state with its rows."""
    rows = {each["state"]: each["rows"] for each in states}
    try:
        root = parse_plan(plan, [name for name in rows if " " not in name])
    except InvalidInput:
        return [f"  {plain_text(plan) or '-'}"]

    def draw(node: Node, indent: str, last: bool) -> list[str]:
        name = " ".join(node.streams)
        branch = "" if node is root else ("└─ " if last else "├─ ")
        size = "results" if node is root else f"{number(rows.get(name))} rows"
        lines = [f"  {indent}{branch}{plain_text(name)}  {size}"]
        if isinstance(node, Join):
            deeper = indent + ("" if node is root else ("   " if last else "│  "))
            for index, child in enumerate(node.inputs):
                lines += draw(child, deeper, index == len(node.inputs) - 1)
        return lines

    return draw(root, "", True)


def _moves(document: Json, width: int) -> list[Line]:
    moves = document["moves"]
    if not moves:
        return [(("no moves under way", "dim"),)]
    open_first = sorted(moves, key=lambda move: (move["outcome"] is not None, -move["created_ms"]))
    lines: list[Line] = [((f"moves: {sum(move['outcome'] is None for move in moves)} under way", "bold"),)]
    for move in open_first[:MOVES_MAX]:
        done, left = _STEPS
        steps = done * move["step"] + left * max(0, move["steps"] - move["step"])
        ended = {"committed": "good", None: "moving"}.get(move["outcome"], "bad")
        audit = move["audit"]
        rows = f"  {number(move['held_rows'])} rows held" if move.get("held_rows") else ""
        rows += f"  {number(move['copied_rows'])} rows twice" if move.get("copied_rows") else ""
        # One that is under way is not clean yet: not all of its batches are checked.
        found = audit["lost"] or audit["doubled"] or audit["problems"]
        wrong = f"  AUDIT: lost {audit['lost']}, doubled {audit['doubled']}" if found else ""
        lines.append(
            (
                (f"  {plain_text(move['strategy']).upper()} {move['from']} → {move['to']} ({_amount(move)}) ", ""),
                (steps, ended),  # type: ignore[arg-type]
                (f" {plain_text(step_words(move))}{rows}", ""),
                (wrong, "bad"),
            )
        )
    if len(moves) > MOVES_MAX:
        lines.append(((f"  and {len(moves) - MOVES_MAX} more", "dim"),))
    return lines


def _amount(move: Json) -> str:
    if not move["groups"]:
        return f"{percent(move['amount'])} of the load"
    return "1 group" if len(move["groups"]) == 1 else f"{len(move['groups'])} groups"


def _events(document: Json, room: int) -> list[Line]:
    return [
        ((f"{clock(each['at_ms'])} ", "dim"), (f"{plain_text(each['kind'])}: {plain_text(each['text'])}", ""))
        for each in document["events"][-room:]
    ]


def bar(part: float) -> str:
    filled = round(max(0.0, min(1.0, part)) * BAR)
    return "█" * filled + "·" * (BAR - filled)


def sparkline(values: Sequence[float]) -> str:
    largest = max(values, default=0.0)
    if largest <= 0:
        return ""
    return "".join(_LEVELS[min(7, int(value / largest * 7.999))] for value in values)
