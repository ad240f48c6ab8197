"""Reads YAML into plain values: safe tags only, no duplicate keys, ${NAME} from the environment or ${file:PATH}."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trimtab.errors import InvalidInput

# $${NAME} is the text ${NAME} itself.
_VARIABLE = re.compile(r"(\$?)\$\{(?:file:([^}]+)|([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?)\}")


def read_yaml(path: Path) -> dict[Any, Any]:
    """The mapping in the file, before variables are replaced."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidInput("file", str(path), f"cannot be read ({reason})", "Give the path of a YAML file.") from None
    try:
        # Parsed to nodes first: safe_load would silently keep the last of two equal keys, and lose a stream.
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_duplicates(path, node, "", set())
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(
            "file",
            str(path),
            f"is not YAML: {_place(error)}",
            "Correct it there; texts may be put in quotes.",
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(
            "file", str(path), "is not a mapping", "Begin it with `spark:`, `query:` or another part of the file."
        )
    return value


def fill_in(value: Any, environ: Mapping[str, str], field: str = "") -> Any:
    """A copy with ${NAME}, ${NAME:-default} and ${file:PATH} replaced in all strings."""
    if isinstance(value, dict):
        return {key: fill_in(each, environ, _below(field, key)) for key, each in value.items()}
    if isinstance(value, list):
        return [fill_in(each, environ, f"{field}[{index}]") for index, each in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        escaped, file, name, default = match.groups()
        if escaped:
            return match.group(0)[1:]
        if file is not None:
            return _content(file, field, value)
        text = environ.get(name, default)
        if text is None:
            raise InvalidInput(
                field,
                value,
                f"uses the environment variable {name}, which is not set",
                f"Set it, or write ${{{name}:-default}}; $${{{name}}} is the text itself.",
            )
        return text

    return _VARIABLE.sub(replaced, value)


def _content(file: str, field: str, written: str) -> str:
    """A secret as an orchestrator mounts it: the file's text without the line end that editors add."""
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidInput(
            field, written, f"names a file that cannot be read ({reason})", "Mount it there, or correct the path."
        ) from None


def _below(field: str, key: Any) -> str:
    where = f"{field}.{key}" if field else str(key)
    # Workers have numbers.
    if not isinstance(key, str) and type(key) is not int:
        kind = "nothing" if key is None else type(key).__name__
        raise InvalidInput(where, key, f"is {kind} in YAML, not a text", "Put it in quotes.")
    return where


def _refuse_duplicates(path: Path, node: yaml.Node | None, field: str, visited: set[int]) -> None:
    # An alias is the same node as its anchor, so a document can contain itself.
    if node is None or id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, each in enumerate(node.value):
            _refuse_duplicates(path, each, f"{field}[{index}]", visited)
    elif isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for key, each in node.value:
            name = str(key.value)
            where = f"{field}.{name}" if field else name
            if name in names:
                line = key.start_mark.line + 1
                raise InvalidInput(
                    where,
                    name,
                    f"appears twice ({path.name}, line {line})",
                    "Keep one, or rename the other.",
                )
            names.add(name)
            _refuse_duplicates(path, each, where, visited)


def _place(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return str(error).splitlines()[0]
