"""Tables and lines for people: whatever a cell contains is text, neither markup nor an order to the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from trimtab.plain_text import plain_text


class PlainTable(Table):
    """rich reads markup in strings, and terminals read escape sequences: here both are text."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(Text(plain_text(cell)) if isinstance(cell, str) else cell for cell in cells), **options)


def print_table(table: object) -> None:
    """As wide as needed if stdout is not a terminal: lines that are wrapped in a pipe cannot be parsed."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)


def say(text: str) -> None:
    """Print a line, or several."""
    print(plain_text(text, lines=True), flush=True)
