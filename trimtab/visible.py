"""Text from users as text: nothing in it may act on a terminal, a page or a metric.

Names of queries, keys and executors may have been written straight into Redis, by whoever can. Characters that are not
seen but act (escape sequences, line ends, those that turn the direction of writing around) are spelled out, so that
nothing is hidden and two different texts stay different.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_ACTING: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's categories: control, format (bidirectional overrides among them), surrogates, unassigned, line ends."""


def visible(text: str, length_max: int | None = None) -> str:
    """The text with every acting character spelled out as \\u202e, and cut where it is too long."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(map(_spelled, text))
    if length_max is not None and len(text) > length_max:
        text = text[: length_max - 1] + "…"
    return text


def _spelled(letter: str) -> str:
    if unicodedata.category(letter) not in _ACTING:
        return letter
    number = ord(letter)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
