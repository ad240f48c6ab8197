"""How the control source's offset is known among those of other sources.

Apart from the offset log, which is read with pyarrow: a manager's image has none.
"""

from __future__ import annotations

import json
from typing import Any, Final

MARK: Final = "trimtab"
"""The key in the control source's offset by which its line in the offset log is known."""


def find_mark(line: str) -> dict[str, Any] | None:
    """The control source's entry in a line of the offset log, or in an offset of Spark's progress; None elsewhere."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    while isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    found = value.get(MARK) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else None
