"""Whatever a text contains, a terminal shows it and does nothing."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from commands.tables import PlainTable
from trimtab.plain_text import plain_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("Bestellungen für Köln, 注文 🙂", "Bestellungen für Köln, 注文 🙂"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("abc\u202edef", "abc\\u202edef"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("a\nb\r\tc", "a\\x0ab\\x0d\\x09c"),
        ("\x9b2J", "\\x9b2J"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        (None, "None"),
    ],
)
def test_what_a_terminal_would_act_on_is_shown(text: object, shown: str) -> None:
    assert plain_text(text) == shown


def test_line_ends_may_stay() -> None:
    assert plain_text("a\n\x1bb\n", lines=True) == "a\n\\x1bb\n"


@given(st.text())
def test_nothing_that_acts_is_left(text: str) -> None:
    for letter in plain_text(text):
        assert unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def test_a_cell_is_neither_markup_nor_an_escape_sequence() -> None:
    table = PlainTable()
    table.add_column("reason")
    table.add_row("[bold red]x[/bold red] [/nothing] \x1b[2J \u202e")
    out = io.StringIO()
    Console(file=out, width=100, force_terminal=True, color_system="truecolor").print(table)
    assert "[bold red]x[/bold red] [/nothing] \\x1b[2J \\u202e" in out.getvalue()
