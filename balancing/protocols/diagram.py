"""Pictures of the protocols, drawn from the tables: `python -m balancing.protocols.diagram` writes docs/protocols/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from balancing.protocols.migration import TABLES
from balancing.protocols.table import FINAL, Row, State, Table

FOLDER: Final = Path(__file__).parents[2] / "docs" / "protocols"


def draw(table: Table) -> str:
    """A page: the states as a Mermaid diagram, the steps as a table, and what is ignored or refused."""
    return "\n".join([*_head(table), *_diagram(table), "", *_steps(table), "", *_others(table), ""])


def pages() -> dict[Path, str]:
    return {FOLDER / f"{name}.md": draw(table) for name, table in TABLES.items()}


def _head(table: Table) -> list[str]:
    module = f"balancing/protocols/{table.name}.py"
    return [
        f"# {table.title}",
        "",
        f"Drawn from the transition table in [`{module}`](../../{module}) by `python -m balancing.protocols.diagram`;",
        "do not edit. Numbers are the paper's steps; rows without one are the way back and the end.",
        "",
    ]


def _diagram(table: Table) -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {_name(State.NEW)}"
    for row in table.rows:
        step = f"{row.step} " if row.step else ""
        yield f"    {_name(row.state)} --> {_name(row.next)}: {step}{row.message}"
    for state in sorted(FINAL):
        yield f"    {_name(state)} --> [*]"
    yield f"    note right of {_name(table.closing)}: point of no return, journaled"
    yield "```"


def _steps(table: Table) -> Iterator[str]:
    yield "| step | message | in state | on event | next state | another epoch |"
    yield "|---|---|---|---|---|---|"
    for row in sorted(table.rows, key=lambda row: (row.step == 0, row.step)):
        yield _line(row)


def _line(row: Row) -> str:
    step = str(row.step) if row.step else ""
    published = "yes" if row.publishes else ""
    return f"| {step} | {row.message} | {row.state} | {row.event.__name__} | {row.next} | {published} |"


def _others(table: Table) -> Iterator[str]:
    repeated = ", ".join(sorted(event.__name__ for event in table.repeated))
    refusing = ", ".join(sorted(table.refusing))
    yield f"Without consequence where no row names them, because reports say the same in every batch: {repeated}."
    yield ""
    yield f"A cancel is refused in: {refusing} (groups that are in no wave yet stay where they are all the same)."
    yield "Anything else is a ProtocolError that tells the migration's story."


def _name(state: State) -> str:
    return state.replace("-", "_")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
