"""What all parts of a query.yaml have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Option = str | bool | int | float


class Part(BaseModel):
    """Frozen, and strict: nothing is guessed from what was written."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def option_text(value: Option) -> str:
    """An option as Spark reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def option_texts(options: dict[str, Option]) -> dict[str, str]:
    return {name: option_text(value) for name, value in options.items()}
