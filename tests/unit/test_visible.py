"""Text from users stays text, and stays itself."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from trimtab.visible import visible


def test_what_acts_is_spelled_out_and_the_rest_is_left() -> None:
    assert visible("orders <b>&amp;</b> ü 注文 🙂") == "orders <b>&amp;</b> ü 注文 🙂"
    assert visible("a\u202eb\x1b[31m\r\n\x00\u2028") == "a\\u202eb\\u001b[31m\\u000d\\u000a\\u0000\\u2028"
    assert visible("\ud800\U000e0001") == "\\ud800\\U000e0001"
    assert visible("x" * 9, 5) == "xxxx…"
    assert visible("xxxxx", 5) == "xxxxx"


@given(st.text())
def test_nothing_acts(text: str) -> None:
    shown = visible(text)
    assert not any(unicodedata.category(letter).startswith("C") for letter in shown)
    assert shown.splitlines() in ([], [shown])
    shown.encode()
