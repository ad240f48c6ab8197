"""How the bytes of a record's key or value are written: JSON, Avro or plain text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from trimtab.errors import InvalidInput

JSON: Final = "json"
AVRO: Final = "avro"
TEXT: Final = "text"

TIME_FORMAT: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
"""Spark's own has milliseconds only."""
MAGIC: Final = 0
"""First byte of the wire format of schema registries; four bytes with the schema's id follow."""
PREFIX_BYTES: Final = 5


@dataclass(frozen=True)
class RegisteredSchema:
    """One version of a subject."""

    id: int
    version: int
    schema: str


@dataclass(frozen=True)
class RecordFormat:
    """What a key or a value holds."""

    kind: str
    schema: str | None = None
    """Columns as in SQL for JSON and text, Avro's JSON for Avro; None: made from the columns (sinks only)."""
    registered: tuple[RegisteredSchema, ...] = ()
    """Avro with a registry: all versions of the subject, oldest first. `schema` is the newest one then."""


def check_avro_schema(field: str, text: str, *, record: bool = True) -> Any:
    """The schema's JSON; Spark has the last word on it."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise InvalidInput(field, _short(text), f"is not JSON ({error})", "Write an Avro schema.") from None
    if record and not (isinstance(body, dict) and body.get("type") == "record" and body.get("fields")):
        raise InvalidInput(
            field, _short(text), "is not an Avro record with fields", 'Write {"type": "record", "fields": [...]}.'
        )
    return body


def wire_prefix(schema_id: int) -> bytes:
    """What precedes Avro's bytes in the wire format of schema registries."""
    return bytes([MAGIC]) + schema_id.to_bytes(4, "big")


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."
