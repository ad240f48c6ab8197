"""Text from users as text: nothing in it moves a cursor, changes a colour or reverses what follows.

Reasons, names of keys, executors and queries may contain anything, since Redis may be written to by others. What a
terminal would act on, and what cannot be seen, is shown as an escape: ESC becomes `\\x1b`, U+202E becomes `\\u202e`.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_ACTING: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: control, format (bidi, zero width), surrogates, private, unassigned, line and paragraph ends."""


def plain_text(value: object, *, lines: bool = False) -> str:
    """The value in one line; with `lines`, line ends stay."""
    if lines:
        return "\n".join(map(plain_text, str(value).split("\n")))
    text = str(value)
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def _shown(letter: str) -> str:
    if unicodedata.category(letter) not in _ACTING:
        return letter
    number = ord(letter)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
